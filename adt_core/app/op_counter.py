"""Counter of PyTorch operations that cost time on the host: they launch a kernel, or the host waits for their result.

An operation can be of both kinds.
"""

from __future__ import annotations

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SYNC_OPS = {"item", "_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2", "bincount"}
"""Names of ATen operations whose result the host must wait for. Copies to the host are not in this list.

Outside inference mode, PyTorch dispatches `item` as `_local_scalar_dense`, and `to` as `_to_copy`. In inference mode,
it dispatches `item` and `to` under their own names."""
FREE_OPS = {"empty", "empty_like", "empty_strided", "new_empty", "detach", "alias", "_unsafe_view", "_reshape_alias"}
FREE_OPS |= {"lift_fresh", "is_same_size"}
"""Names of ATen operations that launch no kernel. Views, which also launch no kernel, are not in this list."""


def op_name(func) -> str:
    """Return the name of an ATen operation without namespace and overload. For `aten.add.Tensor`, it is "add"."""
    return func._schema.name.removeprefix("aten::")


def launches_work(func) -> bool:
    """Return whether an operation, as `__torch_dispatch__` receives it, launches a kernel."""
    aliases = (result.alias_info for result in func._schema.returns)
    is_view = any(alias is not None and not alias.is_write for alias in aliases)
    return not is_view and op_name(func) not in FREE_OPS


class OpCounter(TorchDispatchMode):
    """Counter of the GPU operations in a `with` block.

    Attributes:
        launches: Number of operations that launch a kernel.
        waits: Number of operations whose result the host must wait for, including copies to the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches = 0
        self.waits = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.launches += launches_work(func)
        self.waits += op_name(func) in SYNC_OPS or _copies_to_host(func, args, result)
        return result


def _copies_to_host(func, args, result) -> bool:
    is_copy = op_name(func) in ("to", "_to_copy", "copy_")
    if not is_copy or not isinstance(result, Tensor) or result.device.type != "cpu":
        return False
    return any(isinstance(value, Tensor) and value.device.type != "cpu" for value in args)
