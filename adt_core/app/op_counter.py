"""torch's operations as a GPU sees them: which launch work, and for which the host waits."""

from __future__ import annotations

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SYNC_OPS = {"item", "_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2", "bincount"}
"""Operations for whose result the host waits. Inference mode shows some by other names: ``item`` whole, and ``to``."""
FREE_OPS = {"empty", "empty_like", "empty_strided", "new_empty", "detach", "alias", "_unsafe_view", "_reshape_alias"}
FREE_OPS |= {"lift_fresh", "is_same_size"}
"""Operations that launch nothing, beside views."""


def op_name(func) -> str:
    return func._schema.name.removeprefix("aten::")


def launches_work(func) -> bool:
    """Does the operation launch work on a device?"""
    aliases = (result.alias_info for result in func._schema.returns)
    is_view = any(alias is not None and not alias.is_write for alias in aliases)
    return not is_view and op_name(func) not in FREE_OPS


class OpCounter(TorchDispatchMode):
    """Counts in its block what the host launches, and how often it waits: for results, and for copies to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.waits = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.launches += launches_work(func)
        self.waits += op_name(func) in SYNC_OPS or _comes_to_host(func, args, result)
        return result


def _comes_to_host(func, args, result) -> bool:
    if (
        op_name(func) not in ("to", "_to_copy", "copy_")
        or not isinstance(result, Tensor)
        or result.device.type != "cpu"
    ):
        return False
    return any(isinstance(value, Tensor) and value.device.type != "cpu" for value in args)
