"""Checks for weights files that can't be read: damaged, incomplete or quantised files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ...errors import AdtError, command, shown
from ...files import opened

PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_ZIP = b"PK\x03\x04"  # first bytes of a zip file
_ZIP_END = b"PK\x05\x06"  # record at the end of a zip file
_ZIP_TAIL = 2**16  # maximum distance from the record _ZIP_END to the end of the file, in bytes
_PICKLED = (_ZIP, b"\x80")
"""First bytes of files that ``torch.save`` writes: zip files, and plain pickles in torch before 1.6."""
_QUANTISED = re.compile(
    r"\.(absmax|quant_map|nested_absmax|nested_quant_map|SCB|weight_format|quant_state\..*"  # bitsandbytes
    r"|qweight|qzeros|scales|g_idx|zeros"  # GPTQ, AWQ
    r"|scale_weight|scale_input|weight_scale(_inv|_2)?|input_scale|output_scale|comfy_quant"  # fp8 with scales
    r"|weight_packed|weight_zero_point|weight_shape|weight_global_scale"  # compressed-tensors
    r"|W_q|codebooks|weight\._data|weight\._scale|weight_scales)$"  # HQQ, AQLM, quanto, EETQ
    r"|(^|\.)scaled_fp8$|_proj_(blocks|scales)$"  # marker of ComfyUI's fp8 files, MXFP4
)
"""Names of tensors, such as scales, that occur only in checkpoints with quantised weights."""
_DFLOAT11 = re.compile(r"(^|\.)(encoded_exponent|sign_mantissa)$")
"""Names of tensors that occur only in checkpoints that DFloat11 (arXiv 2504.11651) compressed."""


def is_pickle(file: Path) -> bool:
    """Return whether a weights file is a pickle.

    If the first bytes identify the format, they decide. Otherwise the suffix decides. A safetensors file begins with
    the length of its header (8 bytes). The header follows, and its first character is "{".
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
    """Return the first symbolic link with a missing target among a path and its parent folders; None without one."""
    return next((place for place in (path, *path.parents) if os.path.islink(place) and not os.path.exists(place)), None)


def refuse_dangling(path: Path) -> None:
    """Raise an AdtError if the path or one of its parents is a symbolic link whose target is missing."""
    link = dangling_link(path)
    if link is not None:
        raise AdtError("file.dead_link", path=link, target=os.readlink(link))


def refuse_damaged(file: Path) -> None:
    """Raise an AdtError if a file is a dangling link, a Git LFS pointer or an incomplete zip file.

    If the file can't be opened, the function returns, and the reader of the file raises the error later.
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
        if (file.parent / ".git").exists():
            raise AdtError("file.not_pulled", file=file, folder=file.parent)
        raise AdtError("file.is_pointer", file=file, command=command("download NAME"))
    if first.startswith(_ZIP) and _ZIP_END not in last:
        raise AdtError("file.incomplete", file=file)


def refuse_quantised(path: Path, config: dict, names: Iterable[str]) -> None:
    """Raise an AdtError if weights are stored in a quantised or compressed format."""
    names = list(names)
    if config.get("dfloat11_config") is not None or any(map(_DFLOAT11.search, names)):
        raise AdtError("model.compressed", path=path)
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
    raise AdtError("model.quantised", path=path, sign=sign)
