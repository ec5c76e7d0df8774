"""Interface to ComfyUI's runtime: memory management, interruption, progress and previews."""

import gc
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import comfy.memory_management
import comfy.model_management as mm
import comfy.utils
import folder_paths
from comfy.cli_args import LatentPreviewMethod, args
from PIL import Image
from server import PromptServer

from ..adt_core import AdtError
from ..adt_core.errors import one_line, substitute_inputs
from ..adt_core.files import write
from ..adt_core.messages import Message, parts_of
from ..adt_core.run import Hardware, Previews, PreviewSchedule, has_bfloat16

_LINE_EVENT = "adt_tree.line"
"""Event that sends a line of text under a node to the page, in parts that the page can translate."""
_ERROR_EVENT = "adt_tree.error"  # event that sends the parts of an error
_VALIDATED_FOR: ContextVar[str | None] = ContextVar("client id of the tab whose prompt is validated", default=None)
_FREE_RAM = 128 * 2**30
"""Amount of RAM in bytes. ComfyUI's cache drops results of earlier prompts until this amount is free. Most machines
have less RAM, so the cache drops all such results."""

MAP_PICTURE = 512  # maximum length in pixels of the longer side of an image that the map shows

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
        error.args = (error.message.map(without_roots),)
        announce(error, _VALIDATED_FOR.get())
        return str(error)
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


def temporary_file(stem: str, suffix: str, save: Callable[[Path], object]) -> dict[str, str]:
    """Save a new file in ComfyUI's temporary folder, and return the parameters of its `/view` address.

    Args:
        save: Writes the file at a path.
    """
    folder = Path(folder_paths.get_temp_directory())
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{stem}_{secrets.token_hex(8)}{suffix}"
    save(folder / name)
    return {"filename": name, "subfolder": "", "type": "temp"}


def shown_text(text: str, stem: str) -> dict[str, list]:
    """Return the `ui` output of a node that shows a text on the node.

    ComfyUI's App mode shows the files of a node, but no texts. So the text is also in a temporary file.
    """
    shown: dict[str, list] = {"text": [text]}
    with decorating("the report in App mode"):
        shown["files"] = [temporary_file(stem, ".md", lambda path: write(path, text.encode()))]
    return shown


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
        show_line(node_id, text, level, is_lasting)


def show_line(node_id: str, text: str, level: int, is_lasting: bool) -> None:
    """Show a line of text under a node, in the tab that queued the prompt. See `tell`.

    ComfyUI shows the English text. js/progress_text.js replaces it by a translation of the message's parts.
    """
    tab = watched()
    if tab is None:
        return
    line = one_line(text)
    parts = _parts(text)
    name = logging.getLevelName(level).lower()
    detail = {"node": node_id, "text": line, "parts": parts, "level": name, "is_lasting": is_lasting}
    send(_LINE_EVENT, detail, tab)
    if (instance := server()) is not None:
        instance.send_progress_text(line, node_id, tab)


def remember_tab(request: dict) -> dict:
    """Remember the tab whose prompt is validated next. ComfyUI calls this handler for the body of `POST /prompt`."""
    tab = request.get("client_id")
    _VALIDATED_FOR.set(tab if isinstance(tab, str) else None)
    return request


def announce(error: AdtError, tab: str | None) -> None:
    """Send the parts of an error to a tab. ComfyUI reports the error as plain text, which the page translates by them.

    Args:
        tab: Client id of the browser tab that queued the prompt; None for no browser.
    """
    if tab is not None:
        parts = _parts(error.message.map(partial(substitute_inputs, rename=str)))
        send(_ERROR_EVENT, {"text": str(error), "parts": parts}, tab)


def _parts(text: str) -> list[dict]:
    """Return the parts of a message for js/messages.js. A parameter that is a message becomes a list of its parts."""
    return [
        part._asdict()
        | {"parameters": {k: _parts(v) if isinstance(v, Message) else v for k, v in part.parameters.items()}}
        for part in parts_of(text)
    ]


@contextmanager
def decorating(what: str) -> Iterator[None]:
    """Log errors of the `with` block instead of raising them, except the exception with which ComfyUI cancels a run.

    For optional additions to an image, such as maps: after an error, the user gets the image without the addition.
    """
    try:
        yield
    except mm.InterruptProcessingException:  # in older versions of ComfyUI, this is a subclass of Exception
        raise
    except Exception:
        logging.warning("ADT-Tree: %s is left out, since it could not be made.", what, exc_info=True)


@contextmanager
def telling_what_is_kept(kept: Callable[[], str]) -> Iterator[None]:
    """Show a line of text under the running node if the user cancels the `with` block. ComfyUI itself shows nothing.

    Args:
        kept: Function that returns the text: how much is kept, and how to continue. "" shows nothing.
    """
    try:
        yield
    except mm.InterruptProcessingException:
        with decorating("the note on the cancelled run"):
            if note := kept():
                tell(note, logging.INFO)
        raise


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
        show_line(self._node_id, text, logging.INFO, is_lasting)
