"""Batch sampler node: generates an image for each prompt of a list, several at a time.

Finished images are saved in a folder. If the same list is queued again, the node generates only the missing images.
"""

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import comfy.model_management as mm
import folder_paths
import torch
from comfy.cli_args import args
from comfy_api.v0_0_2 import io, ui
from torch import Tensor

from ..adt_core import AdtError, Lantern, Pipeline
from ..adt_core.app.batch_folder import BatchFolder, SavedImage, batch_folder
from ..adt_core.app.images import is_keyword
from ..adt_core.app.pipeline import split
from ..adt_core.app.prompts import file_prefixes
from ..adt_core.app.training_domain import domain_warning
from ..adt_core.app.truncation import INVALID_MODES, RAISE, fit_prompt
from ..adt_core.errors import shown
from ..adt_core.messages import join, message
from .cancelling import telling_what_is_kept
from .comfy_runtime import Progress, check_cancelled, show_images, tell
from .drafting import AUTO, drafting_input
from .prompts import NO_SEED
from .sampling import Run, noise_input, prepare, preset_input, sampling_inputs
from .saved_map import without_maps
from .schema import Tooltips, schema
from .sockets import (
    BatchResults,
    DrafterSocket,
    LanternSocket,
    LoadedDrafter,
    LoadedModel,
    ModelSocket,
    ResultsSocket,
    SettingsSocket,
    checked,
    with_warning,
)

FOLDER = "adt_tree_batches"
SAME, STEPPED = "same", "increment"
"""Values of the input `seed_mode`.

`SAME`: all prompts use the value of the input `seed`. `STEPPED`: the first prompt uses this value, the second prompt
uses this value + 1, and so on.
"""
CHUNK = 4
"""Default number of images that are decoded together."""
_SHOWN_EVERY, _SHOWN = 1.0, 64
"""The node shows finished images during the run. `_SHOWN_EVERY` is the number of seconds between two updates of these
images, and `_SHOWN` is the maximum number of images that an update shows."""


class BatchItem(NamedTuple):
    """Image to generate.

    Attributes:
        prompt: Prompt for the model. If the prompt in the list is too long, this is the truncated prompt.
        seed: Seed of the image.
        place: Beginning of the file name.
        id: Id of the prompt: its value in the input `ids`, or its number in the list if `ids` is not connected.
        caption: Complete prompt, as it is in the list.
        note: Description of how `prompt` differs from `caption`, or "" if both are equal.
    """

    prompt: str
    seed: int
    place: str
    id: str
    caption: str
    note: str


class LeftOut(NamedTuple):
    """Prompt for which no image is generated. `note` is the reason."""

    id: str
    prompt: str
    note: str


_BATCH_SAMPLER_TOOLTIPS = Tooltips(
    inputs={
        "model": "The model that generates the images.",
        "prompts": "The prompts, from ADT-Tree Prompts or any node that outputs text. A prompt that occurs twice with "
        "the same seed gives one image.",
        "seed": "Sets the noise of every image, unless seed_mode or seeds sets another seed. Queue again with another "
        "seed for other images of the same prompts.",
        "negative": "Usually left empty. A text here pushes all images away from its content.",
        "batch_size": "Number of images that are generated at the same time. Larger is faster and uses more memory. "
        "It does not change the images. Cancelling loses only unfinished images.",
        "ids": "One id per prompt, for file names and the report. If not connected, prompts are numbered.",
        "lantern": "Relaxed acceptance, which changes the images. The result also depends on the drafter and the "
        "settings. If not connected, drafting decides.",
        "seed_mode": "same: all prompts use seed. increment: the first prompt uses seed, the second seed + 1 and so "
        "on, so that equal prompts give different images.",
        "seeds": "One seed per prompt, from ADT-Tree Prompts. For a value of −1, seed and seed_mode decide.",
        "invalid_prompts": "Prompts that are empty or too long for the model. error: stop before the first image and "
        "name the prompt. truncate: use as many words as fit; skip empty prompts. skip: leave them out. The report "
        "lists them.",
        "folder": "Start of the folder's name. If empty, the model's name. Lists with different names here have "
        "separate folders and share no images.",
        "noise": "ADT-Tree gives the same image on every device. original script gives the image that the model "
        "authors' script generates for this seed in a batch of one, in float32 on the same device. docs/models.md "
        "lists the scripts.",
    },
    outputs={
        "images": "All images as one batch, in the order of the prompts.",
        "ids": "The id of each image, as a list.",
        "results": "Images, statistics and files, for ADT-Tree Batch Report.",
    },
)


