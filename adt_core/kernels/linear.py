"""Product of few rows of activations and a quantised weight, with one order of additions for any number of rows.

Reading the weight takes most of the time of such a product. The kernel reads int8, fp8 and int4 weights as they are
stored, and converts them in registers. Other weights are multiplied by PyTorch, which reads them about as fast. Scale
and residual are applied before the result is rounded to the dtype of the activations.

The products of an element of the result are added in float32, in ascending order of the inputs, :data:`BLOCK_INPUTS` at
a time. The number of rows changes only how many rows and warps a program has. So a row has the same bits in every
product with the same weight, on all devices on which the trial confirms it.

In shapes, M is the number of rows of activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import is_out_of_memory
from ..models import int4
from ..models.config import QUANTISED
from ..runtime import cached_per_runtime
from . import choice
from .choice import Case, Trial
from .trials import ROUNDS, RoundRows, has_small_shared_memory, is_candidate, random_like

BLOCK_INPUTS = 128
"""Number of inputs that are added at a time. For int4 weights it is a group."""
GROUPS_AT_A_TIME = 2
"""Groups of an int4 weight that are processed at a time. They are added one by one."""
BLOCK_ROWS = (16, 32, 64, 128)  # numbers of rows that a program can compute
BLOCK_ROWS_HOPPER = (16, 32)
"""As :data:`BLOCK_ROWS`, on GPUs of compute capability 9.x to 11.x. From 64 rows on, Triton would use instructions for
larger matrices (wgmma, tcgen05), which add the inputs in another order than the instruction for 16 and 32 rows."""
BLOCK_INPUTS_TURING = 32
"""Maximum number of inputs that are added at a time on GPUs of compute capability 7.5, except for int4 weights. With
more, registers spill."""
SHARED_BYTES = 72 * 2**10
"""Shared memory that a program may use. At least two such programs run on a multiprocessor at a time. With only one
program, nothing is computed while the program begins and ends."""
SMALL_SHARED_BYTES = 49 * 2**10
"""As :data:`SHARED_BYTES`, on GPUs whose multiprocessors have 100 KB. The system needs 1 KB for each program."""
CONVERTED_BYTES = 64
"""Shared memory per output in which Triton converts int4 weights, as compiled by Triton 3.9."""
MAX_STAGES = 5  # maximum number of blocks of inputs that are processed or loaded at a time
STORED = {dtype: name for name, dtype in QUANTISED.items()}  # format of quantised weights, by dtype
TESTED_ROWS = (1, 2, 25, 32, 64, 128)  # numbers of rows whose results the trial compares
MIN_SPEEDUP = 1.1
"""As :attr:`.choice.Trial.min_speedup`. Without a margin, small differences of time would decide which image a seed
gives."""
TOLERANCE = {torch.bfloat16: 2**-6, torch.float16: 2**-8}
"""Largest allowed difference from PyTorch's product, relative to the largest result. Both results are rounded to the
dtype of the activations. PyTorch also rounds earlier: it rounds int4 weights after their conversion, and it rounds the
product before it adds the residual."""

Product = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""Function with the first four arguments of :func:`kernel` and the same result."""


