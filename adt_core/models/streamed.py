"""Weights that do not fit into the memory of their device: some layers are fetched during each pass.

The layers that fit stay on the device. Each of the others, a *streamed* layer, is stored in main memory. The device has
two buffers, each with the size of a layer. While a layer computes in one buffer, the next streamed layer is fetched
into the other. The order of arithmetic does not change, so the tokens are those of a model that fits.

A pass with streamed layers takes at least the time to fetch them, for one token as for the nodes of a large draft tree.

On a GPU, a second CUDA stream copies the layers. Events order both streams, so the host never waits, and a pass can be
captured as part of a CUDA graph. Such copies need page-locked ("pinned") memory.
"""

from __future__ import annotations

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

from ..messages import Message, message
from .layers import Decoder, Layer
from .pinned import CudaPinner, Pinner, pages, pin_all, unpin_all

ALIGNMENT = 256
"""Alignment in bytes of each tensor in a buffer. Kernels read up to 128 bytes at a time."""
SLOWDOWN = 16.0
"""Estimate of the time to fetch a byte from main memory, divided by the time to read it from the memory of a GPU. It is
computed from published bandwidths: 15 for an RTX 3060 with PCIe 4.0 x16, 42 for an RTX 4090."""

BANDWIDTH = 24e9  # bytes per second from pinned main memory to a GPU with PCIe 4.0 x16, a published figure
PROBE_BYTES = 2**26  # bytes that are copied to measure a bandwidth

Fetch = Callable[[int], object]  # function that writes the weights of a layer to buffer 0 or 1


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


class OrderedLane:
    """Lane that copies between the computations of a GPU, without overlap."""

    def fetch(self, slot: int, fetch: Fetch) -> None:
        fetch(slot)

    def wait(self, slot: int) -> None:
        pass


class LayerStream:
    """Streamed layers of a decoder, and the buffers in which they compute.

    Attributes:
        buffers: Two layers in the memory of the device.
        layer_bytes: Size of a layer.
        fetched_bytes: Bytes that each pass fetches.
        pinned: Whether the stored layers are in pinned memory, so that a pass can be captured.
        seconds: Measured time to fetch all streamed layers in seconds; None if it was not measured.
        slowdown: Time to fetch a byte, divided by the time to read it from the device's memory, as measured.
        close: Function that makes the main memory pageable. It has no effect after the first call.
    """

    pinned: bool = False
    seconds: float | None = None
    slowdown: float = SLOWDOWN

    def __init__(self, buffers: Sequence[nn.Module], layer_bytes: int, fetches: Mapping[nn.Module, Fetch], lane: Lane):
        """Make the stream. ``fetches`` has the function that fetches each streamed layer."""
        self.buffers = buffers
        self.layer_bytes = layer_bytes
        self.fetched_bytes = layer_bytes * len(fetches)
        self.close: Callable[[], object] = bool
        self._fetches = fetches
        self._lane = lane

    def __len__(self) -> int:
        return len(self._fetches)

    @property
    def expected_seconds(self) -> float:
        """Time to fetch all streamed layers in seconds, which is an estimate if it was not measured."""
        return self.seconds or self.fetched_bytes / BANDWIDTH

    def measure(self, fetch: Callable[[], object], copy: Callable[[], object], device: torch.device) -> None:
        """Measure the time of a pass and the slowdown on a GPU.

        ``fetch`` copies a layer from main memory, and ``copy`` one within the memory of the device.
        """
        from_host = _seconds(fetch, device)
        within = _seconds(copy, device) / 2  # a copy on the device reads and writes
        self.seconds = from_host * len(self)
        self.slowdown = max(from_host / max(within, 1e-9), 1.0)

    def fetched(self, layer: nn.Module) -> nn.Module:
        """Return a layer, ready to compute until the next pass."""
        if layer not in self._fetches:
            return layer
        self._lane.fetch(0, self._fetches[layer])
        self._lane.wait(0)
        return self.buffers[0]

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
    return sum(_padded(part.nbytes) for part in _parts(decoder.layers[0]).values())


