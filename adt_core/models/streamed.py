"""Weights that do not fit into the memory of their device: some layers are fetched during each pass.

The layers that fit stay on the device. Each of the others, a *streamed* layer, is stored in main memory. The device has
two buffers, each with the size of a layer. While a layer computes in one buffer, the next streamed layer is fetched
into the other. The order of arithmetic does not change, so the tokens are those of a model that fits.

A pass with streamed layers takes at least the time to fetch them, for one token as for the nodes of a large draft tree.

On a GPU, a second CUDA stream copies the layers. Events order both streams, so the host never waits, and a pass can be
captured as part of a CUDA graph. Such copies need page-locked ("pinned") memory.
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import cycle
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from ..errors import AdtError
from ..memory_limit import memory_limit, usable_bytes
from .cache import KVCache
from .layers import Decoder, Layer
from .target import Target

ALIGNMENT = 256
"""Alignment in bytes of each tensor in a buffer. Kernels read up to 128 bytes at a time."""
PAGE = 4096
"""Size in bytes of a page of main memory. Memory is pinned in complete pages."""
SLOWDOWN = 16.0
"""Estimate of the time to fetch a byte from main memory, divided by the time to read it from the memory of a GPU. It is
computed from published bandwidths: 15 for an RTX 3060 with PCIe 4.0 x16, 42 for an RTX 4090."""
WORK_BYTES = 2**29
"""Memory of a GPU for activations, captured rounds and workspaces, in bytes. It is an assumption."""
PROMPT_TOKENS = 512
"""Number of tokens of a prompt for which memory is kept beside streamed layers."""
_log = logging.getLogger(__name__)

Fetch = Callable[[int], object]
"""Function that writes the weights of a layer to buffer 0 or 1."""


class Lane(Protocol):
    """Worker that fetches layers in the order of the calls, while the caller computes."""

    def fetch(self, slot: int, fetch: Fetch) -> None:
        """Start to fetch a layer into a buffer, after everything that the caller has launched so far."""

    def wait(self, slot: int) -> None:
        """Let what the caller launches next wait until the buffer is complete."""


class CudaLane:
    """Lane that copies on a CUDA stream of its own. The stream has a high priority, because captures use the others."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device, priority=-1)
        self._complete = [torch.cuda.Event(), torch.cuda.Event()]

    def fetch(self, slot: int, fetch: Fetch) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            fetch(slot)
            self._complete[slot].record(self._stream)

    def wait(self, slot: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._complete[slot])


