"""Checks for files that look like weights but can't be read as such: damaged, incomplete or quantised ones."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ...errors import AdtError, command, shown
from ...files import opened

PICKLES = (".bin", ".pt", ".pth", ".ckpt")
ORIGINAL = "use the original weights (to save memory, choose 'int8 weights' in the loader, or `weights` int8)"
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_ZIP = b"PK\x03\x04"  # first bytes of a zip file
_ZIP_END = b"PK\x05\x06"  # record at the end of a zip file
_ZIP_TAIL = 2**16  # most bytes from that record to the end of the file
_PICKLED = (_ZIP, b"\x80")
"""First bytes of files of ``torch.save``: zip files, and pickles before torch 1.6."""
_QUANTISED = re.compile(
    r"\.(absmax|quant_map|nested_absmax|nested_quant_map|SCB|weight_format|quant_state\..*"  # bitsandbytes
    r"|qweight|qzeros|scales|g_idx|zeros"  # GPTQ, AWQ
    r"|scale_weight|scale_input|weight_scale(_inv|_2)?|input_scale|output_scale|comfy_quant"  # fp8 with scales
    r"|weight_packed|weight_zero_point|weight_shape|weight_global_scale"  # compressed-tensors
    r"|W_q|codebooks|weight\._data|weight\._scale|weight_scales)$"  # HQQ, AQLM, quanto, EETQ
    r"|(^|\.)scaled_fp8$|_proj_(blocks|scales)$"  # marker of ComfyUI's fp8 files, MXFP4
)
"""Names of tensors that accompany quantised weights."""
_DFLOAT11 = re.compile(r"(^|\.)(encoded_exponent|sign_mantissa)$")
"""Names of the tensors in which DFloat11 (arXiv 2504.11651) stores a bfloat16 matrix."""


def is_pickle(file: Path) -> bool:
    """Return whether a weights file is a pickle, by its content, or by its name if the content is ambiguous.

    A safetensors file begins with the length of its header, 8 bytes, and the header's brace.

    Args:
        file: The file.
    """
    try:
        with opened(file) as content:
            first = content.read(9)
    except OSError:  # the reader raises the error
        first = b""
    if first[8:] == b"{":
        return False
    return first.startswith(_PICKLED) or file.suffix in PICKLES


def dangling_link(path: Path) -> Path | None:
    """Return the symbolic link whose target is missing, if a path is one or leads through one."""
    return next((place for place in (path, *path.parents) if os.path.islink(place) and not os.path.exists(place)), None)


def refuse_dangling(path: Path) -> None:
    """Raise an error if a path is a symbolic link whose target is missing, or leads through one.

    Args:
        path: The path.

    Raises:
        AdtError: If so.
    """
    link = dangling_link(path)
    if link is not None:
        problem = f"is a symbolic link to {os.readlink(link)}, which does not exist"
        raise AdtError(f"{link} {problem}; restore the target, or replace the link with a new download.")


def refuse_damaged(file: Path) -> None:
    """Raise an error if a file is a dangling link, a Git LFS pointer or an incomplete zip file.

    A file that can't be opened passes; its reader raises the error.

    Args:
        file: The file.

    Raises:
        AdtError: If the file is damaged in one of these ways.
    """
    refuse_dangling(file)
    try:
        with opened(file) as content:
            first = content.read(len(_LFS_POINTER))
            size = content.seek(0, 2)
            content.seek(max(0, size - _ZIP_TAIL))
            last = content.read(_ZIP_TAIL)
    except OSError:
        return
    if first == _LFS_POINTER:
        remedy = f"download it again, for example with `{command('download NAME')}`"
        if (file.parent / ".git").exists():
            remedy = f"run git lfs pull in {file.parent}"
        raise AdtError(f"{file} is a Git LFS pointer, not the file itself; {remedy}.")
    if first.startswith(_ZIP) and _ZIP_END not in last:
        raise AdtError(f"{file} is incomplete; download it again.")


def refuse_quantised(path: Path, config: dict, names: Iterable[str]) -> None:
    """Raise an error if weights are stored in a quantised or compressed format.

    Args:
        path: The checkpoint, for the error message.
        config: Fields of its ``config.json``.
        names: Names of its tensors.

    Raises:
        AdtError: If so.
    """
    names = list(names)
    if config.get("dfloat11_config") is not None or any(map(_DFLOAT11.search, names)):
        problem = "is compressed with DFloat11 (DF11), which this version can't read"
        raise AdtError(f"{path} {problem}; {ORIGINAL}.")
    method = config.get("quantization_config")
    if isinstance(method, dict) and method.get("quant_method") == "fp8":
        is_supported = method.get("weight_block_size") in (None, [128, 128])  # see checkpoint.with_scales
        method = None if is_supported else method
    name = next((name for name in names if _QUANTISED.search(name)), None)
    if not method and name is None:
        return
    sign = ""
    if name:
        sign = f" (it has the tensor {shown(name, 80)})"
    elif isinstance(method, dict) and method.get("quant_method"):
        sign = f" by {shown(method['quant_method'])}"
    raise AdtError(f"{path} is quantised{sign}, which this version can't read; {ORIGINAL}.")
