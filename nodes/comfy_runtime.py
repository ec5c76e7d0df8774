"""Interface to ComfyUI's runtime: memory management, interruption, progress and previews."""

import gc
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import Parameter, signature
from typing import Any

import comfy.memory_management
import comfy.model_management as mm
import comfy.utils
import folder_paths
import torch
from comfy.cli_args import LatentPreviewMethod, args
from comfy.model_patcher import ModelPatcher
from PIL import Image
from server import PromptServer

from ..adt_core import AdtError
from ..adt_core.engine.pool import held_bytes, release
from ..adt_core.errors import is_out_of_memory, one_line
from ..adt_core.memory_limit import memory_limit
from ..adt_core.messages import parts_of
from ..adt_core.models.layers import Decoder
from ..adt_core.run.previews import Previews, PreviewSchedule
from ..adt_core.run.resolve import Hardware, has_bfloat16
from .log_errors import decorating

_LINE_EVENT = "adt_tree.line"
"""Event that sends a line of text under a node to the page, in parts that the page can translate."""
_FREE_RAM = 128 * 2**30
"""Amount of RAM in bytes. ComfyUI's cache drops results of earlier prompts until this amount is free. Most machines
have less RAM, so the cache drops all such results."""

MAP_PICTURE = 512
"""Maximum length in pixels of the longer side of an image that the map shows."""

check_cancelled = mm.throw_exception_if_processing_interrupted
"""Raise ComfyUI's InterruptProcessingException if the user has cancelled the run. The engine calls this function as
`check` and does not catch the exception, which is a BaseException in newer versions of ComfyUI."""


def server() -> PromptServer | None:
    """Return ComfyUI's server, or None if a script runs nodes without a server."""
    return getattr(PromptServer, "instance", None)


def send(event: str, data: Any, tab: str | None) -> None:
    """Send a message to a browser tab, or to all tabs if `tab` is None. Without a server, nothing is sent."""
    if (instance := server()) is not None:
        instance.send_sync(event, data, tab)


def without_roots(text: str) -> str:
    """Return a text without the absolute paths of ComfyUI's folders: clients need not know where a server keeps files.

    For example, "'/srv/comfy/input/a.txt' can't be read" becomes "'input/a.txt' can't be read".
    """
    folders = {
        "output": folder_paths.get_output_directory(),
        "input": folder_paths.get_input_directory(),
        "temp": folder_paths.get_temp_directory(),
        "models": folder_paths.models_dir,
        "ComfyUI": folder_paths.base_path,
        "~": os.path.expanduser("~"),
    }
    for name, path in folders.items():
        if len(path) > 1:
            text = text.replace(path, name)
    return text


def hardware() -> Hardware:
    """Return the device of ComfyUI's models. The command line has the same rule for bfloat16."""
    device = mm.get_torch_device()
    is_known = device.type in ("cpu", "cuda", "mps") and not args.force_fp32
    bfloat16 = has_bfloat16(device) if is_known else mm.should_use_bf16(device)
    return Hardware(device, bfloat16, mm.should_use_fp16(device), mm.get_total_memory(device))


def refusal(make: Callable, **values) -> bool | str:
    """Return the result of `validate_inputs`: True, or the message of the AdtError that `make` raises.

    `make` need not check the bounds of single numbers. ComfyUI checks them, and marks only the input that is wrong. For
    a message from `validate_inputs`, ComfyUI marks all inputs in the signature of `validate_inputs`.

    Args:
        **values: Arguments of `make`. None means that the input is linked or missing, and is not passed to `make`. If
            `make` requires such an argument, the result is True.
    """
    given = {name: value for name, value in values.items() if value is not None}
    for name, parameter in signature(make).parameters.items():
        is_required = parameter.default is Parameter.empty and parameter.kind is not Parameter.VAR_KEYWORD
        if is_required and name not in given:
            return True
    try:
        make(**given)
    except AdtError as error:
        return without_roots(str(error))
    return True


def watched() -> str | None:
    """Return the client id of the browser tab that queued the prompt, or None if no browser did."""
    return getattr(server(), "client_id", None)


def wants_previews() -> bool:
    """Return whether to make previews.

    Previews are made if the server's option `--preview-method` enables them. The option is "none" by default, so this
    value disables previews for a browser tab only if the user has chosen it, on the command line or on the page.
    """
    if args.preview_method != LatentPreviewMethod.NoPreviews:
        return True
    if watched() is None or any(word.startswith("--preview-m") for word in sys.argv[1:]):
        return False
    running = getattr(server(), "prompt_queue", None)
    (_, _, _, extra_data, *_), *_ = running.currently_running.values() if running else [(None, None, None, {})]
    return extra_data.get("preview_method") != LatentPreviewMethod.NoPreviews.value


def preview_side() -> int:
    """Return the maximum length in pixels of the longer side of a preview, for ComfyUI and for the map."""
    return max(args.preview_size, MAP_PICTURE)


def prompt_id() -> str | None:
    """Return the id of the running prompt, or None outside ComfyUI's prompt loop."""
    return getattr(server(), "last_prompt_id", None)


