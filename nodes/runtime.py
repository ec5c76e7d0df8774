"""What the nodes need from ComfyUI while they run: memory management, cancelling, progress and previews."""

import time
from collections.abc import Callable, Sequence

import comfy.model_management as mm
import comfy.utils
import torch
from comfy.cli_args import LatentPreviewMethod, args
from comfy.model_patcher import ModelPatcher
from PIL import Image
from server import PromptServer

from ..adt_core.errors import AdtError

check_cancelled = mm.throw_exception_if_processing_interrupted
"""Raises ComfyUI's own exception once the user has pressed Cancel; in newer versions it is a BaseException. The engine
takes this function as ``check`` and catches nothing that it raises."""


def refusal(make: Callable, **values) -> bool | str:
    """What ``validate_inputs`` answers: True, or the reason for which ``make`` refuses these values.

    Widgets keep to their bounds, but a prompt that comes through the API may hold anything, such as NaN. A linked input
    is still None here and is not checked.
    """
    try:
        make(**{name: value for name, value in values.items() if value is not None})
    except AdtError as error:
        return str(error)
    return True


class ADTTreeWeights(torch.nn.Module):
    """Holds a module for a ModelPatcher, which sets attributes such as ``device`` on what it manages.

    ComfyUI's log names this class when the weights are loaded.
    """

    def __init__(self, module: torch.nn.Module):
        super().__init__()
        self.module = module


def manage(module: torch.nn.Module) -> ModelPatcher:
    """Put a module's weights under ComfyUI's memory management.

    The newer, dynamic ModelPatcher only works with layers of ``comfy.ops``, so this is the plain one.
    """
    device, offload = mm.get_torch_device(), mm.unet_offload_device()
    return ModelPatcher(ADTTreeWeights(module), load_device=device, offload_device=offload)


def load(patchers: Sequence[ModelPatcher], memory_required: int = 0) -> torch.device:
    """Bring the weights to the device on which they run, making room for ``memory_required`` more bytes.

    Returns that device. Raises AdtError if ComfyUI left weights behind, as it does under ``--novram``.
    """
    mm.load_models_gpu(list(patchers), memory_required=memory_required, force_full_load=True)
    for patcher in patchers:
        if any(p.device.type != patcher.load_device.type for p in patcher.model.parameters()):
            size = patcher.model_size() / 2**30
            raise AdtError(
                f"The model's weights ({size:.1f} GB) are not all on {patcher.load_device}, where they are needed at "
                "once; start ComfyUI without --novram, or with --cpu."
            )
    return patchers[0].load_device


class Progress:
    """The bar, the preview and the line of text of one run, as often as a person can follow.

    A preview costs a pass through the codec. So previews take a fiftieth of the time at most, there is none in the
    first second, and none if the run will be over within a second at its pace so far. The run ends with a preview of
    the whole image, which stays: ``last``, or None if the user wants no previews.
    """

    _BAR, _FIRST, _PREVIEW = 0.1, 1.0, 0.4  # seconds: between two bars, before the first preview, between two previews
    _SHARE = 50.0  # this many times as long as a preview took, there is no other

    def __init__(self, total: int, node_id: str, preview: Callable[[], Image.Image]):
        self._total, self._node_id, self._preview = total, node_id, preview
        self._bar = comfy.utils.ProgressBar(total)
        self._next_bar = 0.0
        self._began = time.monotonic()
        self._had: int | None = None
        self._next_preview = self._began + self._FIRST
        self.last: Image.Image | None = None
        self._wants_preview = args.preview_method != LatentPreviewMethod.NoPreviews

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
        if self._wants_preview and (done >= self._total or now >= self._next_preview and not soon_over):
            picture = self._preview()
            self.last = picture if done >= self._total else None
            image = ("JPEG", picture, args.preview_size)
            after = time.monotonic()
            self._next_preview = after + max(self._PREVIEW, self._SHARE * (after - now))
        self._bar.update_absolute(done, self._total, image)
        if text:
            self.say(text)

    def say(self, text: str) -> None:
        """Show a line of text under the node, in the tab that queued the prompt."""
        server = getattr(PromptServer, "instance", None)
        if server is not None and server.client_id is not None:
            server.send_progress_text(text, self._node_id, server.client_id)