class ADTTreeBatchSampler(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            "ADTTreeBatchSampler",
            "ADT-Tree Batch Sampler",
            tooltips=_BATCH_SAMPLER_TOOLTIPS,
            description="Generates one image per prompt of a list, several at a time, and saves each as soon as it "
            f"is finished to output/{FOLDER}. Queue a cancelled batch again to continue it.",
            search_aliases=["prompt list", "batch generate", "dataset", "coco", "resume", "批量生成", "提示词列表"],
            is_input_list=True,
            inputs=[
                ModelSocket.Input("model"),
                io.String.Input("prompts", force_input=True),
                io.String.Input("ids", optional=True, force_input=True),
                DrafterSocket.Input("drafter", optional=True),
                SettingsSocket.Input("settings", optional=True),
                LanternSocket.Input("lantern", optional=True),
                *sampling_inputs(),
                io.String.Input("negative", default="", multiline=True),
                io.Int.Input("batch_size", default=CHUNK, min=1, max=256),
                io.Combo.Input("seed_mode", options=[SAME, STEPPED], default=SAME, optional=True),
                io.Int.Input("seeds", optional=True, force_input=True, min=NO_SEED, max=2**64 - 1),
                drafting_input(),
                preset_input(),
                io.Combo.Input("invalid_prompts", options=list(INVALID_MODES), default=RAISE, optional=True),
                io.String.Input("folder", default="", optional=True),
                noise_input(),
            ],
            outputs=[
                io.Image.Output(display_name="images"),
                io.String.Output(display_name="ids", is_output_list=True),
                ResultsSocket.Output(display_name="results"),
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt, io.Hidden.extra_pnginfo],
            is_output_node=True,
        )

    @classmethod
    def execute(
        cls, prompts: list[str], ids: list | None = None, seeds: list | None = None, **lists: list
    ) -> io.NodeOutput:
        single = {name: one(name, values) for name, values in lists.items()}
        model = single.pop("model")
        asked = {name: single.pop(name) for name in ("seed_mode", "invalid_prompts") if name in single}
        batch_size = single.pop("batch_size", CHUNK)
        name = single.pop("folder", "")
        run = _prepared(model=model, **single)
        pipeline = run.pipeline
        items, left_out = read_items(prompts=prompts, ids=ids, seeds=seeds, pipeline=pipeline, **asked)
        with run.loaded():  # the digest of the weights is a part of the name
            folder = _folder(pipeline=pipeline, folder=name)
        batch = BatchFolder(pipeline, folder, metadata(cls.hidden))
        made, missed = _make(batch, run, items, batch_size, cls.hidden.unique_id)
        unknown = domain_warning(model.target, [item.prompt for item in items])
        if remarks := join((unknown, *run.notes, missed, news(items, left_out))):
            where = message("batch.folder", folder=_shown(folder))
            tell(join((remarks, where)))  # joined, because a node shows only one line at a time
        rows = [_row(item, picture, pipeline.recipe.lantern is not None) for item, picture in zip(items, made)]
        settings = {name: value for name, value in pipeline.settings("").items() if name != "prompt"}
        results = BatchResults(_images(made), rows, settings, folder, [item._asdict() for item in left_out])
        ids = [item.id for item in items]
        saved = ui.SavedImages(_saved(made, folder))
        return with_warning(cls, io.NodeOutput(results.images, ids, results, ui=saved))


def _row(item: BatchItem, picture: SavedImage, relaxed: bool) -> dict:
    """Return the row of an image in the report. `relaxed` is True with LANTERN."""
    whole = {"caption": item.caption} if item.caption != item.prompt else {}
    own = {"file": picture.path.name, "note": item.note, "relaxed": relaxed}
    return {"id": item.id, "prompt": item.prompt, **picture.figures, **own, **whole}


def _saved(pictures: Iterable[SavedImage], folder: Path) -> list[ui.SavedResult]:
    """Return the file of each image for the `ui` output, without duplicates."""
    files = dict.fromkeys(picture.path.name for picture in pictures)
    return [ui.SavedResult(file, f"{FOLDER}/{folder.name}", io.FolderType.output) for file in files]


def one(name: str, values: Sequence) -> Any:
    """Return the only value of an input.

    ComfyUI passes every input of this node as a list. Most inputs must have exactly one value.

    Raises:
        AdtError: If there is not exactly one value.
    """
    if len(values) != 1:
        raise AdtError(
            f"{name}: {len(values)} values arrived, and all images of a batch share one; connect a node that gives a "
            "single value."
        )
    return values[0]


@checked
def _prepared(
    model: LoadedModel,
    negative: str = "",
    drafter: LoadedDrafter | None = None,
    settings: dict | None = None,
    lantern: Lantern | None = None,
    drafting: str = AUTO,
    preset: str | None = None,
    **sampling,
) -> Run:
    run = prepare(model, None, negative, drafter, settings, lantern, drafting, preset, **sampling)
    try:
        run.pipeline.check([])
    except AdtError as error:
        raise AdtError(f"negative: {error}") from error
    return run


