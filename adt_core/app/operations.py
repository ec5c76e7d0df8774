"""torch's operations as a GPU sees them: which launch work, and for which the host waits."""

from __future__ import annotations

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

READS = {"item", "_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2", "bincount"}
"""Operations for whose result the host waits. Inference mode shows some by other names: ``item`` whole, and ``to``."""
NO_WORK = {"empty", "empty_like", "empty_strided", "new_empty", "detach", "alias", "_unsafe_view", "_reshape_alias"}
NO_WORK |= {"lift_fresh", "is_same_size"}
"""Operations that launch nothing, beside views."""


def name_of(func) -> str:
    return func._schema.name.removeprefix("aten::")


def launches(func) -> bool:
    """Does the operation launch work on a device?"""
    aliases = (result.alias_info for result in func._schema.returns)
    is_view = any(alias is not None and not alias.is_write for alias in aliases)
    return not is_view and name_of(func) not in NO_WORK


class Ledger(TorchDispatchMode):
    """Counts in its block what the host launches, and how often it waits: for results, and for copies to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.waits = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.launches += launches(func)
        self.waits += name_of(func) in READS or _comes_to_host(func, args, result)
        return result


def _comes_to_host(func, args, result) -> bool:
    if (
        name_of(func) not in ("to", "_to_copy", "copy_")
        or not isinstance(result, Tensor)
        or result.device.type != "cpu"
    ):
        return False
    return any(isinstance(value, Tensor) and value.device.type != "cpu" for value in args)
