"""Entry point of `python -m adt_core`; see `adt_core.cli`."""

import sys

from .errors import INTERRUPTED, missing_library

try:
    from .cli import main

    code = main()
except KeyboardInterrupt:  # during the imports of the command line
    print(INTERRUPTED, file=sys.stderr)
    code = 130
except Exception as error:  # during the imports, too
    if not (sentence := missing_library(error)):
        raise
    print(f"error: {sentence}", file=sys.stderr)
    code = 1
sys.exit(code)