def metadata(hidden: Any) -> dict[str, str]:
    """Return the text chunks for the PNG files of a batch.

    ComfyUI's Save Image node writes the same text chunks, except that acceptance maps are removed here. The maps in the
    workflow belong to images of other nodes.

    Args:
        hidden: Hidden inputs `prompt` and `extra_pnginfo` of the node.

    Returns:
        JSON texts by keyword. The dictionary is empty if the server disables metadata.
    """
    if args.disable_metadata:
        return {}
    more = hidden.extra_pnginfo if isinstance(hidden.extra_pnginfo, dict) else {}
    texts = {"prompt": hidden.prompt, **without_maps(more)}
    return {name: json.dumps(value) for name, value in texts.items() if value is not None and is_keyword(name)}


@checked
def _folder(pipeline: Pipeline, folder: str) -> Path:
    """Return the folder of the pipeline's images; `folder` is the name that the user chose, or ""."""
    return batch_folder(Path(folder_paths.get_output_directory()) / FOLDER, pipeline, folder.strip())


def _make(
    batch: BatchFolder,
    run: Run,
    items: list[BatchItem],
    batch_size: int,
    node_id: str,
) -> tuple[list[SavedImage], str]:
    """Generate the images that are not in the folder yet.

    Returns:
        The image of each item, in the order of `items`; and a remark for the user, or "" if there is none.
    """
    # item[:2] is (prompt, seed). If several items have the same prompt and seed, only the first item is kept.
    distinct: dict[tuple[str, int], BatchItem] = {}
    for item in items:
        distinct.setdefault(item[:2], item)
    before = {}
    with telling_what_is_kept(lambda: _kept(batch, distinct)):
        for key in distinct:
            check_cancelled()
            if (picture := batch.find(*key)) is not None:
                before[key] = picture
        missing = [item for key, item in distinct.items() if key not in before]
        drawn, missed = _draw(batch, run, missing, list(before.values()), batch_size, node_id)
    pictures = before | drawn
    return [pictures[item[:2]] for item in items], missed


def _kept(batch: BatchFolder, images: Iterable[tuple[str, int]]) -> str:
    """Return the message for a cancelled batch.

    Args:
        images: Prompt and seed of each image of the batch.
    """
    files = [batch.path(*image).is_file() for image in images]
    return message("batch.kept", done=sum(files), count=len(files), folder=_shown(batch.folder))


def _shown(folder: Path) -> str:
    """Return the path of a folder of images, relative to the folder of ComfyUI."""
    return f"output/{FOLDER}/{folder.name}"


def _draw(
    batch: BatchFolder,
    run: Run,
    missing: list[BatchItem],
    before: list[SavedImage],
    batch_size: int,
    node_id: str,
) -> tuple[dict[tuple, SavedImage], str]:
    """Generate and save the missing images. Return (prompt, seed) -> image, and a remark for the user or "".

    The progress bar and the images on the node also include `before`, the images of earlier runs.
    """
    made = dict[tuple, SavedImage]()
    remark = ""
    shown = 0.0
    count = len(before) + len(missing)
    length = run.model.target.length
    total = count * length
    progress = Progress(total, node_id, None)
    for stretch in split(len(missing), batch_size):
        items = missing[stretch.start : stretch.stop]
        seeds = [item.seed for item in items]
        decoding = run.decoding([item.prompt for item in items], seeds=seeds, at_once=batch_size)
        with run.loaded(decoding), closing(decoding.finished()) as running:
            for finished in running:
                for image in finished:
                    made[items[image][:2]] = batch.save(decoding, image, *items[image][:3], check_cancelled)
                pictures = [*before, *made.values()]
                if finished and time.monotonic() - shown > _SHOWN_EVERY:
                    show_images(node_id, _saved(pictures[-_SHOWN:], batch.folder))
                    shown = time.monotonic()
                done = (len(before) + stretch.start) * length + decoding.done_tokens
                line = message("batch.progress", done=len(pictures), count=count, tokens=done, total=total)
                progress.update(done, join((line, _relaxed(batch.pipeline, pictures)), ""))
        remark = decoding.exact.remark
    line = message("batch.done", count=count, earlier=len(before), folder=_shown(batch.folder))
    progress.say(join((line, _relaxed(batch.pipeline, [*before, *made.values()])), ""))
    return made, remark


