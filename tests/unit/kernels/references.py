"""References that take the place of Triton kernels, and of a kernel of torch that CPUs lack."""

from adt_core.kernels import attend, gate, linear, norm
from adt_core.kernels.attend_trial import Operands

NUM_OPERANDS = {gate: 2, linear: 4, norm: 4}
"""Number of arguments of the reference, if the kernel has one more: the number of used rows."""


def float64_kernel(q, keys, values, mask):
    """Replacement for :func:`adt_core.models.torch_private.far_attention`, which CPUs lack."""
    scores = q.double() @ keys.double().mT * q.shape[-1] ** -0.5 + mask.double()
    return scores.softmax(-1) @ values.double(), scores.logsumexp(-1)


def as_kernel(module, *given):
    """Compute the reference of an operation in all rows, with the arguments of its kernel."""
    if module is attend:
        given = Operands(*given).for_reference()
    return module.reference(*given[: NUM_OPERANDS.get(module)])
