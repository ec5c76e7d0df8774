"""Conversion of the addresses that all Triton kernels of this package get."""

import triton
import triton.language as tl


@triton.jit
def pointer(address, DTYPE: tl.constexpr):
    """Return the pointer to elements of DTYPE at an address that is a multiple of 16.

    The launcher passes a tensor or an integer (:func:`.choice.pointers`). Triton 3.2 and 3.3 know nothing about the
    alignment of such an integer, and would read single bytes.
    """
    return tl.multiple_of(address.to(tl.pointer_type(DTYPE)), 16)
