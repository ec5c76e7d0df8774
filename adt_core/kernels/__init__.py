"""Operations with a Triton kernel for NVIDIA GPUs and a reference in PyTorch's operations.

Each operation has two files, here for the operation `linear`:

- `linear.py` contains the contract, the reference, and the function that launches the kernel. The reference runs on
  every device.
- `linear_triton.py` contains the Triton kernel. It imports Triton, which some installations lack, so it may be imported
  only inside functions.

:mod:`.choice` decides for each device, dtype and shape whether the kernel is used. If not, the reference is used. The
reference of `linear` is an exception: decoding never uses it, because it is slow. PyTorch's product replaces this
kernel (:func:`..models.layers.product`).
"""
