"""Files that would be read wrongly: damaged ones, and numbers that mean something with their scales only.

This stands beside the reading, because such a file may well look like weights.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ...errors import AdtError, shown
from ...files import opened

_POINTER = b"version https://git-lfs.github.com/spec/"
_ZIP, _ZIP_END, _LAST = b"PK\x03\x04", b"PK\x05\x06", 2**16
"""How zip files begin; the record that they end with; and how many bytes may be behind it."""
_QUANTISED = re.compile(
    r"\.(absmax|quant_map|nested_absmax|nested_quant_map|SCB|weight_format|quant_state\..*"  # bitsandbytes
    r"|qweight|qzeros|scales|g_idx|zeros"  # GPTQ, AWQ
    r"|scale_weight|scale_input|weight_scale(_inv|_2)?|input_scale|output_scale|comfy_quant"  # fp8 with scales
    r"|weight_packed|weight_zero_point|weight_shape|weight_global_scale"  # compressed-tensors
    r"|W_q|codebooks|weight\._data|weight\._scale|weight_scales)$"  # HQQ, AQLM, quanto, EETQ
    r"|(^|\.)scaled_fp8$|_proj_(blocks|scales)$"  # ComfyUI's mark of fp8 files, MXFP4
)
"""Names of tensors beside numbers that are not the weights themselves."""
_DFLOAT11 = re.compile(r"(^|\.)(encoded_exponent|sign_mantissa)$")
"""Names of the tensors in which DFloat11 (arXiv 2504.11651) stores a bfloat16 matrix."""
_PICKLED = b"PK\x03\x04", b"\x80"
"""How files of ``torch.save`` begin: zip files, before torch 1.6 pickles."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
ORIGINAL = "use the original weights (to save memory, choose 'int8 weights' in the loader, or `weights` int8)"


def is_pickle(file: Path) -> bool:
    """Return whether a file of weights is a pickle: by its content, or by its name where the content does not tell.

    A safetensors file begins with the length of its header, 8 bytes, and the header's brace.
    """
    try:
        with opened(file) as content:
            first = content.read(9)
    except OSError:  # reading it raises the error
        first = b""
    if first[8:] == b"{":
        return False
    return first.startswith(_PICKLED) or file.suffix in PICKLES


def dangling_link(path: Path) -> Path | None:
    """Return the symbolic link whose target is missing, if a path is one or leads through one."""
    return next((place for place in (path, *path.parents) if os.path.islink(place) and not os.path.exists(place)), None)


def refuse_dangling(path: Path) -> None:
    """Raise an error if a path is a symbolic link whose target is missing, or leads through one.

    Raises:
        AdtError: If so. The sentence names the link and its target.
    """
    link = dangling_link(path)
    if link is not None:
        problem = f"is a symbolic link to {os.readlink(link)}, which does not exist"
        raise AdtError(f"{link} {problem}; restore the target, or replace the link with a new download.")


def refuse_damaged(file: Path) -> None:
    """AdtError if a file is a dangling link, a Git LFS pointer or the beginning of a zip file.

    Other files that can't be read pass.
    """
    refuse_dangling(file)
    try:
        with opened(file) as content:
            first, size = content.read(len(_POINTER)), content.seek(0, 2)
            content.seek(max(0, size - _LAST))
            last = content.read(_LAST)
    except OSError:  # whoever reads the file says so
        return
    if first == _POINTER:
        is_clone = (file.parent / ".git").exists()
        remedy = (
            f"run git lfs pull in {file.parent}"
            if is_clone
            else "download the file itself, for example with hf download"
        )
        raise AdtError(f"{file} is a Git LFS pointer, not the file itself; {remedy}.")
    if first.startswith(_ZIP) and _ZIP_END not in last:
        raise AdtError(f"{file} is incomplete; download it again.")


def refuse_quantised(path: Path, config: dict, names: Iterable[str]) -> None:
    """AdtError if the configuration, or tensors of these names, say that the numbers are not stored as they are."""
    names = list(names)
    if config.get("dfloat11_config") is not None or any(map(_DFLOAT11.search, names)):
        problem = "is compressed with DFloat11 (DF11), which this version can't read"
        raise AdtError(f"{path} {problem}; {ORIGINAL}.")
    stated = config.get("quantization_config")
    if isinstance(stated, dict) and stated.get("quant_method") == "fp8":
        stated = None if stated.get("weight_block_size") in (None, [128, 128]) else stated  # its scales are read
    name = next((name for name in names if _QUANTISED.search(name)), None)
    if not stated and name is None:
        return
    sign = ""
    if name:
        sign = f" (it has the tensor {shown(name, 80)})"
    elif isinstance(stated, dict) and stated.get("quant_method"):
        sign = f" by {shown(stated['quant_method'])}"
    raise AdtError(f"{path} is quantised{sign}, which this version can't read; {ORIGINAL}.")
