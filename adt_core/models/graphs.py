"""Small forwards that a GPU replays whole, as CUDA graphs.

A forward of a 7B model launches some 600 kernels, and Python takes longer to launch many of them than the GPU takes to
run them. A captured graph is launched at once. It needs no Triton, but fixed shapes and fixed memory. So tokens are
stretched to the next of a few sizes, cache columns to a multiple of COLUMNS, and what a forward reads is copied to
where its graph expects it. Each graph is compared with the eager forward as it is captured. If one differs, or the
driver refuses, everything goes on eagerly for the rest of the process, and a log line says so once.

No GPU has seen this yet, so it is only done where it is asked for.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import Check
from .cache import KVCache
from .layers import Rope
from .rows import Step

SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
"""Tokens of a captured forward; longer ones, such as prompts, are run eagerly."""
COLUMNS = 512
"""Cache columns are read in multiples of this: graphs stay few, and fast attention kernels can align the mask."""
CAPTURED_AT_USE = 2
"""A shape is captured when it comes up for this time: kernels are warm by then, and it will come again."""
SWITCH = "ADT_TREE_GRAPHS"
"""Environment variable; "1" switches graphs on."""

Recorder = Callable[[Callable[[], Tensor], Any], tuple[Callable[[], object], Tensor]]

refused: list[str] = []
"""Why graphs were given up in this process; empty while they were not."""


def record(run: Callable[[], Tensor], pool: Any, device: torch.device) -> tuple[Callable[[], object], Tensor]:
    """Capture the kernels that ``run`` launches. Returns what launches them again, and the tensor of the result.

    Other threads may use the device meanwhile. A capture that fails can leave its stream behind as the current one, so
    the stream is set back.
    """
    with torch.cuda.device(device):
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                result = run()
        finally:
            torch.cuda.set_stream(stream)
    return graph.replay, result


def wanted(device: torch.device) -> bool:
    """Are forwards on this device captured? Not with an allocator of CUDA's own, which knows no private pools."""
    return (
        device.type == "cuda"
        and os.environ.get(SWITCH) == "1"
        and not refused
        and torch.cuda.get_allocator_backend() == "native"
    )


def graphed(network: nn.Module, device: torch.device) -> nn.Module | Graphed:
    """A decoder or drafter as it is to be called on this device."""
    if not wanted(device):
        return network
    return Graphed(network, partial(record, device=device), torch.cuda.graph_pool_handle())


def stretched(step: Step, count: int, end: int, spare: int) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, slots and mask of the step with ``count`` tokens, which read ``end`` columns.

    Tokens that are added stand where the first one does and see what it sees, so that nothing in them is undefined;
    their keys and values go to the slot ``spare``, which nobody sees.
    """
    rows, n = step.positions.shape
    slots = step.slots
    if isinstance(slots, slice):
        slots = torch.arange(slots.start, slots.stop, device=step.positions.device).expand(rows, -1)
    mask = step.mask.new_full((rows, 1, count, end), -torch.inf)
    mask[:, :, :n, : step.end] = step.mask
    mask[:, :, n:, : step.end] = step.mask[:, :, :1]
    return repeat_first(step.positions, count), torch.cat([slots, slots.new_full((rows, count - n), spare)], 1), mask


def repeat_first(values: Tensor, count: int) -> Tensor:
    """values [R, n, ...] -> [R, count, ...]: its first entry stands in for those that are missing."""
    return torch.cat([values, values[:, :1].expand(-1, count - values.shape[1], *values.shape[2:])], 1)


class _Graph(NamedTuple):
    """A captured forward: the memory that it reads, what launches it, and where its result is."""

    inputs: list[Tensor]
    replay: Callable[[], object]
    result: Tensor

    def __call__(self, inputs: list[Tensor]) -> Tensor:
        """The result, until the next call of any graph of the same pool."""
        for mine, theirs in zip(self.inputs, inputs):
            mine.copy_(theirs)
        self.replay()
        return self.result


class Graphed:
    """Called as the network is, for one decoding: graphs hold on to its cache and know where the weights were."""

    def __init__(self, network: nn.Module, recorder: Recorder, pool: Any = None):
        self.network, self._recorder, self._pool = network, recorder, pool
        self._graphs: dict[tuple, _Graph] = {}
        self._met: Counter[tuple] = Counter()

    def __call__(self, *tokens: Tensor, step: Step, cache: KVCache, rope: Rope, check: Check | None = None) -> Tensor:
        """tokens: what the network reads of them, [R, n, ...] each: ids, and for a drafter features."""
        if check is not None:
            check()
        eager = partial(self.network, *tokens, step=step, cache=cache, rope=rope)
        n, slots = tokens[0].shape[1], cache.data.shape[4]
        if refused or n > SIZES[-1]:
            return eager()
        count, end = next(size for size in SIZES if size >= n), min(-(-step.end // COLUMNS) * COLUMNS, slots)
        weights = next(self.network.parameters())
        key = (count, end, len(tokens[0]), cache.data.data_ptr(), weights.data_ptr())
        self._met[key] += 1
        if self._met[key] < CAPTURED_AT_USE:
            return eager()
        inputs = [*(repeat_first(values, count) for values in tokens), *stretched(step, count, end, slots - 1)]
        if key not in self._graphs and not self._capture(key, inputs, cache, rope):
            return eager()
        return self._graphs[key](inputs)[:, :n].clone()  # the next replay writes over it

    def _forward(self, inputs: list[Tensor], cache: KVCache, rope: Rope) -> Tensor:
        return self.network(*inputs[:-3], step=Step(*inputs[-3:]), cache=cache, rope=rope)

    def _capture(self, key: tuple, inputs: list[Tensor], cache: KVCache, rope: Rope) -> bool:
        """Capture a shape; False if that doesn't work, and then nothing is captured any more."""
        try:
            eager, read = self._forward(inputs, cache, rope), [values.clone() for values in inputs]
            graph = _Graph(read, *self._recorder(partial(self._forward, read, cache, rope), self._pool))
            graph.result.fill_(torch.nan)  # only a replay brings it back
            if not torch.allclose(graph(inputs), eager, rtol=1e-3, atol=1e-3 * float(eager.abs().max())):
                raise RuntimeError("its result is not that of the eager forward")
        except RuntimeError as error:  # as the driver's errors are, and those of what can't be captured
            refused.append(str(error).split("\n")[0].rstrip("."))
            self._graphs.clear()
            warning = "No CUDA graphs, which costs speed but changes nothing else: %s."
            logging.getLogger(__name__).warning(warning, refused[0])
            return False
        self._graphs[key] = graph
        return True