def running_node() -> str | None:
    """Return the id of the running node, or None outside ComfyUI's prompt loop."""
    return getattr(server(), "last_node_id", None)


def show_images(node_id: str, saved: Sequence[Mapping[str, Any]]) -> None:
    """Show finished images on a running node, in the tab that queued the prompt.

    A node that calls this function must not send previews. A preview would hide these images, even after the run.

    Args:
        saved: Parameters of the `/view` address of each image.
    """
    tab = watched()
    if tab is not None:
        shown = {"node": node_id, "display_node": node_id, "output": {"images": list(saved)}, "prompt_id": prompt_id()}
        send("executed", shown, tab)


class ADTTreeWeights(torch.nn.Module):
    """Wrapper of a module, which a ModelPatcher manages instead of the module.

    ModelPatcher sets attributes such as `device` on the object that it manages. With the wrapper, it does not change
    the module. ComfyUI's log shows the name of this class when the weights are loaded. For the arguments, see `manage`.
    """

    def __init__(self, module: torch.nn.Module, title: str, remedy: str, decoders: Sequence[Decoder]):
        super().__init__()
        self.module = module
        self.title = title
        self.remedy = remedy
        self.decoders = decoders  # in a sequence, so that they are not registered as submodules
        # The engine's caches refer to the weights. Without the finalizer, weights that ComfyUI drops would stay on the
        # device until the next run of the garbage collector.
        for decoder in decoders:
            weakref.finalize(self, release, decoder).atexit = False


class WeightsPatcher(ModelPatcher):
    """ModelPatcher that frees the engine's caches when ComfyUI unloads the weights, completely or partially.

    ComfyUI also calls `unpatch_model` before it loads weights that are on their device already. In this case,
    `unpatch_weights` is False, and the caches are kept.
    """

    def unpatch_model(self, device_to: torch.device | None = None, unpatch_weights: bool = True) -> None:
        """Move the weights to `device_to`, usually the CPU."""
        if unpatch_weights:
            self._release()
        super().unpatch_model(device_to, unpatch_weights)

    def partially_unload(self, device_to: torch.device, memory_to_free: int = 0, *args, **kwargs) -> int:
        """Free memory of the device, first the engine's caches and then weights, and return the freed bytes."""
        freed = sum(map(held_bytes, self.model.decoders))
        self._release()
        if freed >= memory_to_free:
            return freed
        return freed + super().partially_unload(device_to, memory_to_free - freed, *args, **kwargs)

    def _release(self) -> None:
        for decoder in self.model.decoders:
            release(decoder)


def manage(module: torch.nn.Module, title: str, remedy: str, *decoders: Decoder) -> WeightsPatcher:
    """Put a module's weights under ComfyUI's memory management.

    The result is based on ComfyUI's plain ModelPatcher. The newer, dynamic patcher requires layers of `comfy.ops`.

    Args:
        remedy: Advice in the error message if memory is too small, in the imperative.
        *decoders: Decoder of the target, if it owns caches of the engine that depend on these weights.
    """
    device = mm.get_torch_device()
    offload = mm.unet_offload_device()
    weights = ADTTreeWeights(module, title, remedy, decoders)
    return WeightsPatcher(weights, load_device=device, offload_device=offload)


def tell(text: str, level: int = logging.WARNING, is_lasting: bool = True) -> None:
    """Show a line of text under the running node and in the log, without line breaks.

    Args:
        level: `logging.INFO`, `WARNING` or `ERROR`, which sets the colour of the line. The page shows an error instead
            of the error that the node raises next.
        is_lasting: Whether the page shows the line after the run.
    """
    logging.log(level, "ADT-Tree: %s", one_line(text))
    node_id = running_node() if watched() is not None else None
    if node_id is not None:
        _show_line(node_id, text, level, is_lasting)


def _show_line(node_id: str, text: str, level: int, is_lasting: bool) -> None:
    """Show a line of text under a node, in the tab that queued the prompt.

    ComfyUI shows the English text. js/progress_text.js replaces it by a translation of the message's parts.
    """
    tab = watched()
    if tab is None:
        return
    line = one_line(text)
    parts = [part._asdict() for part in parts_of(text)]
    name = logging.getLevelName(level).lower()
    detail = {"node": node_id, "text": line, "parts": parts, "level": name, "is_lasting": is_lasting}
    send(_LINE_EVENT, detail, tab)
    if (instance := server()) is not None:
        instance.send_progress_text(line, node_id, tab)


def drop_unused_results() -> None:
    """Drop cached results of earlier prompts that the current prompt does not use, such as another model.

    A node calls this function before it loads a model. Otherwise RAM would hold the old and the new model together, and
    ComfyUI would copy the old model from the device to RAM.

    Older versions of ComfyUI, and newer versions with `--cache-classic`, drop such results before a prompt begins.
    Newer versions drop them after every node. This is too late for a node that loads a model.
    """
    forget = getattr(comfy.memory_management, "extra_ram_release", None)
    if forget is not None:
        forget(_FREE_RAM)
    gc.collect()


