"""What the doctor counts of a GPU's rounds: for which operations the host waits, and which are launches."""

import pytest
import torch

from adt_core.app.op_counter import OpCounter

CPU = torch.device("cpu")


class OnDevice(torch.Tensor):
    """A tensor that says it is a GPU's. Its numbers are the processor's."""

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
def test_the_host_waits_once_for_what_it_reads(read, inference):
    """torch shows operations by other names in inference mode, in which rounds run."""
    with torch.inference_mode(inference):
        seen = OnDevice(torch.ones(2))
        with OpCounter() as ledger:
            read(seen)
    assert ledger.waits == 1


@torch.inference_mode()
def test_it_does_not_wait_for_what_stays_on_the_device():
    seen = OnDevice(torch.ones(2))
    with OpCounter() as ledger:
        (seen + 1).double()
    assert ledger.waits == 0 and ledger.launches > 0