def _relaxed(pipeline: Pipeline, pictures: list[SavedImage]) -> str:
    """Return a text with the mean share of tokens that LANTERN replaced, or "" without LANTERN."""
    if pipeline.recipe.lantern is None or not pictures:
        return ""
    replaced = mean(picture.figures["substitution_rate"] for picture in pictures)
    return message("batch.relaxed", share=f"{100 * replaced:.1f}")


def _images(pictures: list[SavedImage]) -> Tensor:
    """Return the pixels of the saved files as an IMAGE [B, H, W, 3].

    The files have 8 bits per channel. The pixels of new images are rounded to 8 bits, too. Therefore a repeated batch,
    which reads all images from files, gives the same values as the first run.
    """
    images = torch.empty(len(pictures), *pictures[0].pixels.shape, device=mm.intermediate_device())
    for image, picture in zip(images, pictures):
        image.copy_(torch.from_numpy(picture.pixels))
    return images.div_(255)


@checked
def read_items(
    prompts: list,
    ids: list | None,
    seeds: list | None,
    pipeline: Pipeline,
    seed_mode: str = SAME,
    invalid_prompts: str = RAISE,
) -> tuple[list[BatchItem], list[LeftOut]]:
    """Return the images to generate, and the prompts for which no image is generated.

    If `ids` is None, the prompts are numbered from 1. If `seeds` is None, or the seed of a prompt is `NO_SEED`, the
    prompt gets the recipe's seed. With `STEPPED`, the prompt's index in the list is added to this seed.

    Raises:
        AdtError: If an input is invalid, or all prompts are left out.
    """
    prompts = [_text(prompt).strip() for prompt in prompts]
    ids = [str(number) for number in range(1, len(prompts) + 1)] if ids is None else [str(id) for id in ids]
    seeds = seeds if seeds is not None else [NO_SEED] * len(prompts)
    _check_lengths(prompts, ids=ids, seeds=seeds)
    items: list[BatchItem] = []
    left_out: list[LeftOut] = []
    for number, (prompt, id, seed, place) in enumerate(zip(prompts, ids, seeds, file_prefixes(ids))):
        try:
            text, note = fit_prompt(pipeline.check_prompt, prompt, invalid_prompts)
        except AdtError as error:
            remedy = "or set invalid_prompts to 'truncate' or 'skip'"
            raise AdtError(f"prompts: that with the id '{id}': {str(error).rstrip('.')}, {remedy}.") from error
        if _seed(id, seed) == NO_SEED:
            seed = (pipeline.recipe.sampling.seed + (number if seed_mode == STEPPED else 0)) % 2**64
        if text is None:
            left_out.append(LeftOut(id, prompt, note))
        else:
            items.append(BatchItem(text, seed, place, id, prompt, note))
    if not items:
        first = left_out[0]
        raise AdtError(
            f"prompts: none of the {len(prompts)} can be drawn; that with the id '{first.id}' is {first.note}."
        )
    return items, left_out


def news(items: list[BatchItem], left_out: list[LeftOut]) -> str:
    """Return a line about truncated, skipped and duplicate prompts, or ""."""
    noted = [item for item in items if item.note]
    kinds: list[tuple[Sequence[BatchItem | LeftOut], str]] = [(noted, "truncated"), (left_out, "left out")]
    total = len(items) + len(left_out)
    lines = [
        f"{len(some)} of {total} prompts are {what}. The first, '{some[0].id}': {some[0].note.removesuffix('.')}."
        for some, what in kinds
        if some
    ]
    # The node generates only one image for all items with the same prompt and seed.
    duplicates = len(items) - len({item[:2] for item in items})
    if duplicates:
        lines.append(message("batch.duplicates" if duplicates > 1 else "batch.duplicate", count=duplicates))
    return join(lines)


def _check_lengths(prompts: list, **lists: list) -> None:
    """Raise AdtError if there are no prompts, or if a list does not have one value per prompt."""
    if not prompts:
        raise AdtError("prompts: none arrived, and at least one was expected; look at the node that gives them.")
    for name, values in lists.items():
        if len(values) != len(prompts):
            raise AdtError(
                f"{name}: {len(values)} {name} arrived for {len(prompts)} prompts; connect both from the same ADT-Tree "
                f"Prompts node, or no {name}."
            )


def _seed(id: str, seed: Any) -> int:
    """Return the seed of the prompt with this id, and raise AdtError if it is not an integer in the valid range."""
    if type(seed) is not int or not NO_SEED <= seed < 2**64:
        raise AdtError(f"seeds: the seed for the id '{id}' is {shown(seed)}; an integer of at least 0 was expected.")
    return seed


def _text(prompt: Any) -> str:
    if not isinstance(prompt, str):
        raise AdtError(
            f"prompts: {shown(prompt)} is among them, and texts were expected; connect a node that gives texts."
        )
    return prompt
