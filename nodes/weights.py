"""Weights of models under ComfyUI's memory management.

A decoder can run with a part of its weights on the GPU: the other layers are copied in each pass
(:mod:`..adt_core.models.streamed`). All other modules need all of their weights there.
"""

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import comfy.model_management as mm
import torch
from comfy.model_patcher import ModelPatcher

from ..adt_core import AdtError
from ..adt_core.errors import is_out_of_memory
from ..adt_core.memory_limit import memory_limit
from ..adt_core.messages import join, message
from ..adt_core.models import Decoder, streamed
from .comfy_runtime import tell

_WHOLE = mm.VRAMState.DISABLED, mm.VRAMState.SHARED
"""States of ComfyUI's memory management in which models are not loaded partially."""
Loaded = TypeVar("Loaded")
_EVERYTHING = 1e32
"""Bytes that are more than any device has. ComfyUI has the same number for models that it loads completely."""


class ADTTreeWeights(torch.nn.Module):
    """Wrapper of a module, which a ModelPatcher manages instead of the module.

    ModelPatcher sets attributes such as `device` on the object that it manages. With the wrapper, it does not change
    the module. ComfyUI's log shows the name of this class when the weights are loaded. For the arguments, see `manage`.

    Attributes:
        model_lowvram: Whether a part of the weights is in main memory. ModelPatcher reads it.
        model_loaded_weight_memory: Bytes of device memory for the weights. ModelPatcher reads it.
    """

    model_lowvram: bool = False
    model_loaded_weight_memory: int = 0

    def __init__(self, module: torch.nn.Module, title: str, remedy: str, decoders: Sequence[Decoder]):
        super().__init__()
        self.module = module
        self.title = title
        self.remedy = remedy
        self.decoders = decoders  # in a sequence, so that they are not registered as submodules
        # The engine's caches refer to the weights. Without the finalizer, weights that ComfyUI drops would stay on the
        # device until the next run of the garbage collector.
        for decoder in decoders:
            weakref.finalize(self, decoder.free_pool).atexit = False


class WeightsPatcher(ModelPatcher):
    """ModelPatcher that frees the engine's caches when ComfyUI unloads the weights, completely or partially.

    ComfyUI also calls `unpatch_model` before it loads weights that are on their device already. In this case,
    `unpatch_weights` is False, and the caches are kept.

    Attributes:
        beside: Patchers that are loaded in the same call of ComfyUI, and whose weights must fit too.
        keeps_layers: Whether layers that are loaded stay where they are, because a run needs no other memory.
    """

    beside: Sequence[ModelPatcher] = ()
    keeps_layers: bool = False

    def least_size(self) -> int:
        """Return the least bytes of device memory for the weights."""
        return self.model_size()

    def partially_load(self, device_to: torch.device, extra_memory: float = 0, *args, **kwargs) -> int:
        """Load all weights, even if ComfyUI grants less memory, and return the bytes that were loaded."""
        return super().partially_load(device_to, _EVERYTHING, *args, **kwargs)

    def unpatch_model(self, device_to: torch.device | None = None, unpatch_weights: bool = True) -> None:
        """Move the weights to `device_to`, usually the CPU."""
        if unpatch_weights:
            self._release()
        super().unpatch_model(device_to, unpatch_weights)

    def partially_unload(self, device_to: torch.device, memory_to_free: float = 0, *args, **kwargs) -> int:
        """Free memory of the device, first the engine's caches and then weights, and return the freed bytes."""
        freed = sum(decoder.pool_bytes for decoder in self.model.decoders)
        self._release()
        if freed >= memory_to_free:
            return freed
        return freed + self._unload(device_to, memory_to_free - freed, *args, **kwargs)

    def _unload(self, device_to: torch.device, memory_to_free: float, *args, **kwargs) -> int:
        return super().partially_unload(device_to, memory_to_free, *args, **kwargs)

    def _release(self) -> None:
        for decoder in self.model.decoders:
            decoder.free_pool()


