#!/usr/bin/env python3
"""Command line of ADT-Tree: `python adt.py COMMAND`, the same as `python -m adt_core COMMAND`.

This file works from any folder and with every Python. `python -m adt_core` does not: ComfyUI's portable Python for
Windows does not search the current folder for packages.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

if __name__ == "__main__":
    from adt_core.__main__ import main

    sys.exit(main())
