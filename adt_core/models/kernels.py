"""Kernels of torch that have no public name, each with its replacement for versions of torch without it."""

from __future__ import annotations

import torch
from torch import Tensor

_LINEAR = torch.backends.mkldnn.is_available() and getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def onednn_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply float32 matrices on a CPU by oneDNN, as torch.compile does.

    If the kernel is missing, torch's public product is used: MKL's, which is slower with few rows.

    Args:
        x: Rows [N, in].
        weight: Weight [in, out].

    Returns:
        Product [N, out].
    """
    return _LINEAR.default(x, weight.t(), None, "none", [], "") if _LINEAR else x @ weight


def supports_half_matmul(dtype: torch.dtype) -> bool:
    """Return whether this CPU multiplies in bfloat16 or float16; it may support one of them without the other."""
    names = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    is_supported = getattr(torch.ops.mkldnn, names[dtype], None)
    return is_supported is not None and bool(is_supported())


def int8_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply int8 matrices on a GPU.

    If a library does not support it, weights are converted for each product; :mod:`.quantised_matmul` checks that.

    Args:
        x: Rows [M, in] int8; M is above 16, `in` and `out` are multiples of 8.
        weight: Weight [in, out] int8.

    Returns:
        Product [M, out] int32.
    """
    return torch._int_mm(x, weight)


def fp8_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply float8_e4m3fn matrices on a GPU.

    If a library does not support it, weights are converted for each product; :mod:`.quantised_matmul` checks that.

    Args:
        x: Rows [M, in] float8_e4m3fn; `in` and `out` are multiples of 16.
        weight: Weight [in, out] float8_e4m3fn.

    Returns:
        Product [M, out] float32.
    """
    unscaled = torch.ones((), dtype=torch.float32, device=x.device)
    return torch._scaled_mm(x, weight, unscaled, unscaled, out_dtype=torch.float32)


def reduced_precision_settings() -> list[str]:
    """Return the names of active settings that reduce the precision of a GPU's products, as ComfyUI's `--fast` does."""
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", "") or torch.get_float32_matmul_precision()  # before torch 2.9
    settings = {"TF32": precision in ("tf32", "high", "medium")}
    settings["accumulation in fp16"] = getattr(matmul, "allow_fp16_accumulation", False)  # since torch 2.7
    return [name for name, is_active in settings.items() if is_active]


def far_attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Attend to far keys by a kernel for NVIDIA's GPUs that also returns the log-sum-exp of the scores.

    The kernel adds keys block by block in the order of their columns, and blocks that are masked entirely do not change
    the result. torch's public attention does not return the log-sum-exp. If the kernel is missing, all keys count as
    near (:func:`.batch_invariance.near_window`).

    Args:
        q: Queries [R, heads, m, d].
        keys: Keys [R, heads, end, d].
        values: Values [R, heads, end, d].
        mask: Mask [R, 1, m, end], added to scores.

    Returns:
        Output [R, heads, m, d] and log-sum-exp [R, heads, m].
    """
    mask = mask.expand(-1, q.shape[1], -1, -1)
    out, log_sum, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(q, keys, values, mask, True)
    return out, log_sum[..., : q.shape[2]]
