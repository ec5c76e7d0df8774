"""Private kernels of torch, with a fallback for torch versions that lack them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..environment import variable

attention = getattr(torch._C._nn, "scaled_dot_product_attention", None) or torch.ops.aten.scaled_dot_product_attention
"""torch's own function, also if another program has replaced it in `torch.nn.functional`."""
_LINEAR = torch.backends.mkldnn.is_available() and getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_PACK = torch.backends.mkldnn.is_available() and getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_PACKED_FOR = 32
"""Number of rows of the products for which a weight is packed. The result is the same for other numbers."""


def onednn_pack(weight: Tensor) -> Tensor | None:
    """Return a copy of a weight [in, out] float32 in oneDNN's own memory layout; None if torch has no such kernel."""
    return _PACK(weight.transpose(0, 1), _PACKED_FOR) if _PACK and _LINEAR else None


def onednn_matmul(x: Tensor, weight: Tensor, packed: Tensor | None, plus: Tensor | None) -> Tensor:
    """Multiply float32 matrices [..., in] and [in, out] on a CPU with oneDNN, as torch.compile does.

    If torch has no such kernel, torch's own product is used, which calls MKL (:mod:`.cpu`).

    Args:
        packed: Result of :func:`onednn_pack` for the weight, or None. It changes no bit of the result.
        plus: [..., out] float32 to add to the product, or None.
    """
    if not _LINEAR:
        return x @ weight if plus is None else plus + x @ weight
    matrix = weight.transpose(0, 1) if packed is None else packed
    if plus is None:
        return _LINEAR.default(x, matrix, None, "none", [], "")
    return _LINEAR.binary(x, plus, matrix, None, "add")


def supports_half_matmul(dtype: torch.dtype) -> bool:
    """Return whether this CPU natively multiplies matrices of a dtype, bfloat16 or float16.

    Some CPUs support only one of the two dtypes.
    """
    names = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    is_supported = getattr(torch.ops.mkldnn, names[dtype], None)
    return is_supported is not None and bool(is_supported())


def int8_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """Return the product [M, out] int32 of int8 matrices on a GPU that supports it (:mod:`.quantised_matmul`).

    Args:
        x: [M, in] int8. M must be greater than 16; `in` and `out` must be multiples of 8.
        weight: [in, out] int8.
    """
    return torch._int_mm(x, weight)


def fp8_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """Return the product [M, out] float32 of float8_e4m3fn matrices on a GPU that supports it.

    Args:
        x: [M, in] float8_e4m3fn. `in` and `out` must be multiples of 16.
        weight: [in, out] float8_e4m3fn.
    """
    unscaled = torch.ones((), dtype=torch.float32, device=x.device)
    return torch._scaled_mm(x, weight, unscaled, unscaled, out_dtype=torch.float32)


def occupy_gpu(cycles: int = 4_000_000) -> None:
    """Let the current GPU wait, by default 2 ms, so that kernels launched meanwhile run directly after each other.

    If torch lacks the function, measured times include the time of launching.
    """
    sleep = getattr(torch.cuda, "_sleep", None)
    if sleep is not None:
        sleep(cycles)


def cuda_driver_version() -> int:
    """Return the CUDA version that the driver of the GPU supports, such as 13000; 0 if torch can't tell."""
    version = getattr(torch._C, "_cuda_getDriverVersion", None)
    return 0 if version is None else version()


def product_settings() -> list[str]:
    """Return the unusual settings of torch and cuBLAS that change the results or the times of products on a GPU.

    For example, ComfyUI's option `--fast` activates such settings. Other node packs change some of them while the
    process runs.
    """
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", "") or torch.get_float32_matmul_precision()  # first: since 2.9
    settings = {"TF32": precision in ("tf32", "high", "medium")}
    settings["accumulation in fp16"] = getattr(matmul, "allow_fp16_accumulation", False)  # since torch 2.7
    for kind in ("fp16", "bf16"):
        allowed = getattr(matmul, f"allow_{kind}_reduced_precision_reduction", True)
        settings[f"no reduced-precision sums in {kind}"] = allowed is not True
    library = getattr(torch.backends.cuda, "preferred_blas_library", lambda: "")()  # since torch 2.2
    name = str(library).rpartition(".")[2]
    settings[f"products by {name}"] = name not in ("", "Cublas", "Default")
    for name in ("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE"):
        settings[f"{name} = {variable(name)}"] = bool(variable(name))
    return [name for name, is_active in settings.items() if is_active]


def clear_cublas_workspaces() -> None:
    """Free the memory that cuBLAS has allocated for all streams. It allocates new memory at its next product."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # torch without CUDA lacks it
    if clear is not None:
        clear()


def far_attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute attention over far keys with an NVIDIA kernel that also returns the log-sum-exp of the scores.

    :mod:`.batch_invariance` defines far keys. torch's public attention function does not return the log-sum-exp. The
    kernel adds blocks of keys in the order of their cache positions. A block in which every key is masked does not
    change the result. If the kernel is missing, :func:`.batch_invariance.near_window` treats all keys as near.

    In the shapes, R is the number of rows of the batch, m the queries of a head, d the width of a head, and `end` the
    number of cache positions that the forward reads.

    Args:
        q: [R, heads, m, d] queries. Keys and values are [R, heads, end, d].
        mask: [R, 1, m, end] mask that is added to the scores.

    Returns:
        Output [R, heads, m, d] and log-sum-exp [R, heads, m].
    """
    mask = mask.expand(-1, q.shape[1], -1, -1)
    out, log_sum, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(q, keys, values, mask, True)
    return out, log_sum[..., : q.shape[2]]
