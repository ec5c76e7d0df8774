"""Tests of the counter for kernel launches and for operations after which the host waits."""

import pytest
import torch

from adt_core.app.op_counter import OpCounter

CPU = torch.device("cpu")


class OnDevice(torch.Tensor):
    """Tensor that reports a CUDA device, although its data is on the CPU."""

    @staticmethod
    def __new__(cls, numbers):
        made = torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=numbers.dtype, device="cuda")
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [value.numbers if isinstance(value, cls) else value for value in args]
        result = func(*plain, **(kwargs or {}))
        named = [value for value in (*args, *(kwargs or {}).values()) if isinstance(value, str | torch.device)]
        comes_to_host = CPU in map(torch.device, named) or not isinstance(args[0], cls)
        return cls(result) if isinstance(result, torch.Tensor) and not comes_to_host else result


READS = {
    "cpu": lambda seen: seen.cpu(),
    "to": lambda seen: seen.to("cpu"),
    "copy": lambda seen: torch.empty(2).copy_(seen),
    "item": lambda seen: seen.sum().item(),
    "if": lambda seen: bool(seen.sum() > 0),
}


@pytest.mark.parametrize("inference", [True, False], ids=["inference mode", "without"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_host_reads_count_as_one_wait(read, inference):
    """Rounds run in inference mode. In this mode, torch dispatches other operations."""
    with torch.inference_mode(inference):
        seen = OnDevice(torch.ones(2))
        with OpCounter() as counter:
            read(seen)
    assert counter.waits == 1


@torch.inference_mode()
def test_operations_on_the_device_do_not_wait():
    seen = OnDevice(torch.ones(2))
    with OpCounter() as counter:
        (seen + 1).double()
    assert counter.waits == 0 and counter.launches > 0
