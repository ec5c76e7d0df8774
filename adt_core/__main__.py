"""``python -m adt_core``: see :mod:`adt_core.cli`."""

import sys

from .errors import INTERRUPTED

try:
    from .cli import main

    code = main()
except KeyboardInterrupt:  # while the modules of the command line are imported
    print(INTERRUPTED, file=sys.stderr)
    code = 130
sys.exit(code)