@contextmanager
def loaded(
    patchers: Sequence[ModelPatcher], memory_required: int = 0, least: int | None = None
) -> Iterator[torch.device]:
    """Load weights on their device for the duration of the block.

    Args:
        patchers: Patchers of the weights. Error messages use the title and the remedy of the first patcher.
        memory_required: Bytes to free on the device in addition to the weights.
        least: Bytes that the run needs at least, in addition to the weights (default: `memory_required`).

    Yields:
        The device.

    Raises:
        AdtError: If the device has less memory than the weights and `least`, if its memory runs out in the block, or if
            ComfyUI did not load all weights, for example with `--novram`.
    """
    device = patchers[0].load_device
    needed = sum(patcher.model_size() for patcher in patchers) + (memory_required if least is None else least)
    is_limited = device.type != "cpu" and not mm.is_directml_enabled()  # DirectML does not report its memory
    if is_limited and needed > mm.get_total_memory(device):
        raise _too_large(patchers[0], needed, "has {total:.1f} GiB; {remedy}")
    held = sum(map(held_bytes, {decoder for patcher in patchers for decoder in patcher.model.decoders}))
    try:
        mm.load_models_gpu(list(patchers), memory_required=max(memory_required - held, 0), force_full_load=True)
        _check_complete(patchers)
        yield device
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        mm.unload_all_models()  # as ComfyUI does for such an error
        for patcher in patchers:
            patcher.detach()  # ComfyUI loses track of loaded weights when loading others fails
        words = "ran out of its {total:.1f} GiB; close other programs that use it, or {remedy}"
        raise _too_large(patchers[0], needed, words) from error


def _too_large(patcher: ModelPatcher, needed: int, words: str) -> AdtError:
    """Return the error for weights that need more memory than the device has; `words` is the end of the sentence."""
    device = patcher.load_device
    weights = patcher.model
    total = memory_limit().bytes if device.type == "cpu" else mm.get_total_memory(device)
    rest = words.format(total=total / 2**30, remedy=weights.remedy)
    return AdtError(f"{weights.title} needs {needed / 2**30:.1f} GiB with its working memory, and {device} {rest}.")


def _check_complete(patchers: Sequence[ModelPatcher]) -> None:
    """Raise AdtError if weights are not on the device on which they run."""
    for patcher in patchers:
        if any(p.device.type != patcher.load_device.type for p in patcher.model.parameters()):
            size = patcher.model_size() / 2**30
            raise AdtError(
                f"The model's weights ({size:.1f} GiB) are not all on {patcher.load_device}, where they are needed at "
                "once; start ComfyUI without --novram, or with --cpu."
            )


class Progress:
    """Progress bar, previews and line of text of one run, at a limited rate.

    `PreviewSchedule` decides when to make a preview. The end of a run is always shown, because ComfyUI keeps the last
    preview.

    Args:
        total: Value of the argument `done` of `update` at the end of the run.
        preview: Previews of images that are being generated, or a function that makes a preview. The function may
            return None if there is nothing to show yet. None for a node without previews.
    """

    _BAR = 0.1  # seconds between updates

    def __init__(self, total: int, node_id: str, preview: Previews | Callable[[], Image.Image | None] | None):
        self.total = total
        self._node_id = node_id
        self._bar = comfy.utils.ProgressBar(total)
        self._next_bar = 0.0
        self._preview = preview if wants_previews() else None
        self._schedule = PreviewSchedule()

    def update(self, done: int, text: str = "") -> None:
        """Report progress, and show a line of text if there is one.

        Args:
            done: Finished part of `total`, in the same unit.

        Raises:
            InterruptProcessingException: If the user has cancelled the run.
        """
        now = time.monotonic()
        if now < self._next_bar and done < self.total:
            return
        self._next_bar = now + self._BAR
        picture = self._picture(done)
        self._bar.update_absolute(done, self.total, picture and ("JPEG", picture, args.preview_size))
        if text:
            self.say(text)

    def _picture(self, done: int) -> Image.Image | None:
        """Return a preview if one is due. After an error, make no further previews."""
        preview = self._preview
        self._preview = None
        with decorating("the preview"):
            picture = self._due(preview, done) if preview else None
            self._preview = preview
            return picture
        return None

    def _due(self, preview: Previews | Callable[[], Image.Image | None], done: int) -> Image.Image | None:
        make: Callable[[], Image.Image | None]
        if isinstance(preview, Previews):
            share = preview.done()
            count = min(self._schedule.images(share, done >= self.total), len(preview.stale()))
            make = partial(preview.sheet, count)
        else:
            share = done / max(self.total, 1)
            count = min(self._schedule.images(share, done >= self.total), 1)
            make = preview
        if not count:
            return None
        with self._schedule.measured(share, count):
            return make()

    def say(self, text: str, is_lasting: bool = False) -> None:
        """Show a line of text under the node, in the tab that queued the prompt.

        Args:
            is_lasting: Whether the page shows the line after the run.
        """
        _show_line(self._node_id, text, logging.INFO, is_lasting)