class ThreadLane:
    """Lane that fetches in another thread, for a CPU."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "adt-tree-layers")
        self._fetched: dict[int, Future] = {}

    def fetch(self, slot: int, fetch: Fetch) -> None:
        self._fetched[slot] = self._thread.submit(fetch, slot)

    def wait(self, slot: int) -> None:
        self._fetched[slot].result()


class LayerStream:
    """Streamed layers of a decoder, and the buffers in which they compute.

    Attributes:
        buffers: Two layers in the memory of the device.
        layer_bytes: Size of a layer.
        fetched_bytes: Bytes that each pass fetches.
        pinned: Whether the stored layers are in pinned memory, so that a pass can be captured.
        slowdown: Time to fetch a byte, divided by the time to read it from the device's memory, as measured.
    """

    def __init__(
        self,
        buffers: Sequence[nn.Module],
        layer_bytes: int,
        fetches: Mapping[nn.Module, Fetch],
        lane: Lane,
        pinned: bool = True,
    ):
        """Make the stream.

        Args:
            fetches: Function that fetches each streamed layer.
        """
        self.buffers = buffers
        self.layer_bytes = layer_bytes
        self.fetched_bytes = layer_bytes * len(fetches)
        self.pinned = pinned
        self.slowdown = SLOWDOWN
        self._fetches = fetches
        self._lane = lane

    def __len__(self) -> int:
        return len(self._fetches)

    def over(self, layers: Iterable[nn.Module]) -> Iterator[nn.Module]:
        """Yield layers in the order of a pass, ready to compute. A streamed layer is valid until the next one."""
        layers = list(layers)
        waiting = iter([layer for layer in layers if layer in self._fetches])
        for slot, layer in zip(range(2), waiting):
            self._lane.fetch(slot, self._fetches[layer])
        slots = cycle(range(2))
        for layer in layers:
            if layer not in self._fetches:
                yield layer
                continue
            slot = next(slots)
            self._lane.wait(slot)
            yield self.buffers[slot]
            following = next(waiting, None)
            if following is not None:
                self._lane.fetch(slot, self._fetches[following])


def spread(count: int, streamed: int) -> list[int]:
    """Return the indices of the streamed layers, evenly spread so that copies and computation overlap.

    The last layer is one of them: otherwise the layers after the last streamed one would compute without any copy.
    """
    # 8 layers, 3 streamed: 1, 4, 7
    return [(number + 1) * count // streamed - 1 for number in range(streamed)]


def layer_bytes(decoder: Decoder) -> int:
    """Return the size of one layer in a buffer, in bytes."""
    return sum(_padded(part.numel() * part.element_size()) for part in _parts(decoder.layers[0]).values())


def other_bytes(decoder: Decoder) -> int:
    """Return the bytes of the weights outside the layers, such as embedding and head."""
    return sum(part.numel() * part.element_size() for part in _parts(decoder).values())


def streamed_count(decoder: Decoder, room: int) -> int | None:
    """Return how many layers must be streamed so that the decoder's weights need at most `room` bytes.

    Returns:
        The number, 0 if all weights fit; None if `room` is less than the two buffers and the other weights.
    """
    size = layer_bytes(decoder)
    count = len(decoder.layers)
    left = room - other_bytes(decoder)
    if count * size <= left:
        return 0
    if left < 2 * size:
        return None
    return count - (left - 2 * size) // size


def check_main_memory(name: str, streamed_bytes: int, usable: int) -> None:
    """Check that the main memory is large enough for streamed layers.

    Args:
        name: Name of the model.
        usable: Bytes of main memory that the weights may use.

    Raises:
        AdtError: If it is too small.
    """
    if streamed_bytes > usable:
        needed, there = (f"{size / 2**30:.1f} GiB" for size in (streamed_bytes, usable))
        raise AdtError(
            f"{name} does not fit on the device, and the {needed} that stay in main memory are more than the {there} "
            f"that {memory_limit().owner} has for it; choose int8 or int4 weights, or a smaller model."
        )


@torch.inference_mode(False)
@torch.no_grad()
def place(decoder: Decoder, device: torch.device, streamed: int = 0, pin: bool = True) -> None:
    """Move the weights to a device, except for streamed layers, which go to main memory.

    Weights on the device "meta" become uninitialised weights. Graphs that were captured earlier are freed.

    Args:
        streamed: Number of streamed layers.
        pin: Whether to pin the main memory.
    """
    release(decoder)
    _move(decoder, device)
    chosen = set(spread(len(decoder.layers), streamed)) if streamed else set()
    for index, layer in enumerate(decoder.layers):
        if index not in chosen:
            _move(layer, device)
    if not chosen:
        return
    size = layer_bytes(decoder)
    flats = {}
    for index in sorted(chosen):
        flats[index] = _pages(size)
        _store(decoder.layers[index], flats[index])
    pinned = pin and device.type == "cuda" and _pin(flats.values())
    if pin and device.type == "cuda" and not pinned:
        _log.warning("Streamed weights are in pageable memory, so a pass takes about twice as long.")
    spaces = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2)]
    fetches = {decoder.layers[index]: partial(_copy, spaces, flat) for index, flat in flats.items()}
    lane = CudaLane(device) if device.type == "cuda" else ThreadLane()
    layer = cast(Layer, decoder.layers[min(chosen)])
    buffers = [_laid_out(layer, space) for space in spaces]
    stream = LayerStream(buffers, size, fetches, lane, pinned)
    if device.type == "cuda":
        stream.slowdown = _measured_slowdown(spaces, next(iter(flats.values())))
    if pinned:
        weakref.finalize(stream, _unpin, list(flats.values()), device)
    decoder.stream = stream


def allocate(target: Target, device: torch.device, device_memory: float | None = None) -> None:
    """Allocate the weights of a target that is on the device "meta". Layers that don't fit on a GPU are streamed.

    Args:
        device_memory: As in :func:`.load.load_target`.

    Raises:
        AdtError: If the device or the main memory is too small.
    """
    others = [module for module in (target.codec, target.text_encoder) if module is not None]
    for module in (target.decoder, *others):
        module.requires_grad_(False).eval()
    count = 0
    if device.type == "cuda":
        count = needed_count(target, free_bytes(device, device_memory))
        check_main_memory(target.name, count * layer_bytes(target.decoder), usable_bytes(memory_limit()))
    elif device_memory is not None and device_memory < math.inf:
        raise AdtError(
            f"`device_memory` is {device_memory / 2**30:g} GiB, but it limits a CUDA GPU and the device is {device}; "
            "remove it."
        )
    for module in others:
        module.to_empty(device=device)
    if count:
        place(target.decoder, device, count)
    else:
        target.decoder.to_empty(device=device)


def free_bytes(device: torch.device, limit: float | None = None) -> float:
    """Return the bytes of a GPU's memory that this process can still allocate; infinity for other devices.

    Args:
        limit: Bytes of the GPU's memory that this process may use in total (default: no limit).
    """
    if device.type != "cuda" or limit == math.inf:
        return math.inf
    allocated = torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - allocated
    return free if limit is None else min(free, limit - allocated)


def needed_count(target: Target, memory: float) -> int:
    """Return how many layers must be streamed to leave memory for the work on one image.

    Args:
        memory: Bytes of the device's memory for the weights and the work.

    Raises:
        AdtError: If the memory is too small even for two buffers and the weights outside the layers.
    """
    decoder = target.decoder
    parts = [p for m in (target.codec, target.text_encoder) if m is not None for p in (*m.parameters(), *m.buffers())]
    pixels = target.grid[0] * target.grid[1] * target.downsample**2
    cache = KVCache.num_bytes(decoder.config, 2, target.length + PROMPT_TOKENS, decoder.embedding.element_size())
    work = WORK_BYTES + cache + target.codec.working_bytes(pixels) + 2 * layer_bytes(decoder)  # the last: a drafter
    work += sum(part.numel() * part.element_size() for part in parts)
    if sum(part.numel() * part.element_size() for part in decoder.parameters()) + work <= memory:
        return 0
    count = streamed_count(decoder, int(memory) - work)
    if count is None:
        least = other_bytes(decoder) + 2 * layer_bytes(decoder) + work
        needed, there = (f"{size / 2**30:.1f} GiB" for size in (least, memory))
        raise AdtError(
            f"{target.name} needs at least {needed} on the device even if its layers are streamed, but {there} may be "
            "used; choose int8 or int4 weights, or a smaller model."
        )
    return count


def release(decoder: Decoder) -> None:
    """Free the buffers. Streamed layers stay in main memory, as plain weights. Captured graphs are freed first."""
    decoder.pooled_slots.clear()
    if decoder.stream is not None and decoder.embedding.device.type == "cuda":
        torch.cuda.synchronize(decoder.embedding.device)
    decoder.stream = None


def slowdown(decoder: Decoder, measured: bool = True) -> float:
    """Return how many times as long a plain round takes as if all layers were on the device; at least 1.

    Args:
        measured: Whether the bandwidths are the measured ones, and not :data:`SLOWDOWN`.
    """
    stream = decoder.stream
    if stream is None:
        return 1.0
    every = len(decoder.layers) * stream.layer_bytes + other_bytes(decoder)
    return max(1.0, (stream.slowdown if measured else SLOWDOWN) * stream.fetched_bytes / every)


# ---- memory ---------------------------------------------------------------------------------------------------------


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _parts(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module itself, without those of its submodules."""
    named = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    return dict(named)


