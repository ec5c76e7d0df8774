"""What the nodes need from ComfyUI while they run: memory management, cancelling, progress and previews."""

import gc
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import comfy.memory_management
import comfy.model_management as mm
import comfy.utils
import torch
from comfy.cli_args import LatentPreviewMethod, args
from comfy.model_patcher import ModelPatcher
from PIL import Image
from server import PromptServer

from ..adt_core.engine.pool import held_bytes, release
from ..adt_core.errors import AdtError, is_out_of_memory, one_line
from .decoration import decorating

_AMPLE = 128 * 2**30
"""While so many bytes of RAM are free, ComfyUI's cache keeps results of earlier prompts as well."""

check_cancelled = mm.throw_exception_if_processing_interrupted
"""Raises ComfyUI's own exception once the user has pressed Cancel; in newer versions it is a BaseException. The engine
takes this function as ``check`` and catches nothing that it raises."""


def refusal(make: Callable, **values) -> bool | str:
    """What ``validate_inputs`` answers: True, or the reason for which ``make`` refuses these values.

    An input that is linked or missing is None here and is not checked; where ``make`` can't do without it, nothing is.
    ComfyUI itself checks the bounds of numbers, and then names the one input that is wrong; this answer counts for all
    inputs that ``validate_inputs`` has.
    """
    given = {name: value for name, value in values.items() if value is not None}
    try:
        signature(make).bind(**given)
    except TypeError:
        return True
    try:
        make(**given)
    except AdtError as error:
        return str(error)
    return True


def watched() -> str | None:
    """The browser tab that queued the prompt; None if it was queued without a browser."""
    return getattr(getattr(PromptServer, "instance", None), "client_id", None)


def wants_previews() -> bool:
    """Does the server send previews, or does somebody watch in a browser who has not chosen to see none?

    The server's own setting is off unless an option switches it on, and few know that it exists.
    """
    if args.preview_method != LatentPreviewMethod.NoPreviews:
        return True
    if watched() is None:
        return False
    (_, _, _, extra_data, *_), *_ = PromptServer.instance.prompt_queue.currently_running.values()
    return extra_data.get("preview_method") != LatentPreviewMethod.NoPreviews.value


def prompt_id() -> str | None:
    """Of the prompt that runs; None where ComfyUI's own loop does not run it."""
    return getattr(PromptServer.instance, "last_prompt_id", None)


def show_images(node_id: str, saved: Sequence[Mapping[str, Any]]) -> None:
    """Show images that are finished on a node that goes on, in the tab that queued the prompt.

    saved: for each what ``/view`` needs to find it. A preview would hide them, even after the run.
    """
    tab = watched()
    if tab is not None:
        shown = {"node": node_id, "display_node": node_id, "output": {"images": list(saved)}, "prompt_id": prompt_id()}
        PromptServer.instance.send_sync("executed", shown, tab)


class ADTTreeWeights(torch.nn.Module):
    """Holds a module for a ModelPatcher, which sets attributes such as ``device`` on what it manages.

    ComfyUI's log names this class when the weights are loaded. title, remedy, decoder: see :func:`manage`.
    """

    def __init__(self, module: torch.nn.Module, title: str, remedy: str, decoder: torch.nn.Module):
        super().__init__()
        self.module = module
        self.title, self.remedy = title, remedy
        self.decoder = [decoder]  # in a list, so that its weights don't count as this module's
        # What the engine keeps holds the weights, so those that ComfyUI drops would stay on the card until Python looks
        # for cycles.
        weakref.finalize(self, release, decoder).atexit = False


class WeightsPatcher(ModelPatcher):
    """Frees what the engine keeps beside the weights when ComfyUI takes the weights away, in whole or in part.

    ComfyUI also calls ``detach`` and ``unpatch_model`` before every load, for weights that stay where they are
    (``unpatch_weights`` is False then). What is kept stays with them.
    """

    def unpatch_model(self, device_to: torch.device | None = None, unpatch_weights: bool = True) -> None:
        """Move the weights to ``device_to``, usually the CPU."""
        if unpatch_weights:
            release(self.model.decoder[0])
        super().unpatch_model(device_to, unpatch_weights)

    def partially_unload(self, device_to: torch.device, memory_to_free: int = 0, *args, **kwargs) -> int:
        """Free so many bytes of the device: first what is kept, then weights. Returns the bytes that this gave."""
        freed = held_bytes(self.model.decoder[0])
        release(self.model.decoder[0])
        if freed >= memory_to_free:
            return freed
        return freed + super().partially_unload(device_to, memory_to_free - freed, *args, **kwargs)


def manage(module: torch.nn.Module, title: str, remedy: str, decoder: torch.nn.Module | None = None) -> WeightsPatcher:
    """Put a module's weights under ComfyUI's memory management.

    title: what the user calls them. remedy: what to do if memory is too small, as an order. decoder: the target's;
    the engine's caches that depend on these weights belong to it. The module itself unless given.
    The newer, dynamic ModelPatcher only works with layers of ``comfy.ops``, so this is made from the plain one.
    """
    device, offload = mm.get_torch_device(), mm.unet_offload_device()
    weights = ADTTreeWeights(module, title, remedy, decoder or module)
    return WeightsPatcher(weights, load_device=device, offload_device=offload)


def tell(text: str, level: int = logging.WARNING) -> None:
    """Show a line of text under the node that runs, and in the log. It may quote what can't be printed."""
    text = one_line(text)
    logging.log(level, "ADT-Tree: %s", text)
    tab = watched()
    if tab is not None and PromptServer.instance.last_node_id is not None:
        PromptServer.instance.send_progress_text(text, PromptServer.instance.last_node_id, tab)


