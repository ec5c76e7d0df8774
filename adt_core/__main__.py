"""``python -m adt_core``: see :mod:`adt_core.cli`."""

import sys

from .cli import main

sys.exit(main())
