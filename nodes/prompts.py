"""Prompt list node: outputs prompts from a file or a text box as lists. Other nodes run once per prompt."""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Hashable
from functools import lru_cache
from pathlib import Path, PureWindowsPath

import folder_paths
from comfy_api.v0_0_2 import io

from ..adt_core import AdtError
from ..adt_core.app import (
    BUNDLED_CAPTIONS,
    CAPTIONS,
    EXAMPLE_CAPTIONS,
    PROMPT_FILES,
    SETTING_COLUMNS,
    blank_note,
    file_stems,
    non_blank,
    parse_lines,
    read_all,
    remarks,
    select,
)
from ..adt_core.errors import Check, renaming
from ..adt_core.files import is_hidden, opened
from ..adt_core.messages import join, message
from ..adt_core.run import PromptEntry
from .comfy_runtime import check_cancelled, refusal, tell
from .dynamic_prompts import CHOICE_MODES, OFF, RANDOM, expand_prompts, unbalanced
from .schema import Tooltips, schema
from .sockets import checked

TYPED = "(the text below)"
EXAMPLE = "(example captions)"  # value of the input `file` that selects `EXAMPLE_CAPTIONS`
LONGEST_TEXT, LONGEST_NAME = 10**6, 200
"""Maximum number of characters of typed prompts, and of a name in an error message."""
NO_SEED = -1  # placeholder for the seed of a prompt for which the file has no seed
QUICK = 128 * 2**10
"""Maximum size in bytes of a file that is read during validation. ComfyUI's server answers no other request during this
time."""


class Budget:
    """Verdicts on files, for which the validation of a prompt may take a limited time.

    ComfyUI validates a prompt in the thread of the server, which answers no other request in the meantime. A prompt may
    have any number of nodes that read a file.

    Args:
        seconds: Time per prompt. Files for which no time is left are checked when their node runs.
    """

    _MOST = 256  # verdicts that are kept

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._left = seconds
        self._verdicts: dict[Hashable, AdtError | None] = {}

    def renew(self, request: dict) -> dict:
        """Give a new prompt the complete time. ComfyUI calls this for the body of each `POST /prompt`."""
        self._left = self._seconds
        return request

    def verdict(self, key: Hashable, check: Callable[[], AdtError | None]) -> AdtError | None:
        """Return the result of a check, or None if no time is left for it.

        Args:
            key: Value that the result depends on, such as a file with its size and time.
        """
        if key not in self._verdicts and self._left > 0:
            began = time.monotonic()
            if len(self._verdicts) >= self._MOST:
                self._verdicts.clear()
            self._verdicts[key] = check()
            self._left -= time.monotonic() - began
        return self._verdicts.get(key)


VALIDATION = Budget(0.25)


_PROMPTS_TOOLTIPS = Tooltips(
    inputs={
        "file": "A file in ComfyUI's input folder: text with one prompt per line, table (.csv, .tsv), MS-COCO "
        "captions (.json) or .jsonl. Press R to update the list. (example captions) is a small file of the pack in the "
        "format of MS-COCO.",
        "text": "Used if no file is chosen: one prompt per line, or the name of a file in ComfyUI's input folder. If "
        "empty, captions that are included in the pack.",
        "caption": "For MS-COCO captions: use the first or the longest caption of each image, with the id of the "
        "image, or all captions, with their own ids.",
        "filter": "Keep only prompts that contain this text, in upper or lower case. If empty, keep all.",
        "start_index": "Index of the first prompt, after filtering and shuffling. 0 is the first.",
        "count": "Maximum number of prompts. 0 outputs all.",
        "shuffle_seed": "Shuffles the list with this seed. 0 keeps the order of the file.",
        "choices": "For choices such as {red|blue}. random: pick one text with choice_seed. all combinations: output "
        "one prompt for each, before filter and count. off: keep the text.",
        "choice_seed": "Seed of random choices. The same seed gives the same texts, whatever else is in the list.",
    },
    outputs={
        "prompts": "The prompts, as a list.",
        "ids": "The id of each prompt: from MS-COCO, the column id or JSON, otherwise its line number.",
        "names": "A file name for each prompt, from its id and first words, for filename_prefix of Save Image.",
        "seeds": 'The seed of each prompt in the file ("seed" in JSON, column Seed in a table), or −1 if there is '
        "none.",
    },
)