class DecoderPatcher(WeightsPatcher):
    """ModelPatcher of a decoder, of which ComfyUI can load and unload single layers."""

    def least_size(self) -> int:
        is_whole = mm.is_device_cpu(self.load_device)
        return self.model_size() if is_whole else streamed.least_bytes(self.model.module)

    def partially_load(self, device_to: torch.device, extra_memory: float = 0, *args, **kwargs) -> int:
        """Load as many layers as fit, and return the bytes that were loaded.

        Args:
            extra_memory: Bytes that ComfyUI grants in addition to those in use, for all patchers of the call. If it is
                negative, layers are unloaded.
        """
        before = self.loaded_size()
        if extra_memory >= _EVERYTHING and mm.vram_state == mm.VRAMState.HIGH_VRAM:
            # ComfyUI asks for all weights, also if they don't fit (--highvram, --gpu-only).
            extra_memory = mm.get_free_memory(self.load_device) - mm.minimum_inference_memory()
        others = sum(max(other.model_size() - other.loaded_size(), 0) for other in self.beside)
        count = self._count(before + extra_memory - others)
        if not before or not self.keeps_layers and self._is_worthwhile(count):
            self._place(device_to, count)
            if not count:  # ComfyUI's own loading moves nothing more, but it also calls what is registered for it
                self.model.model_loaded_weight_memory = 0
                super().partially_load(device_to, _EVERYTHING, *args, **kwargs)
            self._tell()
        return self.loaded_size() - before

    def unpatch_model(self, device_to: torch.device | None = None, unpatch_weights: bool = True) -> None:
        if unpatch_weights and device_to is not None:
            streamed.place(self.model.module, device_to)
        super().unpatch_model(device_to, unpatch_weights)

    def _unload(self, device_to: torch.device, memory_to_free: float, *args, **kwargs) -> int:
        before = self.loaded_size()
        count = self._count(before - memory_to_free)
        if before and count > self._streamed:
            self._place(self.load_device, count)
        return before - self.loaded_size()

    def tell_expected(self, image: int, others: int) -> None:
        """Say which part of the weights will be streamed if no other model is on the device.

        Args:
            image: Bytes of device memory for decoding one image.
            others: Bytes of the weights that are loaded too.
        """
        if mm.is_device_cpu(self.load_device) or not mm.lowvram_available or mm.vram_state in _WHOLE:
            return
        work = max(mm.minimum_inference_memory(), image + mm.extra_reserved_memory())
        granted = mm.get_total_memory(self.load_device) - work - others
        count = self._count(0 if mm.vram_state == mm.VRAMState.NO_VRAM else granted)
        if count:
            seconds = streamed.fetch_seconds(self.model.module, count, self.load_device)
            tell(streamed.streamed_message(self.model.module, count, seconds), logging.INFO)

    def _tell(self) -> None:
        """Say which part of the weights is streamed, before a run."""
        stream = self.model.module.stream
        if stream is not None:
            share = streamed.streamed_message(self.model.module, len(stream), stream.expected_seconds)
            is_slow = mm.is_device_cuda(self.load_device) and not stream.pinned
            remark = message("weights.pageable") if is_slow else ""
            tell(join([share, remark]), logging.INFO, is_lasting=False)

    @property
    def _streamed(self) -> int:
        """Number of streamed layers at present."""
        stream = self.model.module.stream
        return 0 if stream is None else len(stream)

    def _count(self, granted: float) -> int:
        """Return how many layers to stream for the bytes that ComfyUI grants, even if these are less than the least."""
        decoder = self.model.module
        return streamed.streamed_count(decoder, max(granted, self.least_size())) or 0

    def _is_worthwhile(self, count: int) -> bool:
        """Return whether to move layers of loaded weights. For a single layer, the captured rounds are kept instead.

        ComfyUI computes the granted memory before each run from the free memory, which is never exactly the same.
        """
        return abs(count - self._streamed) > 1

    def _place(self, device: torch.device, count: int) -> None:
        decoder = self.model.module
        pinner = _ComfyPinner() if mm.MAX_PINNED_MEMORY > 0 else None
        try:
            streamed.place(decoder, device, count, pinner, overlap=mm.NUM_STREAMS > 0)
        except BaseException:
            self.detach()
            raise
        self.model.device = device
        self.model.model_lowvram = count > 0
        self.model.model_loaded_weight_memory = streamed.device_bytes(decoder, count)


