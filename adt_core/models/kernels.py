"""Kernels of torch under private names, which may go with any version, and what takes the place of each."""

from __future__ import annotations

import torch
from torch import Tensor

_LINEAR = torch.backends.mkldnn.is_available() and getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def onednn_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x [N, in] times weight [in, out], float32 on a CPU, by oneDNN. torch.compile lives on it.

    Where it is missing, torch's public product takes its place: MKL's, which is slower with few rows.
    """
    return _LINEAR.default(x, weight.t(), None, "none", [], "") if _LINEAR else x @ weight


def supports_half_matmul(dtype: torch.dtype) -> bool:
    """Has this CPU products in bfloat16 or float16? Those that have one need not have the other."""
    known = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    asked = getattr(torch.ops.mkldnn, known[dtype], None)
    return asked is not None and bool(asked())


def int8_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """int8 x [M, in] times weight [in, out], in int32. M is above 16, in and out are multiples of 8.

    Where a library refuses it, weights are converted for each product (:mod:`.quantised_matmul` tries it first).
    """
    return torch._int_mm(x, weight)


def fp8_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """float8_e4m3fn x [M, in] times weight [in, out], in float32. in and out are multiples of 16.

    Where a library refuses it, weights are converted for each product (:mod:`.quantised_matmul` tries it first).
    """
    unscaled = torch.ones((), dtype=torch.float32, device=x.device)
    return torch._scaled_mm(x, weight, unscaled, unscaled, out_dtype=torch.float32)


def reduced_precision_settings() -> list[str]:
    """Settings of this process by which a GPU's products round more coarsely, such as ComfyUI's ``--fast``."""
    matmul = torch.backends.cuda.matmul
    coarse = getattr(matmul, "fp32_precision", "") or torch.get_float32_matmul_precision()  # before torch 2.9
    settings = {"TF32": coarse in ("tf32", "high", "medium")}
    settings["accumulation in fp16"] = getattr(matmul, "allow_fp16_accumulation", False)  # since torch 2.7
    return [name for name, on in settings.items() if on]


def far_attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Output [R, heads, m, d] and log-sum-exp [R, heads, m] of attention to far keys, by a kernel for NVIDIA's GPUs.

    q: [R, heads, m, d]. keys, values: [R, heads, end, d]. mask: [R, 1, m, end], added to the scores. The kernel goes
    through the keys block by block, in the order of their columns; a block that is masked changes nothing. torch's
    public attention does not give the log-sum-exp. Where the kernel is missing, all keys count as near
    (:func:`.batch_invariance.near_window` tries it first).
    """
    mask = mask.expand(-1, q.shape[1], -1, -1)
    out, log_sum, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(q, keys, values, mask, True)
    return out, log_sum[..., : q.shape[2]]