class ADTTreePrompts(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            "ADTTreePrompts",
            "ADT-Tree Prompts",
            tooltips=_PROMPTS_TOOLTIPS,
            description="Outputs a list of prompts from a file or a text. The ADT-Tree Batch Sampler processes the "
            "complete list; other nodes run once per prompt.",
            search_aliases=[
                "prompt list",
                "batch prompts",
                "wildcard",
                "csv",
                "coco captions",
                "parti prompts",
                "load prompts",
                "dataset",
                "提示词列表",
                "数据集",
            ],
            inputs=[
                io.Combo.Input("file", options=[TYPED, *_files(), EXAMPLE], default=TYPED),
                io.String.Input("text", default="", multiline=True),
                io.Combo.Input("caption", options=list(CAPTIONS), default=CAPTIONS[0]),
                io.String.Input("filter", default=""),
                io.Int.Input("start_index", default=0, min=0, max=10**7),
                io.Int.Input("count", default=8, min=0, max=10**7),
                io.Int.Input("shuffle_seed", default=0, min=0, max=2**64 - 1, control_after_generate=False),
                io.Combo.Input("choices", options=list(CHOICE_MODES), default=RANDOM, optional=True),
                io.Int.Input(
                    "choice_seed", default=0, min=0, max=2**64 - 1, control_after_generate=False, optional=True
                ),
            ],
            outputs=[io.String.Output(display_name=name, is_output_list=True) for name in ("prompts", "ids", "names")]
            + [io.Int.Output(display_name="seeds", is_output_list=True)],
        )

    @classmethod
    def validate_inputs(cls, file: str | None = None, text: str | None = None) -> bool | str:
        """Check the prompts before any node runs, and reject a file that cannot be read.

        A file that was added after the page loaded the list of files is accepted.
        """
        if file is None or (file == TYPED and text is None):
            return True
        return refusal(check, text=_source(file, text or ""), name=_name(file))

    @classmethod
    def fingerprint_inputs(cls, file: str | None = None, text: str | None = None, **_) -> str:
        return fingerprint(_source(file or TYPED, text or ""))

    @classmethod
    @checked
    def execute(
        cls,
        file: str,
        text: str,
        caption: str,
        filter: str,
        start_index: int,
        count: int,
        shuffle_seed: int,
        choices: str = RANDOM,
        choice_seed: int = 0,
    ) -> io.NodeOutput:
        entries = read(_source(file, text), _name(file), caption, check_cancelled)
        listed = expand_prompts(entries, choices, choice_seed, check_cancelled)
        braces = unbalanced(entries) if choices != OFF else ""
        notes = [note for note in (blank_note(listed), remarks(listed), braces, _unused(entries)) if note]
        selected = select(non_blank(listed), filter, shuffle_seed, start_index)
        prompts = selected[: count or None]
        if notes:
            tell(join(notes))
        elif file != TYPED or len(prompts) < len(selected):
            key = "prompts.first" if len(prompts) < len(selected) else "prompts.all"
            tell(message(key, count=len(prompts), total=len(selected)), logging.INFO)
        return io.NodeOutput(
            [prompt.text for prompt in prompts],
            [prompt.id for prompt in prompts],
            file_stems(prompts),
            [NO_SEED if prompt.seed is None else prompt.seed for prompt in prompts],
        )


def _files() -> list[str]:
    """Return the names of prompt files in ComfyUI's input folder, without its subfolders."""
    try:
        with os.scandir(folder_paths.get_input_directory()) as entries:
            names = [entry.name for entry in entries if entry.name.lower().endswith(PROMPT_FILES) and entry.is_file()]
        return sorted(name for name in names if not is_hidden(name))
    except OSError:
        return []


def _unused(prompts: list[PromptEntry]) -> str:
    """Return a remark on settings of single prompts, which this pack's nodes cannot pass on, or ""."""
    names = {name for prompt in prompts for name, _ in prompt.settings}
    columns = ", ".join(name for name in SETTING_COLUMNS if name in names)
    return message("prompts.columns", columns=columns) if columns else ""


