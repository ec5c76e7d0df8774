"""The prompt list node: prompts from files or typed in, as lists over which other nodes loop."""

import os
from pathlib import Path

import folder_paths
from comfy_api.v0_0_2 import io

from ..adt_core.app.prompts import BUNDLED_CAPTIONS, CAPTIONS, FILES, Prompt, file_stems, read_list, select, typed
from ..adt_core.errors import AdtError
from .loaders import CATEGORY
from .runtime import refusal

TYPED = "(the text below)"


class ADTTreePrompts(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ADTTreePrompts",
            display_name="ADT-Tree Prompts",
            category=CATEGORY,
            description="A list of prompts from a file or typed in. The ADT-Tree Batch Sampler takes the whole list; any other node that it is connected "
            "to runs once for each prompt.",
            search_aliases=["prompt list", "coco captions", "parti prompts", "load prompts", "dataset"],
            inputs=[
                io.Combo.Input(
                    "file",
                    options=[TYPED, *_files()],
                    default=TYPED,
                    tooltip="A file in ComfyUI's input folder: text with a prompt per line, MS-COCO captions (.json), PartiPrompts (.tsv) or .jsonl. Put it "
                    "there and press R to see it here.",
                ),
                io.String.Input(
                    "text",
                    default="",
                    multiline=True,
                    tooltip="Where no file is chosen above: one prompt per line, or the path of a file. Empty: the captions that come with the pack.",
                ),
                io.Combo.Input(
                    "caption",
                    options=list(CAPTIONS),
                    default=CAPTIONS[0],
                    tooltip="Which captions of an MS-COCO image are prompts: its first or its longest, under the id of the image, or all, under their own ids.",
                ),
                io.String.Input(
                    "filter",
                    default="",
                    tooltip="Keep only prompts that contain this, in upper or lower case. Empty keeps all.",
                ),
                io.Int.Input(
                    "start",
                    default=0,
                    min=0,
                    max=10**7,
                    tooltip="How many prompts to pass over, counted after filter and shuffle.",
                ),
                io.Int.Input("count", default=8, min=1, max=10**7, tooltip="How many prompts to take, at most."),
                io.Int.Input(
                    "shuffle",
                    default=0,
                    min=0,
                    max=2**64 - 1,
                    control_after_generate=False,
                    tooltip="Another order for every number, always the same for the same; 0 keeps the order of the file.",
                ),
            ],
            outputs=[
                io.String.Output(display_name="prompts", is_output_list=True, tooltip="The prompts, as a list."),
                io.String.Output(
                    display_name="ids",
                    is_output_list=True,
                    tooltip="What the file calls each prompt: an id of MS-COCO or of a JSON line, otherwise the number of its line.",
                ),
                io.String.Output(
                    display_name="names",
                    is_output_list=True,
                    tooltip="A name for each prompt's file, of its id and its first words, for the filename_prefix of Save Image.",
                ),
            ],
        )

    @classmethod
    def validate_inputs(cls, file: str = None, text: str = None) -> bool | str:
        """A file that can't be read is refused before anything runs. Whether one is listed does not matter: it may have come since."""
        return True if file is None or (file == TYPED and text is None) else refusal(_read, file=file, text=text)

    @classmethod
    def fingerprint_inputs(cls, file: str | None = None, text: str | None = None, **_) -> str:
        return fingerprint(_source(file or TYPED, text or ""))

    @classmethod
    def execute(
        cls, file: str, text: str, caption: str, filter: str, start: int, count: int, shuffle: int
    ) -> io.NodeOutput:
        prompts = select(_read(file, text, caption), filter, shuffle, start, count)
        return io.NodeOutput(
            [prompt.text for prompt in prompts], [prompt.id for prompt in prompts], file_stems(prompts)
        )


def _files() -> list[str]:
    """Files of prompts that lie in ComfyUI's input folder itself."""
    try:
        with os.scandir(folder_paths.get_input_directory()) as entries:
            return sorted(entry.name for entry in entries if entry.name.lower().endswith(FILES) and entry.is_file())
    except OSError:
        return []


def _source(file: str, text: str) -> str:
    return text if file == TYPED else file


def _read(file: str, text: str = "", caption: str = CAPTIONS[0]) -> list[Prompt]:
    return read(_source(file, text), "text" if file == TYPED else "file", caption)


def read(text: str, name: str, caption: str = CAPTIONS[0]) -> list[Prompt]:
    """A prompt per line, or the prompts of a file that the text names; the bundled captions for no text. AdtError, with the input's name."""
    path = _path(text)
    try:
        return read_list(path, caption) if path else typed(text) or read_list(BUNDLED_CAPTIONS, caption)
    except AdtError as error:
        raise AdtError(str(error).replace("--prompts", name)) from error


def fingerprint(text: str) -> str:
    """Changes when the file does that a text names."""
    path = _path(text)
    try:
        return f"{path.stat().st_mtime_ns} {path.stat().st_size}" if path else ""
    except OSError:
        return ""


def _path(text: str) -> Path | None:
    """The file that a text names: in ComfyUI's input folder, or anywhere by its path."""
    name = text.strip()
    return (
        Path(folder_paths.get_input_directory()) / name if name.lower().endswith(FILES) and "\n" not in name else None
    )
