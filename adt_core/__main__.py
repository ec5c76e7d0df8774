"""Entry point of `python -m adt_core`; see `adt_core.cli`."""

import sys

from .errors import INTERRUPTED

try:
    from .cli import main

    code = main()
except KeyboardInterrupt:  # during the imports of the command line
    print(INTERRUPTED, file=sys.stderr)
    code = 130
sys.exit(code)
