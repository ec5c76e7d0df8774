"""Triton kernels of :mod:`.linear`.

Each program computes a block [BLOCK_M, BLOCK_N] of the product. It adds the products of BLOCK_K inputs at a time, or of
a group of inputs of an int4 weight, in ascending order. BLOCK_M and BLOCK_N do not change the order in which the
products of one element are added.

Arguments of both kernels:

- x: [num_rows, inputs] activations in DTYPE. The stride of its rows is `x_stride`; the numbers of a row are contiguous.
- weight: [inputs, outputs], or a packed int4 matrix; `stride_in` and `stride_out` are its strides. The kernels read the
  bits of fp8 as uint8.
- scale: The contiguous scale of the weight in float32. Of an int4 weight it is bfloat16, whose bits are read as int16.
- plus: [num_rows, outputs] contiguous values to add, if HAS_PLUS.
- y: [num_rows, outputs] contiguous result. It may be the same tensor as `plus`.
- used_rows: Number of rows to compute. The other rows of `x` are not read, and those of `y` are not written.

`used_rows` changes between forward passes, so Triton must not specialise machine code for its value.
"""

import triton
import triton.language as tl

from .pointer_triton import pointer


@triton.jit(do_not_specialize=["used_rows"])
def linear_kernel(
    x: "*i8", weight: "*i8", scale: "*i8", plus: "*i8", y: "*i8",
    used_rows, inputs, outputs, x_stride, stride_in, stride_out,
    DTYPE: tl.constexpr, IS_FP8: tl.constexpr, HAS_PLUS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Multiply by an int8 or fp8 weight."""
    x = pointer(x, DTYPE)
    weight = pointer(weight, tl.uint8 if IS_FP8 else tl.int8)
    scale = pointer(scale, tl.float32)
    rows, columns = _block(BLOCK_M, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x_block = x + rows.to(tl.int64)[:, None] * x_stride + k[None, :]
    weight_block = weight + columns.to(tl.int64)[None, :] * stride_out + k[:, None] * stride_in
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, inputs, BLOCK_K):
        is_input = k < inputs - start
        a = tl.load(x_block, (rows < used_rows)[:, None] & is_input[None, :], 0.0)
        b = tl.load(weight_block, (columns < outputs)[None, :] & is_input[:, None], 0)
        if IS_FP8:
            b = _fp8_to_float16(b)
        total = tl.dot(a, b.to(DTYPE), total, input_precision="ieee")
        x_block += BLOCK_K
        weight_block += BLOCK_K * stride_in
    factors = tl.load(scale + columns, columns < outputs, 0.0)
    total *= (factors * (256.0 if IS_FP8 else 1.0))[None, :]
    _store(total, plus, y, rows, columns, used_rows, outputs, DTYPE, HAS_PLUS)


@triton.jit(do_not_specialize=["used_rows"])
def int4_kernel(
    x: "*i8", weight: "*i8", scale: "*i8", plus: "*i8", y: "*i8",
    used_rows, inputs, outputs, x_stride, stride_in, stride_out,
    DTYPE: tl.constexpr, HAS_PLUS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Multiply by a weight in the format of :mod:`adt_core.models.int4`.

    The products of a group are added before they are multiplied by the group's step. So the weight is not rounded to
    the dtype of x. Steps and zero points are loaded two groups ahead, so that no group waits for them. Triton pipelines
    the other loads only if values are carried to the next iteration and no further, so an iteration adds two groups.
    """
    HALF: tl.constexpr = GROUP // 2
    rows, columns = _block(BLOCK_M, BLOCK_N)
    k = tl.arange(0, HALF)
    x_block = pointer(x, DTYPE) + rows.to(tl.int64)[:, None] * x_stride + k[None, :]
    weight = pointer(weight, tl.uint8)
    weight_block = weight + columns.to(tl.int64)[None, :] * stride_out + k[:, None] * stride_in
    scale = pointer(scale, tl.int16) + columns
    zero_points = tl.cdiv(inputs, GROUP) * outputs
    is_row = (rows < used_rows)[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    step_0, zero_point_0 = _load_scale(scale, zero_points, columns, outputs, inputs)
    step_1, zero_point_1 = _load_scale(scale + outputs, zero_points, columns, outputs, inputs - GROUP)
    for start in range(0, inputs, 2 * GROUP):
        left = inputs - start
        scale += 2 * outputs
        next_0, next_zero_0 = _load_scale(scale, zero_points, columns, outputs, left - 2 * GROUP)
        total = _add_group(total, x_block, weight_block, step_0, zero_point_0, k, left, is_row, columns, outputs, DTYPE)
        x_block += GROUP
        weight_block += HALF * stride_in
        left -= GROUP
        next_1, next_zero_1 = _load_scale(scale + outputs, zero_points, columns, outputs, left - 2 * GROUP)
        total = _add_group(total, x_block, weight_block, step_1, zero_point_1, k, left, is_row, columns, outputs, DTYPE)
        x_block += GROUP
        weight_block += HALF * stride_in
        step_0 = next_0
        step_1 = next_1
        zero_point_0 = next_zero_0
        zero_point_1 = next_zero_1
    _store(total, plus, y, rows, columns, used_rows, outputs, DTYPE, HAS_PLUS)


@triton.jit
def _block(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the rows and the columns of the program's block."""
    return tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)


@triton.jit
def _load_scale(scale, zero_points, columns, outputs, left):
    """Return the steps and zero points of a group as bits of bfloat16; 0 if the group has no inputs, so `left` <= 0."""
    exists = columns < tl.where(left > 0, outputs, 0)
    return tl.load(scale, exists, 0), tl.load(scale + zero_points, exists, 0)


@triton.jit
def _add_group(total, x, weight, step, zero_point, k, left, is_row, columns, outputs, DTYPE: tl.constexpr):
    """Return the sum of `total` and the products of a group. `left` inputs are left; there is no group if left <= 0."""
    packed = tl.load(weight, (columns < tl.where(left > 0, outputs, 0))[None, :], 0)
    low = tl.load(x, is_row & (k < left)[None, :], 0.0)
    high = tl.load(x + k.shape[0], is_row & (k < left - k.shape[0])[None, :], 0.0)
    zero = _level(_bfloat16_to_float32(zero_point).to(tl.int32), DTYPE)[None, :]
    part = tl.dot(low, _level(packed & 15, DTYPE) - zero, input_precision="ieee")
    part = tl.dot(high, _level(packed >> 4, DTYPE) - zero, part, input_precision="ieee")
    return tl.fma(part, tl.broadcast_to(_bfloat16_to_float32(step)[None, :], part.shape), total)


@triton.jit
def _level(level, DTYPE: tl.constexpr):
    """Return a level from 0 to 15 plus a power of two, in DTYPE.

    A level in the lowest bits of the significand needs no conversion. The difference of two results is exact.
    """
    if DTYPE == tl.float16:
        return (level.to(tl.int16) | 0x6400).to(DTYPE, bitcast=True)  # 1024 + level
    return (level.to(tl.int16) | 0x4300).to(DTYPE, bitcast=True)  # 128 + level


@triton.jit
def _bfloat16_to_float32(bits):
    """Convert bfloat16, given as int16. Triton 3.2 has no such conversion for compute capability 7.5."""
    return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def _fp8_to_float16(bits):
    """Return numbers in float8_e4m3fn, given as uint8, divided by 256.

    The exponent bias of float16 is larger by 8. So shifting the bits to the positions of float16 divides by 2 ** 8,
    also for subnormal numbers.
    """
    sign = (bits & 0x80).to(tl.uint16) << 8
    rest = (bits & 0x7F).to(tl.uint16) << 7
    return (sign | rest).to(tl.float16, bitcast=True)


@triton.jit
def _store(total, plus, y, rows, columns, used_rows, outputs, DTYPE: tl.constexpr, HAS_PLUS: tl.constexpr):
    """Add a block of `plus` to a block of the product, and store the sum. It is rounded once."""
    places = rows.to(tl.int64)[:, None] * outputs + columns[None, :]
    is_inside = (rows < used_rows)[:, None] & (columns < outputs)[None, :]
    if HAS_PLUS:
        plus = pointer(plus, DTYPE)
        total += tl.load(plus + places, is_inside, 0.0).to(tl.float32)
    tl.store(pointer(y, DTYPE) + places, total.to(DTYPE), is_inside)