class _ComfyPinner:
    """Pinner that uses ComfyUI's limit of pinned memory, and counts its memory there."""

    def pin(self, memory: torch.Tensor) -> bool:
        return mm.pin_memory(memory)

    def unpin(self, memory: torch.Tensor) -> None:
        mm.unpin_memory(memory)


def manage(module: torch.nn.Module, title: str, remedy: str, *decoders: Decoder) -> WeightsPatcher:
    """Put a module's weights under ComfyUI's memory management. Unused weights go back to where they are now.

    The result is based on ComfyUI's plain ModelPatcher. The newer, dynamic patcher requires layers of `comfy.ops`.

    Args:
        remedy: Advice in the error message if memory is too small, in the imperative.
        *decoders: Decoder of the target, if it owns caches of the engine that depend on these weights.
    """
    device = mm.get_torch_device()
    offload = next(module.parameters()).device
    weights = ADTTreeWeights(module, title, remedy, decoders)
    kind = DecoderPatcher if isinstance(module, Decoder) else WeightsPatcher
    return kind(weights, load_device=device, offload_device=offload)


def load_where_it_fits(load: Callable[[torch.device], Loaded]) -> Loaded:
    """Load weights where ComfyUI keeps unused weights, or in main memory if that is a GPU on which they don't fit.

    With `--highvram` and `--gpu-only`, ComfyUI keeps unused weights on the GPU.
    """
    device = mm.unet_offload_device()
    try:
        return load(device)
    except (MemoryError, RuntimeError) as error:
        if mm.is_device_cpu(device) or not is_out_of_memory(error):
            raise
    mm.soft_empty_cache()
    return load(torch.device("cpu"))


@contextmanager
def loaded(
    patchers: Sequence[WeightsPatcher], memory_required: int = 0, least: int | None = None
) -> Iterator[torch.device]:
    """Load weights on their device for the duration of the block.

    Args:
        patchers: Patchers of the weights. Error messages use the title and the remedy of the first patcher.
        memory_required: Bytes to free on the device in addition to the weights.
        least: Bytes that the run needs at least, in addition to the weights (default: `memory_required`).

    Yields:
        The device.

    Raises:
        AdtError: If the device has less memory than the least for the weights and `least`, or if its memory runs out in
            the block.
    """
    device = patchers[0].load_device
    needed = sum(patcher.least_size() for patcher in patchers) + (memory_required if least is None else least)
    is_limited = not mm.is_device_cpu(device) and not mm.is_directml_enabled()  # DirectML does not report its memory
    if is_limited and needed > mm.get_total_memory(device):
        raise _too_large("gpu.too_small", patchers[0], needed)
    held = sum(decoder.pool_bytes for decoder in {one for patcher in patchers for one in patcher.model.decoders})
    try:
        with _beside(patchers, keeps_layers=not memory_required):
            mm.load_models_gpu(
                list(patchers),
                memory_required=max(memory_required - held, 0),
                minimum_memory_required=max((memory_required if least is None else least) - held, 0),
            )
        yield device
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        mm.unload_all_models()  # as ComfyUI does for such an error
        for patcher in patchers:
            patcher.detach()  # ComfyUI loses track of loaded weights when loading others fails
        raise _too_large("gpu.ran_out", patchers[0], needed) from error


@contextmanager
def _beside(patchers: Sequence[WeightsPatcher], keeps_layers: bool) -> Iterator[None]:
    """Let each patcher leave memory for the weights of the others, which the same call of ComfyUI loads."""
    for patcher in patchers:
        patcher.keeps_layers = keeps_layers
        patcher.beside = [other for other in patchers if other is not patcher]
    try:
        yield
    finally:
        for patcher in patchers:
            patcher.beside = ()


def _too_large(key: str, patcher: ModelPatcher, needed: int) -> AdtError:
    """Return the error for weights that need more memory than the device has."""
    device = patcher.load_device
    weights = patcher.model
    total = memory_limit().bytes if mm.is_device_cpu(device) else mm.get_total_memory(device)
    sizes = {"needed": f"{needed / 2**30:.1f}", "total": f"{total / 2**30:.1f}"}
    return AdtError(key, title=weights.title, device=device, remedy=weights.remedy, **sizes)
