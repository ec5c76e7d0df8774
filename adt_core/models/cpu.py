"""Choice of the library that multiplies float32 matrices on a CPU, by the maker of the processor.

torch contains two libraries. ``x @ weight`` calls Intel's MKL. :func:`.kernels.onednn_matmul` calls oneDNN, which is
faster on AMD's processors for more than a few rows, and slower than MKL on Intel's. The libraries round differently, so
the choice follows a fixed rule. If it followed measured times, a seed could give different images on one machine.
"""

from __future__ import annotations

import platform
import re
import sys
from functools import cache
from pathlib import Path

import torch

from ..files import opened

INTEL = "GenuineIntel"
CPU_INFO = Path("/proc/cpuinfo")
"""File in which Linux describes the processors. The vendor is in its first lines."""
FEW_ROWS = 3
"""Maximum number of rows for which MKL is used on processors that are not Intel's. It is smaller than a tile, because
all products of batch-invariant mode must use the same library."""
ALL_ROWS = 2**31  # MKL is used for every product


@cache
def max_mkl_rows() -> int:
    """Return the maximum number of rows for which MKL multiplies float32 matrices on this CPU."""
    return ALL_ROWS if vendor() == INTEL and torch.backends.mkl.is_available() else FEW_ROWS


def vendor() -> str:
    """Return the vendor that the processor reports, such as "GenuineIntel"; "" if it is unknown."""
    if sys.platform == "win32":
        return platform.processor().rpartition(", ")[2]
    return _reported("vendor_id")


def processor() -> str:
    """Return the name of the processor, such as "AMD EPYC 9354"; its architecture if the name is unknown."""
    return _reported("model name") or platform.processor() or platform.machine()


def _reported(entry: str) -> str:
    """Return an entry of `CPU_INFO`; "" if it is missing."""
    try:
        with opened(CPU_INFO) as file:
            found = re.search(rf"^{entry}\s*: (.*)$", file.read(4096).decode(errors="replace"), re.MULTILINE)
    except OSError:
        return ""
    return found[1].strip() if found else ""
