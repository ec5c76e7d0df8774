"""Protection from settings of torch that other programs in this process have changed.

In ComfyUI, packs of many authors share one process. Some leave a default dtype, a default device or autocast behind,
and some replace `torch.nn.functional.scaled_dot_product_attention` by an approximation. Without protection, a codec
would compute in bfloat16, and images would change silently.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

_AUTOCAST = ("cpu", "cuda", "xpu", "mps")


@contextmanager
def own_torch_state() -> Iterator[None]:
    """Use torch's original default dtype and device, and no autocast, inside the block or the decorated function.

    Only settings that differ are changed: a default device slows down every call of torch.
    """
    dtype = torch.get_default_dtype()
    with ExitStack() as stack:
        if dtype != torch.float32:
            torch.set_default_dtype(torch.float32)
            stack.callback(torch.set_default_dtype, dtype)
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for kind in filter(_is_autocast, _AUTOCAST):
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _is_autocast(kind: str) -> bool:
    try:
        return torch.is_autocast_enabled(kind)
    except (TypeError, RuntimeError):  # older versions of torch take no argument, or don't know the device
        return kind == "cuda" and torch.is_autocast_enabled()