def _set(module: nn.Module, name: str, tensor: Tensor) -> None:
    if name in module._buffers:
        module.register_buffer(name, tensor)
    else:
        module.register_parameter(name, nn.Parameter(tensor, requires_grad=False))


def _move(module: nn.Module, device: torch.device) -> None:
    """Move the tensors of a module itself to a device."""
    for name, part in _parts(module).items():
        if part.device != device:
            _set(module, name, torch.empty_like(part, device=device) if part.is_meta else part.detach().to(device))


def _slices(module: nn.Module, flat: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the name of each tensor of a layer, the tensor, and its place in flat memory."""
    first = 0
    for name, part in _parts(module).items():
        size = part.numel() * part.element_size()
        place = flat[first : first + size].view(part.dtype)
        yield name, part, place.as_strided(part.shape, part.stride(), place.storage_offset())
        first += _padded(size)


def _store(layer: nn.Module, flat: Tensor) -> None:
    """Move the tensors of a layer to flat memory."""
    for name, part, place in list(_slices(layer, flat)):
        if not part.is_meta:
            place.copy_(part)
        _set(layer, name, place)


def _laid_out(layer: Layer, flat: Tensor) -> Layer:
    """Return a layer like the given one, with its tensors in flat memory."""
    with torch.device("meta"):
        other = Layer(layer.config)
    for name, _, place in _slices(layer, flat):
        _set(other, name, place)
    return other.eval()


def _copy(spaces: Sequence[Tensor], flat: Tensor, slot: int) -> None:
    spaces[slot].copy_(flat, non_blocking=True)


def _pages(size: int) -> Tensor:
    """Return uninitialised main memory [size] uint8 that begins at a page and shares its pages with nothing else."""
    memory = torch.empty(-(-size // PAGE) * PAGE + PAGE, dtype=torch.uint8)
    first = -memory.data_ptr() % PAGE
    return memory[first : first + size]


def _pin(flats: Collection[Tensor]) -> bool:
    """Pin main memory that :func:`_pages` has allocated. If the system refuses, pin nothing and return False.

    The memory is registered with CUDA and not allocated by torch, which would round sizes up to powers of two.
    """
    pinned: list[Tensor] = []
    try:
        for flat in flats:
            code = int(torch.cuda.cudart().cudaHostRegister(flat.data_ptr(), -(-flat.numel() // PAGE) * PAGE, 0))
            if code:
                raise RuntimeError(f"CUDA error {code}")
            pinned.append(flat)
    except (RuntimeError, AttributeError, AssertionError) as error:
        _log.info("Main memory can't be pinned: %s", error)
        _unregister(pinned)
        return False
    return True


def _unpin(flats: Collection[Tensor], device: torch.device) -> None:
    with suppress(RuntimeError, AssertionError):
        torch.cuda.synchronize(device)
    _unregister(flats)


def _unregister(flats: Collection[Tensor]) -> None:
    """Make pinned memory pageable. Afterwards, clear CUDA's last error, which the next launch would raise."""
    with suppress(RuntimeError, AttributeError, AssertionError):
        for flat in flats:
            torch.cuda.cudart().cudaHostUnregister(flat.data_ptr())
    with suppress(RuntimeError, AssertionError):
        torch.zeros(1, device="cuda").add_(1)


def _measured_slowdown(spaces: Sequence[Tensor], flat: Tensor) -> float:
    """Return the time to copy a layer from main memory, divided by the time to read it from the device's memory."""

    def seconds(copy: Callable[[], object]) -> float:
        copy()
        torch.cuda.synchronize(spaces[0].device)
        began = time.perf_counter()
        copy()
        torch.cuda.synchronize(spaces[0].device)
        return time.perf_counter() - began

    from_host = seconds(partial(_copy, spaces, flat, 0))
    within = seconds(lambda: spaces[1].copy_(spaces[0])) / 2  # a copy on the device reads and writes
    return max(from_host / max(within, 1e-9), 1.0)
