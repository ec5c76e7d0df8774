#!/usr/bin/env python3
"""Run ADT-Tree's command line: ``python adt.py COMMAND``, the same as ``python -m adt_core COMMAND``.

It works from any folder and with every Python, also with the one of ComfyUI's portable version for Windows, which does
not look for packages in the current folder.
"""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

if __name__ == "__main__":
    runpy.run_module("adt_core", run_name="__main__", alter_sys=True)