def other_bytes(decoder: Decoder) -> int:
    """Return the bytes of the weights outside the layers, such as embedding and head."""
    return sum(part.nbytes for part in _parts(decoder).values())


def device_bytes(decoder: Decoder, streamed: int) -> int:
    """Return the bytes of device memory for the weights and the buffers if a number of layers is streamed."""
    kept = len(decoder.layers) - streamed + (2 if streamed else 0)
    return other_bytes(decoder) + kept * layer_bytes(decoder)


def least_bytes(decoder: Decoder) -> int:
    """Return the least bytes of device memory with which the decoder can run."""
    return min(device_bytes(decoder, 0), device_bytes(decoder, len(decoder.layers)))


def streamed_count(decoder: Decoder, room: float) -> int | None:
    """Return how many layers must be streamed so that the decoder's weights need at most `room` bytes.

    If even the least number of bytes is more than `room`, return None.
    """
    if device_bytes(decoder, 0) <= room:
        return 0
    left = room - device_bytes(decoder, len(decoder.layers))
    return None if left < 0 else len(decoder.layers) - int(left // layer_bytes(decoder))


@torch.inference_mode(False)
@torch.no_grad()
def place(
    decoder: Decoder,
    device: torch.device,
    streamed: int = 0,
    pinner: Pinner | None = CudaPinner(),
    overlap: bool = True,
) -> None:
    """Move the weights to a device, except for streamed layers, which go to main memory.

    Weights on the device "meta" become uninitialised weights. Graphs that were captured earlier are freed.

    Args:
        streamed: Number of streamed layers.
        pinner: Pinner of the main memory; None for pageable memory.
        overlap: Whether a GPU copies a layer while it computes another.
    """
    release(decoder)
    # Layers leave the device before others enter it, because the memory for both may be too small.
    flats = {index: _stored(decoder, index) for index in (spread(len(decoder.layers), streamed) if streamed else ())}
    move(decoder, device, flats)
    if flats:
        decoder.stream = _stream(decoder, device, flats, pinner, overlap)


def move(decoder: Decoder, device: torch.device, left_out: Collection[int]) -> None:
    """Move all weights to a device, except for some layers. Weights on the device "meta" become uninitialised."""
    _move(decoder, device)
    for index, layer in enumerate(decoder.layers):
        if index not in left_out:
            _move(layer, device)
            if device.type != "cpu":
                decoder.flats.pop(index, None)


def make_buffers(decoder: Decoder, device: torch.device, pattern: Layer) -> tuple[list[Tensor], list[Layer]]:
    """Return two buffers as flat memory, and as layers with the shapes and strides of the pattern."""
    spaces = [torch.empty(layer_bytes(decoder), dtype=torch.uint8, device=device) for _ in range(2)]
    return spaces, [_laid_out(pattern, space) for space in spaces]


def make_lane(device: torch.device, overlap: bool = True) -> Lane:
    """Return the lane of a device."""
    if device.type == "cpu":
        return ThreadLane()
    return CudaLane(device) if device.type == "cuda" and overlap else OrderedLane()


def _stream(
    decoder: Decoder, device: torch.device, flats: Mapping[int, Tensor], pinner: Pinner | None, overlap: bool
) -> LayerStream:
    """Return the stream of layers in main memory, after pinning it."""
    spaces, buffers = make_buffers(decoder, device, cast(Layer, decoder.layers[min(flats)]))
    fetches = {decoder.layers[index]: partial(_copy, spaces, flat) for index, flat in flats.items()}
    stream = LayerStream(buffers, layer_bytes(decoder), fetches, make_lane(device, overlap))
    if device.type == "cuda":
        memories = list(flats.values())
        stream.pinned = pinner is not None and pin_all(pinner, memories, device)
        if pinner is not None and stream.pinned:
            stream.close = weakref.finalize(stream, unpin_all, pinner, memories, device)
        stream.measure(partial(_copy, spaces, memories[0], 0), partial(_copy, spaces, spaces[1], 0), device)
    return stream


def release(decoder: Decoder) -> None:
    """Free the buffers. Streamed layers stay in main memory, as plain weights. Captured graphs are freed first."""
    decoder.free_pool()
    stream = decoder.stream
    decoder.stream = None
    if stream is not None:
        if decoder.embedding.device.type == "cuda":
            torch.cuda.synchronize(decoder.embedding.device)
        stream.close()


def host_bandwidth(device: torch.device) -> float:
    """Return the bytes per second that a device copies from main memory; measured on CUDA, else :data:`BANDWIDTH`."""
    if device.type != "cuda":
        return BANDWIDTH
    source = torch.empty(PROBE_BYTES, dtype=torch.uint8)
    with suppress(RuntimeError):
        source = source.pin_memory()
    space = torch.empty_like(source, device=device)
    return PROBE_BYTES / max(_seconds(lambda: space.copy_(source, non_blocking=True), device), 1e-9)


def fetch_seconds(decoder: Decoder, count: int, device: torch.device) -> float:
    """Return the time to fetch a number of layers for each pass in seconds; see :func:`host_bandwidth`."""
    return count * layer_bytes(decoder) / host_bandwidth(device)


def streamed_message(decoder: Decoder, count: int, seconds: float) -> Message:
    """Return the message that a number of layers is streamed, which takes some seconds per pass."""
    total = device_bytes(decoder, 0)
    resident = total - count * layer_bytes(decoder)
    sizes = {"resident": f"{resident / 2**30:.1f}", "total": f"{total / 2**30:.1f}"}
    return message("weights.streamed", **sizes, seconds=f"{float(f'{seconds:.1g}'):g}")


def named_tensors(decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and values of all parameters and then all buffers, in the order of `named_parameters`.

    A tensor of a streamed layer is valid until the next one.
    """
    for named in (decoder.named_parameters, decoder.named_buffers):
        running: Iterator[nn.Module] = iter(())
        current = -1
        for name, tensor in named():
            if name.startswith("layers."):
                _, index, name_in_layer = name.split(".", 2)
                running = iter(decoder.running_layers()) if current < 0 else running
                while current < int(index):
                    layer = next(running)
                    current += 1
                tensor = _parts(layer)[name_in_layer]
            yield name, tensor


def held_bytes(decoder: Decoder) -> int:
    """Return the bytes of memory for weights and buffers, without layers that are read from files."""
    parts = (part for part in (*decoder.parameters(), *decoder.buffers()) if not part.is_meta)
    buffers = 2 * decoder.stream.layer_bytes if decoder.stream is not None else 0
    return sum(part.nbytes for part in parts) + buffers


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


def _stored(decoder: Decoder, index: int) -> Tensor:
    """Return the flat main memory of a layer, after moving the tensors of the layer there if they are elsewhere."""
    layer = decoder.layers[index]
    flat = decoder.flats.get(index)
    if flat is None or next(iter(_parts(layer).values())).data_ptr() != flat.data_ptr():
        flat = pages(layer_bytes(decoder))
        for name, part, place in list(_slices(layer, flat)):
            if not part.is_meta:
                place.copy_(part)
            _set(layer, name, place)
        decoder.flats[index] = flat
    return flat


def _laid_out(layer: Layer, flat: Tensor) -> Layer:
    """Return a layer like the given one, with its tensors in flat memory."""
    with torch.device("meta"):
        other = Layer(layer.config)
    for name, _, place in _slices(layer, flat):
        _set(other, name, place)
    return other.eval()


def _copy(spaces: Sequence[Tensor], flat: Tensor, slot: int) -> None:
    spaces[slot].copy_(flat, non_blocking=True)


def _seconds(copy: Callable[[], object], device: torch.device) -> float:
    """Return the time of the second of two copies in seconds."""
    copy()
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    copy()
    torch.cuda.synchronize(device)
    return time.perf_counter() - began