def drop_unused_results() -> None:
    """Let ComfyUI's cache forget what earlier prompts made and this one has no use for, such as another model.

    So there is no time at which RAM holds both the old model and the new one, and the old one is not copied there from
    the card to make room. Older versions of ComfyUI, and newer ones with ``--cache-classic``, forget such results
    before a prompt begins. Newer ones forget them after every node, which is late for a node that loads a model. What
    the prompt can still ask for stays.
    """
    forget = getattr(comfy.memory_management, "extra_ram_release", None)
    if forget is not None:
        forget(_AMPLE)
    gc.collect()


@contextmanager
def loaded(
    patchers: Sequence[ModelPatcher], memory_required: int = 0, least: int | None = None
) -> Iterator[torch.device]:
    """Bring weights to the device on which they run, and keep to them while they are read.

    memory_required: bytes to make room for beside them. least: how many of these bytes it can't do without, all of them
    unless told. Yields the device. Raises AdtError, in the words of the first patcher, if the device is too small, if
    its memory runs out, or if ComfyUI left weights behind, as it does under ``--novram``.
    """
    device = patchers[0].load_device
    needed = sum(patcher.model_size() for patcher in patchers) + (memory_required if least is None else least)
    is_limited = device.type != "cpu" and not mm.is_directml_enabled()  # DirectML can't say how much memory there is
    if is_limited and needed > mm.get_total_memory(device):
        raise _too_large(patchers[0], needed, "has {total:.1f} GB; {remedy}")
    held = sum(map(held_bytes, {patcher.model.decoder[0] for patcher in patchers}))
    try:
        mm.load_models_gpu(list(patchers), memory_required=max(memory_required - held, 0), force_full_load=True)
        _check_complete(patchers)
        yield device
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        mm.unload_all_models()  # as ComfyUI does where such an error reaches it
        for patcher in patchers:
            patcher.detach()  # ComfyUI forgot those that were on the card when loading another failed
        words = "ran out of its {total:.1f} GB; close other programs that use it, or {remedy}"
        raise _too_large(patchers[0], needed, words) from error


def _too_large(patcher: ModelPatcher, needed: int, words: str) -> AdtError:
    """The sentence for weights that take more memory than there is. words: what became of it, and what to do."""
    device, weights = patcher.load_device, patcher.model
    rest = words.format(total=mm.get_total_memory(device) / 2**30, remedy=weights.remedy)
    return AdtError(f"{weights.title} needs {needed / 2**30:.1f} GB with its working memory, and {device} {rest}.")


def _check_complete(patchers: Sequence[ModelPatcher]) -> None:
    """Raises AdtError if weights are not on the device on which they run."""
    for patcher in patchers:
        if any(p.device.type != patcher.load_device.type for p in patcher.model.parameters()):
            size = patcher.model_size() / 2**30
            raise AdtError(
                f"The model's weights ({size:.1f} GB) are not all on {patcher.load_device}, where they are needed at "
                "once; start ComfyUI without --novram, or with --cpu."
            )


class Progress:
    """The bar, the preview and the line of text of one run, as often as a person can follow.

    A preview costs a pass through the codec. So previews take a fiftieth of the time at most, there is none in the
    first second, and none if the run will be over within a second at its pace so far. The run ends with a preview of
    the whole image, which stays: ``last``. preview: None for a node that shows its results instead; it may
    give None while there is nothing to show.
    """

    _BAR, _FIRST, _PREVIEW = 0.1, 1.0, 0.4  # seconds: between two bars, before the first preview, between two previews
    _SHARE = 50.0  # this many times as long as a preview took, there is no other

    def __init__(self, total: int, node_id: str, preview: Callable[[], Image.Image | None] | None):
        self._total, self._node_id = total, node_id
        self._bar = comfy.utils.ProgressBar(total)
        self._next_bar = 0.0
        self._began = time.monotonic()
        self._had: int | None = None
        self._next_preview = self._began + self._FIRST
        self.last: Image.Image | None = None
        self._preview = preview if wants_previews() else None

    def update(self, done: int, text: str = "") -> None:
        """Report ``done`` of the total, and show a line of text. Raises ComfyUI's exception if the user cancelled."""
        now = time.monotonic()
        if self._had is None:
            self._had = done  # what was done before this run says nothing about its pace
        if now < self._next_bar and done < self._total:
            return
        self._next_bar = now + self._BAR
        image = None
        soon_over = (now - self._began) * (self._total - done) < self._FIRST * (done - self._had)
        if self._preview and (done >= self._total or now >= self._next_preview and not soon_over):
            picture = self._picture()
            self.last = picture if done >= self._total else None
            image = ("JPEG", picture, args.preview_size) if picture is not None else None
            after = time.monotonic()
            self._next_preview = after + max(self._PREVIEW, self._SHARE * (after - now))
        self._bar.update_absolute(done, self._total, image)
        if text:
            self.say(text)

    def _picture(self) -> Image.Image | None:
        """A preview; None if it can't be made, and then no other is tried."""
        make, self._preview = self._preview, None
        with decorating("the preview"):
            picture = make() if make else None
            self._preview = make
            return picture
        return None

    def say(self, text: str) -> None:
        """Show a line of text under the node, in the tab that queued the prompt.

        js/words.js translates it there, and finds it by its words: ``LINES`` has to follow what nodes say here.
        """
        tab = watched()
        if tab is not None:
            PromptServer.instance.send_progress_text(text, self._node_id, tab)
