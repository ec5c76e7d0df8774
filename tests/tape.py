"""Replacement for CUDA graphs on the CPU: records the operations of a round and executes them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adt_core.app.op_counter import SYNC_OPS, launches_work, op_name


def uploads(func, args) -> bool:
    """Return whether an operation copies host values into a tensor. For such a copy a GPU would synchronise.

    A single number doesn't count, because it is a constant of the kernel.
    """
    return op_name(func) == "lift_fresh" and args[0].dim() > 0


def is_missing_on_cuda(func, args, kwargs) -> bool:
    """Return whether an operation works on the CPU, but raises an error or gives another result on a GPU.

    Both cases were observed on an H100 with torch 2.11.
    """
    reduces_bool = op_name(func).startswith("scatter_reduce") and args[0].dtype == torch.bool
    out = kwargs.get("out")
    given = [value.dtype for value in args if isinstance(value, torch.Tensor)]
    return reduces_bool or out is not None and out.dtype not in given


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if op_name(func) in SYNC_OPS or uploads(func, args):
            raise RuntimeError(f"operation not permitted when stream is capturing: {op_name(func)}")
        if is_missing_on_cuda(func, args, kwargs or {}):
            raise NotImplementedError(f"CUDA does not {op_name(func)} such numbers")
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, result))
        return result


class Tape:
    """Recorder for :class:`adt_core.engine.graphs.Graphs`.

    A tape has the restrictions of a CUDA graph. Each replay reads and writes the same memory. Host values are
    constants. No operation may wait for the device.
    """

    survives_failure = True
    has_memory = True
    num_bytes = 0

    def __init__(self) -> None:
        self.captured = self.replayed = 0
        self.replaying = False

    def on_stream(self, run):
        return run()

    def __call__(self, run: Callable[[], object]) -> Callable[[], object]:
        with _Recording() as recording:
            run()
        self.captured += 1

        def replay() -> None:
            self.replayed += 1
            self.replaying = True
            try:
                _run_again(recording.operations)
            finally:
                self.replaying = False

        return replay


@torch.inference_mode()
def _run_again(operations: list[tuple]) -> None:
    """Execute recorded operations again. Results are written to the memory of the first execution."""
    for func, args, kwargs, result in operations:
        for old, new in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs))):
            if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                old.copy_(new)


class Ledger(TorchDispatchMode):
    """Counter of operations outside of replays: kernel launches, uploads to the device, and reads from the device."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape
        self.reset()

    def reset(self) -> None:
        self.launches = self.uploads = self.reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not self._tape.replaying:
            self.launches += launches_work(func)
            self.uploads += uploads(func, args)
            self.reads += op_name(func) in SYNC_OPS
        return func(*args, **(kwargs or {}))


@contextmanager
def counted(tape: Tape, monkeypatch) -> Iterator[Ledger]:
    """Yield an active ledger that also counts calls of `tolist`, which isn't dispatched as an operation on a CPU."""
    ledger = Ledger(tape)
    tolist = torch.Tensor.tolist

    def counting(tensor):
        ledger.reads += 1
        return tolist(tensor)

    with monkeypatch.context() as patch, ledger:
        patch.setattr(torch.Tensor, "tolist", counting, raising=False)
        yield ledger
