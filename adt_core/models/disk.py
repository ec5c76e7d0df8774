"""Layers for which there is no memory: each pass reads them again from the files of the model.

They have the buffers of streamed layers (:mod:`.streamed`). In the decoder, their tensors are on the device "meta".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import cast

import torch
from torch import nn

from ..errors import Check
from .layers import Decoder, Layer
from .reading.checkpoint import Checkpoint
from .reading.entries import Entry, fill
from .streamed import LayerStream, layer_bytes, make_buffers, make_lane
from .target import Target

Entries = Callable[[Target, Checkpoint], list[Entry]]
"""Function of a family that returns the entries of a target."""


@torch.no_grad()
def stream_from_files(target: Target, entries: Entries, checkpoint: Checkpoint, check: Check | None = None) -> None:
    """Let passes read those layers from the files that are on the device "meta". If there are none, do nothing.

    Args:
        check: Called before each tensor is read for the first time. It may raise an exception to cancel.

    Raises:
        AdtError: If a number in a file is not finite, or too large for the dtype of its parameter.
    """
    decoder = target.decoder
    layers = [layer for layer in decoder.layers if next(layer.parameters()).is_meta]
    if layers:
        device = decoder.embedding.device
        _, buffers = make_buffers(decoder, device, cast(Layer, layers[0]))
        fetches = _fetches(target, entries, checkpoint, layers, buffers)
        for fetch in fetches.values():
            fetch(0, check, checked=True)
        decoder.stream = LayerStream(buffers, layer_bytes(decoder), fetches, make_lane(device))


def _fetches(
    target: Target, entries: Entries, checkpoint: Checkpoint, layers: Sequence[nn.Module], buffers: Sequence[Layer]
) -> dict[nn.Module, partial[None]]:
    """Return the function that reads each layer.

    The entries of a layer fill its own tensors. Those of a target in which a buffer replaces all layers fill the buffer
    instead. Both lists have the same order.
    """
    by_slot = [entries(_with_layers(target, buffer), checkpoint) for buffer in buffers]
    own = {id(parameter): layer for layer in layers for parameter in layer.parameters()}
    numbers: dict[nn.Module, list[int]] = {layer: [] for layer in layers}
    for number, entry in enumerate(entries(target, checkpoint)):
        if id(entry.parameter) in own:
            numbers[own[id(entry.parameter)]].append(number)

    def fetch(mine: list[int], slot: int, check: Check | None = None, checked: bool = False) -> None:
        entries_of_layer = [by_slot[slot][number] for number in mine]
        fill(entries_of_layer, checkpoint, check, checked=checked)
        for entry in entries_of_layer:
            for name in entry.names:
                checkpoint[name].close()

    return {layer: partial(fetch, mine) for layer, mine in numbers.items()}


def _with_layers(target: Target, buffer: Layer) -> Target:
    """Return a target of which every layer is the buffer. All other weights are shared."""
    decoder: Decoder = copy(target.decoder)
    decoder._modules = {**decoder._modules, "layers": nn.ModuleList([buffer] * len(decoder.layers))}
    copied = copy(target)
    copied.decoder = decoder
    return copied