def _source(file: str, text: str) -> str:
    return text if file == TYPED else file


def _name(file: str) -> str:
    """Return the id of the input that provides the prompts."""
    return "text" if file == TYPED else "file"


def check(text: str, name: str) -> None:
    """Check prompts before a run, except files larger than `QUICK`, and files for which `VALIDATION` has no time left.

    Raises:
        AdtError: If `read` would raise it.
    """
    path = _named(text, name)
    if path is None:
        return
    if not path.is_file():
        read(text, name)
    status = path.stat()
    if status.st_size > QUICK:
        return
    key = str(path), status.st_size, status.st_mtime_ns, status.st_ino
    problem = VALIDATION.verdict(key, lambda: _problem(text))
    if problem:
        raise problem.renamed(prompts=name)


def _problem(text: str) -> AdtError | None:
    """Return the AdtError that `read` raises for the name of a file."""
    try:
        read(text, "prompts")
    except AdtError as error:
        return error.renamed()  # without its traceback, which would keep the text of the file
    return None


def read(text: str, name: str, caption: str = CAPTIONS[0], check: Check = lambda: None) -> list[PromptEntry]:
    """Read the prompts of an input.

    Args:
        text: One prompt per line, or the name of a prompt file in ComfyUI's input folder. If empty, the bundled
            captions are read.
        caption: Which captions of an MS-COCO image to use, one of `CAPTIONS`.
        check: Called often. It may raise an exception to cancel.

    Returns:
        The prompts. A blank prompt has an empty text.

    Raises:
        AdtError: If the text is too long, or the file cannot be read or is outside the input folder.
    """
    path = _named(text, name)
    with renaming(prompts=name):
        if path or not text.strip():
            return read_all(path or BUNDLED_CAPTIONS, caption, check)
        return parse_lines(text, check)


def _named(text: str, name: str) -> Path | None:
    """Return the file that a text names, or None if the text consists of prompts.

    Raises:
        AdtError: If the text is too long, or the file is outside ComfyUI's input folder.
    """
    if len(text) > LONGEST_TEXT:
        raise AdtError("text.too_long", input=name, count=len(text), most=LONGEST_TEXT)
    with renaming(prompts=name):
        return _path(text, is_name=name == "file")


_DIGESTED = 8 * 2**20
"""Largest file in bytes that is read for every prompt. A larger file is read again only if its times change."""


def fingerprint(text: str) -> str:
    """Return a string that changes when the file that a text names changes, for `fingerprint_inputs`.

    Size and time are not enough: programs that copy or unpack files keep the times of the originals.
    """
    try:
        path = _path(text)
        if path is None:
            return ""
        state = path.stat()
        facts = state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino
        return _file_digest(path, facts) if state.st_size > _DIGESTED else _file_digest.__wrapped__(path, facts)
    except (OSError, AdtError):
        return ""


@lru_cache(maxsize=64)
def _file_digest(path: Path, facts: tuple[int, ...]) -> str:
    """Return a digest of a file's content. `facts` is the key under which the digest of a large file is kept."""
    found = hashlib.blake2b(digest_size=16)
    with opened(path) as file:
        while chunk := file.read(2**20):
            found.update(chunk)
    return found.hexdigest()


def _path(text: str, is_name: bool = False) -> Path | None:
    """Return the file in ComfyUI's input folder, or the example, that a text names; None if it consists of prompts.

    A typed text with spaces names a file only if the file exists: a prompt may end with a file name, too.

    Any client can send any name. Names outside the folder are therefore rejected without access to the file system.
    """
    name = text.strip()
    if name == EXAMPLE:
        return EXAMPLE_CAPTIONS
    if not name.lower().endswith(PROMPT_FILES) or "\n" in name:
        return None
    parts = PureWindowsPath(name)  # handles the separators, drives and shares of all systems
    if parts.drive or parts.root or ".." in parts.parts or "\0" in name:
        raise AdtError("file.outside", name=name[:LONGEST_NAME])
    path = Path(folder_paths.get_input_directory(), name)
    return path if is_name or len(name.split()) == 1 or os.path.isfile(path) else None