class Blocks(NamedTuple):
    """Sizes of the blocks of a kernel. A program computes `rows` x `outputs` results with `warps` warps."""

    rows: int
    outputs: int
    inputs: int  # number of inputs that are added at a time
    warps: int
    stages: int  # number of blocks of inputs that are processed or loaded at a time

    @classmethod
    def of(cls, used_rows: int, outputs: int, x_dtype: torch.dtype, weight_dtype: torch.dtype, gpu: Gpu) -> Blocks:
        """Return the sizes for a product of activations and a stored weight."""
        rows = next((size for size in gpu.block_rows if size >= used_rows), gpu.block_rows[-1])
        is_int4 = weight_dtype == QUANTISED["int4"]
        # Without the exceptions, registers would spill. In a program of 32 x 32 results with int4 weights, Triton gives
        # all outputs to each warp.
        is_wide = outputs >= 64 * gpu.multiprocessors and rows < 128
        is_narrow = gpu.block_inputs == BLOCK_INPUTS_TURING
        width = 64 if (is_wide or is_int4 and rows == 32) and not is_narrow else 32
        inputs = int4.GROUP if is_int4 else gpu.block_inputs
        weight_bytes = inputs * width // 2 if is_int4 else inputs * width * weight_dtype.itemsize
        stage_bytes = (rows * inputs * x_dtype.itemsize + weight_bytes) * (GROUPS_AT_A_TIME if is_int4 else 1)
        pipelined = gpu.shared_bytes - (CONVERTED_BYTES * width if is_int4 else 0)
        stages = min(1 + pipelined // stage_bytes, MAX_STAGES)  # the last stage is in registers
        return cls(rows, width, inputs, 8 if rows == BLOCK_ROWS[-1] else 4, stages)


class Gpu(NamedTuple):
    """Properties of a device that determine the sizes of blocks."""

    multiprocessors: int
    block_inputs: int  # maximum number of inputs that are added at a time
    block_rows: tuple[int, ...]  # numbers of rows that a program can compute
    shared_bytes: int  # shared memory that a program may use

    @classmethod
    def of(cls, multiprocessors: int, capability: tuple[int, int]) -> Gpu:
        """Return the properties of a GPU with a compute capability."""
        block_inputs = BLOCK_INPUTS_TURING if capability < (8, 0) else BLOCK_INPUTS
        block_rows = BLOCK_ROWS_HOPPER if (9, 0) <= capability < (12, 0) else BLOCK_ROWS
        shared_bytes = SMALL_SHARED_BYTES if has_small_shared_memory(capability) else SHARED_BYTES
        return cls(multiprocessors, block_inputs, block_rows, shared_bytes)


@cached_per_runtime
def gpu_of(device: torch.device) -> Gpu:
    """Return the properties of a device. A CPU, on which Triton's interpreter runs, counts as a small GPU."""
    if device.type != "cuda":
        return Gpu.of(4, (8, 0))
    properties = torch.cuda.get_device_properties(device)
    return Gpu.of(properties.multi_processor_count, (properties.major, properties.minor))


def reference(x: Tensor, weight: Tensor, scale: Tensor, plus: Tensor | None = None) -> Tensor:
    """Compute :func:`kernel` with PyTorch's operations in float64, without overwriting `plus`. It is slow."""
    if weight.dtype == QUANTISED["int4"]:
        y = x.double() @ int4.unpack(weight, scale, torch.float64)[: x.shape[1]]
    else:
        y = x.double() @ weight.double() * scale.double()
    return (y if plus is None else y + plus.double()).to(x.dtype)


def kernel(
    x: Tensor, weight: Tensor, scale: Tensor, plus: Tensor | None = None, used_rows: int | None = None
) -> Tensor:
    """Multiply activations by a weight with the Triton kernel: [M, out] in the dtype of x.

    Args:
        x: [M, in] bfloat16 or float16, with contiguous rows.
        weight: [in, out] int8 or float8_e4m3fn with any strides, or packed int4 (:mod:`adt_core.models.int4`).
        scale: [out] float32 factors of an int8 or fp8 weight, or the scale of an int4 weight.
        plus: [M, out] contiguous values to add, in the dtype of x, or None. Overwritten with the result.
        used_rows: Number of rows to compute; all rows if None. The other rows of the result are undefined without
            `plus`, and those of `plus` otherwise.
    """
    num_rows, inputs = x.shape
    outputs = weight.shape[1]
    used_rows = num_rows if used_rows is None else used_rows
    y = x.new_empty(num_rows, outputs) if plus is None else plus
    # Triton 3.2 refuses pointers to fp8 numbers before compute capability 8.9.
    stored = weight.view(torch.uint8) if weight.dtype == QUANTISED["fp8"] else weight
    operands = x, stored, scale, y, y
    sizes = used_rows, inputs, outputs, x.stride(0), *weight.stride()
    blocks = Blocks.of(used_rows, outputs, x.dtype, weight.dtype, gpu_of(x.device))
    _launch(blocks, STORED[weight.dtype], operands, sizes, plus is not None)
    return y


def _launch(blocks: Blocks, stored: str, operands: tuple[Tensor, ...], sizes: tuple[int, ...], has_plus: bool) -> None:
    """Launch the kernel for a format of weights. `operands` and `sizes` are in the order of its arguments."""
    from triton import cdiv

    from .linear_triton import int4_kernel, linear_kernel

    used_rows, _, outputs, *_ = sizes
    grid = cdiv(used_rows, blocks.rows), cdiv(outputs, blocks.outputs)
    options = dict(
        DTYPE=choice.triton_dtype(operands[0].dtype),
        HAS_PLUS=has_plus,
        BLOCK_M=blocks.rows,
        BLOCK_N=blocks.outputs,
        num_warps=blocks.warps,
        num_stages=blocks.stages,
    )
    if stored == "int4":
        choice.launch(int4_kernel, grid, operands, *sizes, GROUP=blocks.inputs, **options)
    else:
        is_fp8 = stored == "fp8"
        choice.launch(linear_kernel, grid, operands, *sizes, IS_FP8=is_fp8, BLOCK_K=blocks.inputs, **options)


def uses_kernel(x: Tensor, weight: Tensor, scale: Tensor, plus: Tensor | None, alternative: Product) -> bool:
    """Return whether to compute a product with the kernel. The first call for a kind of weight runs a trial.

    The kernel is only used for quantised weights. Without quantisation, it is expected to be 0.85 to 1.05 times as fast
    as PyTorch, so a trial would choose by chance. The trial multiplies by the given weight, because random weights can
    hide differences between the numbers of rows.

    Args:
        alternative: Product that is used if the kernel is not chosen.
    """
    if weight.dtype not in STORED or x.dtype not in TOLERANCE or not is_candidate(x, weight.dtype == QUANTISED["int4"]):
        return False
    if x.stride(1) != 1 or plus is not None and not plus.is_contiguous():
        return False
    shape = weight.dtype, *weight.shape, weight.stride(), "no residual" if plus is None else "residual"
    return choice.uses_kernel("linear", x, shape, partial(_trial, x, weight, scale, plus is not None, alternative))


def _copies(weight: Tensor, scale: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return a weight with its scale, and copies of both that fill the L2 cache twice.

    A trial that multiplies by each in turn reads the weight from memory, as a forward pass over all layers does. If the
    memory is too small, there are fewer copies.
    """
    operands = [(weight, scale)]
    if not weight.is_cuda:
        return operands
    cache_bytes = torch.cuda.get_device_properties(weight.device).L2_cache_size
    try:
        for _ in range(2 * cache_bytes // weight.nbytes):
            operands.append((weight.clone(), scale.clone()))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    return operands


def _trial(x: Tensor, weight: Tensor, scale: Tensor, has_plus: bool, alternative: Product) -> Trial:
    most = max(TESTED_ROWS)
    rows = random_like(x, most, x.shape[1])
    residual = random_like(x, most, weight.shape[1], seed=1) if has_plus else None

    weights = cycle(_copies(weight, scale))

    def plus(part: slice) -> Tensor | None:
        return None if residual is None else residual[part].clone()

    def case(size: RoundRows) -> Case:
        part = slice(size.total)
        residuals = [plus(part) for _ in range(2)]
        return Case(
            lambda: kernel(rows[part], *next(weights), residuals[0], size.used)[: size.used],
            lambda: alternative(rows[part], *next(weights), residuals[1])[: size.used],
            size.weight,
        )

    def equal_results() -> Iterator[tuple[str, Tensor, Tensor]]:
        expected = kernel(rows, weight, scale, plus(slice(None)))
        for count in TESTED_ROWS:
            first = slice(count)
            last = slice(most - count, most)
            for part in first, last:
                y = kernel(rows[part], weight, scale, plus(part))
                yield f"{count} and {most} rows", y, expected[part]

    return Trial([case(size) for size in ROUNDS], TOLERANCE[x.dtype], equal_results, MIN_SPEEDUP)
