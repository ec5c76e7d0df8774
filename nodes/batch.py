"""Batch sampler node: generates an image for each prompt of a list, several at a time.

Finished images are saved in a folder. If the same list is queued again, the node generates only the missing images.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from statistics import mean
from typing import Any

import comfy.model_management as mm
import folder_paths
import torch
from comfy.cli_args import args
from comfy_api.v0_0_2 import io, ui
from torch import Tensor

from ..adt_core import AdtError, Lantern, Pipeline
from ..adt_core.app import domain_warning, write_manifest
from ..adt_core.errors import PromptTooLongError, shown
from ..adt_core.messages import join, message, parts_of
from ..adt_core.recipe import Recipe
from ..adt_core.run import (
    IMAGE_STATS,
    INVALID_MODES,
    RAISE,
    Identity,
    Job,
    JobList,
    PngStore,
    PromptEntry,
    digest,
    existing_images,
    file_name,
    fit_jobs,
    is_keyword,
    named_folder,
    read_pixels,
)
from .comfy_runtime import Progress, check_cancelled, show_images, show_line, tell, telling_what_is_kept
from .drafting import AUTO, drafting_input
from .prompts import NO_SEED, ADTTreePrompts
from .sampling import Run, noise_input, prepare, preset_input, sampling_inputs
from .saved_map import without_maps
from .schema import Tooltips, schema
from .sockets import (
    NO_QUEUE,
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
PER_IMAGE, SAME, STEPPED = "per image", "same", "increment"
"""Values of the input `seed_mode`.

`PER_IMAGE`: the noise of an image depends on the input `seed` and on the number of its prompt. `SAME`: all prompts use
the same noise. `STEPPED`: the first prompt uses the value of `seed`, the second prompt this value + 1, and so on.
"""
CHUNK = 4  # default number of images that are decoded together
_SHOWN_EVERY, _SHOWN = 1.0, 64
"""The node shows finished images during the run. `_SHOWN_EVERY` is the number of seconds between two updates of these
images, and `_SHOWN` is the maximum number of images that an update shows."""


_BATCH_SAMPLER_TOOLTIPS = Tooltips(
    inputs={
        "model": "The model that generates the images.",
        "prompts": "The prompts, from ADT-Tree Prompts or any node that outputs text.",
        "seed": "Sets the noise of every image, unless seed_mode or seeds sets another seed. Queue again with another "
        "seed for other images of the same prompts.",
        "negative": "Usually left empty. A text here pushes all images away from its content.",
        "batch_size": "Number of images that are generated at the same time. Larger is faster and uses more memory. "
        "It does not change the images. Cancelling loses only unfinished images.",
        "ids": "One id per prompt, for file names and the report. If not connected, prompts are numbered.",
        "lantern": "Relaxed acceptance, which changes the images. The result also depends on the drafter and the "
        "settings. If not connected, drafting decides.",
        "seed_mode": "per image: the noise depends on seed and on the number of the prompt, so equal prompts give "
        "different images. same: all prompts use the same noise. increment: the first prompt uses seed, the second "
        "seed + 1 and so on.",
        "seeds": "One seed per prompt, from ADT-Tree Prompts. For a value of −1, seed and seed_mode decide.",
        "invalid_prompts": "Prompts that are empty or too long for the model. error: stop before the first image and "
        "name the prompt. truncate: use as many words as fit; skip empty prompts. skip: leave them out. The report "
        "lists them.",
        "folder": "Start of the folder's name. If empty, the model's name. Every list has a folder of its own.",
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
                io.Combo.Input("seed_mode", options=[PER_IMAGE, SAME, STEPPED], default=PER_IMAGE, optional=True),
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
        asked = {name: single.pop(name) for name in ("seed_mode", "invalid_prompts") if name in single}
        batch_size = single.pop("batch_size", CHUNK)
        name = single.pop("folder", "")
        hidden = cls.hidden or NO_QUEUE
        run = _prepared(**single)
        check = cache(run.pipeline.check_prompt)  # the count and the jobs need the tokens of each prompt
        _count_too_long(prompts, check, run.pipeline.target.name, hidden)
        given = read_jobs(prompts=prompts, ids=ids, seeds=seeds, recipe=run.pipeline.recipe, check=check, **asked)
        batch = _batch(run=run, given=given, folder=name)
        records, remark = _draw(batch, run, batch_size, hidden)
        kept = message("batch.metadata") if args.disable_metadata else ""
        if remarks := join((remark, *run.notes, news(batch), kept)):
            where = message("batch.folder", folder=_shown(batch.store.folder))
            tell(join((remarks, where)))  # joined, because a node shows only one line at a time
        rows = [_row(job, records[job.number], run.pipeline.recipe.lantern is not None) for job in batch.jobs]
        write_manifest(batch.store.folder, batch.store.jobs)
        settings = {name: value for name, value in run.pipeline.settings("").items() if name != "prompt"}
        left_out = [{"id": job.id, "prompt": job.prompt, "note": note} for job, note in batch.left_out.items()]
        results = BatchResults(_images(batch), rows, settings, batch.store.folder, left_out)
        saved = ui.SavedImages(_saved(batch.jobs, batch.store.folder))
        return with_warning(cls, io.NodeOutput(results.images, [job.id for job in batch.jobs], results, ui=saved))


@dataclass(frozen=True)
class Batch:
    """Images of a batch.

    Attributes:
        store: Folder of the images.
        jobs: Images to generate.
        left_out: Prompts for which no image is generated, with the reason.
    """

    store: PngStore
    jobs: list[Job]
    left_out: dict[Job, str]


def _row(job: Job, record: Mapping[str, Any], relaxed: bool) -> dict:
    """Return the row of an image in the report. `relaxed` is True with LANTERN."""
    whole = {"caption": job.prompt} if job.text != job.prompt else {}
    own = {"seed": job.seed, "file": file_name(job.number), "note": job.note, "relaxed": relaxed}
    own["drafter"] = record.get("drafter")
    figures = {name: record["figures"][name] for name in IMAGE_STATS}  # a file of others may have more
    return {"id": job.id, "prompt": job.text, **figures, **own, **whole}


def _saved(jobs: Iterable[Job], folder: Path) -> list[ui.SavedResult]:
    """Return the file of each image for the `ui` output."""
    places = [PurePosixPath(FOLDER, folder.name, file_name(job.number)) for job in jobs]
    return [ui.SavedResult(place.name, str(place.parent), io.FolderType.output) for place in places]


def one(name: str, values: Sequence) -> Any:
    """Return the only value of an input, which ComfyUI passes as a list. Raise AdtError if there is not exactly one."""
    if len(values) != 1:
        raise AdtError("input.several", input=name, count=len(values))
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
        raise AdtError("negative.invalid", error=error) from error
    return run


def metadata(hidden: Any) -> dict[str, str]:
    """Return the text chunks for the PNG files of a batch, by keyword. They are {} if the server disables metadata.

    ComfyUI's Save Image node writes the same text chunks, except that acceptance maps are removed here. The maps in the
    workflow belong to images of other nodes.

    Args:
        hidden: Hidden inputs `prompt` and `extra_pnginfo` of the node.
    """
    if args.disable_metadata:
        return {}
    more = hidden.extra_pnginfo if isinstance(hidden.extra_pnginfo, dict) else {}
    texts = {"prompt": hidden.prompt, **without_maps(more)}
    return {name: json.dumps(value) for name, value in texts.items() if value is not None and is_keyword(name)}


@checked
def _batch(run: Run, given: tuple[JobList, list[Job], dict[Job, str]], folder: str) -> Batch:
    """Return the images of a batch. The name of its folder consists of `folder`, or the model's name, and a digest.

    The digest contains all settings and the list of prompts. So a folder has the images of one list only.
    """
    whole, jobs, left_out = given
    with run.loaded():  # the identity contains a digest of the weights
        identity = Identity.of(run.pipeline, check_cancelled)
    unique = digest([identity.key, [[job.prompt, job.seed, job.index] for job in whole]])[:16]
    root = Path(folder_paths.get_output_directory()) / FOLDER
    place = named_folder(root, unique, folder.strip(), run.model.target.name)
    return Batch(PngStore(whole, place, identity, remedy="remedy.delete_file", check=check_cancelled), jobs, left_out)


def _shown(folder: Path) -> str:
    """Return the path of a folder of images, relative to the folder of ComfyUI."""
    return f"output/{FOLDER}/{folder.name}"


@checked
def _present(batch: Batch) -> dict[int, Mapping[str, Any]]:
    """Return number -> record of the images that are in the folder."""
    return {number: _without_tokens(record) for number, record in batch.store.present()}


def _without_tokens(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record that is small enough to be kept for each image of a long list."""
    return {name: value for name, value in record.items() if name != "tokens"}


def _draw(batch: Batch, run: Run, batch_size: int, hidden: Any) -> tuple[dict[int, Mapping[str, Any]], str]:
    """Generate and save the images that are not in the folder yet. Progress also counts the images of earlier runs.

    Returns:
        Number -> record of all images, and a remark for the user or "".
    """
    length = run.model.target.length
    total = len(batch.jobs) * length
    progress = Progress(total, hidden.unique_id, None)
    with telling_what_is_kept(lambda: _kept(batch)):
        records = _present(batch=batch)
        missing = [job for job in batch.jobs if job.number not in records]
        done = [job for job in batch.jobs if job.number in records]
        earlier = len(done)
        remark = ""
        shown = 0.0
        for step in run.decode(missing, batch_size):
            for finished in step.finished:
                result = finished.result(metadata(hidden), **finished.listed(batch.store.identity.key))
                batch.store.add(finished.job, result.png, result.record)
                records[finished.job.number] = _without_tokens(result.record)
                done.append(finished.job)
            if step.finished and time.monotonic() - shown > _SHOWN_EVERY:
                show_images(hidden.unique_id, _saved(done[-_SHOWN:], batch.store.folder))
                shown = time.monotonic()
            tokens = earlier * length + step.done
            line = message("batch.progress", done=len(done), count=len(batch.jobs), tokens=tokens, total=total)
            progress.update(tokens, line)
            remark = step.decoding.invariance.remark
    unknown = domain_warning(run.model.target, [job.text for job in batch.jobs])
    counts: dict[str, str | int] = {"count": len(batch.jobs), "folder": _shown(batch.store.folder)}
    line = message("batch.done", earlier=earlier, **counts) if earlier else message("batch.made", **counts)
    progress.say(join((line, _relaxed(run.pipeline, records)), ""))
    return records, join((unknown, remark))


def _kept(batch: Batch) -> str:
    count = len(existing_images(batch.store.folder).keys() & {job.number for job in batch.jobs})
    return message("batch.kept", done=count, count=len(batch.jobs), folder=_shown(batch.store.folder))


def _relaxed(pipeline: Pipeline, records: Mapping[int, Mapping[str, Any]]) -> str:
    """Return a text with the mean share of tokens that LANTERN replaced, or "" without LANTERN."""
    if pipeline.recipe.lantern is None:
        return ""
    replaced = mean(record["figures"]["substitution_rate"] for record in records.values())
    return message("batch.relaxed", share=f"{100 * replaced:.1f}")


def _images(batch: Batch) -> Tensor:
    """Return the pixels of the saved files as an IMAGE [B, H, W, 3]."""
    width, height = batch.store.identity.size
    images = torch.empty(len(batch.jobs), height, width, 3, device=mm.intermediate_device())
    for image, job in zip(images, batch.jobs):
        pixels = read_pixels(batch.store.folder / file_name(job.number), (width, height))
        if pixels is None:
            raise AdtError("batch.changed", file=file_name(job.number), folder=_shown(batch.store.folder))
        image.copy_(torch.from_numpy(pixels))
    return images.div_(255)


@checked
def read_jobs(
    prompts: list,
    ids: list | None,
    seeds: list | None,
    recipe: Recipe,
    check: Callable[[str], str],
    seed_mode: str = PER_IMAGE,
    invalid_prompts: str = RAISE,
) -> tuple[JobList, list[Job], dict[Job, str]]:
    """Return the list of all prompts, the images to generate, and the prompts for which no image is generated.

    If `ids` is None, the prompts are numbered from 1. If `seeds` is None, or the seed of a prompt is `NO_SEED`, the
    input `seed_mode` decides.

    Args:
        check: Function that checks a prompt, as in :func:`~adt_core.run.jobs.fit_jobs`.

    Raises:
        AdtError: If an input is invalid, or all prompts are left out.
    """
    prompts = [_text(prompt).strip() for prompt in prompts]
    ids = [str(number) for number in range(1, len(prompts) + 1)] if ids is None else [str(id) for id in ids]
    seeds = seeds if seeds is not None else [NO_SEED] * len(prompts)
    _check_lengths(prompts, ids=ids, seeds=seeds)
    first = recipe.sampling.seed
    entries = []
    for number, (prompt, id, seed) in enumerate(zip(prompts, ids, seeds)):
        own = None if _seed(id, seed) == NO_SEED else seed
        if own is None and seed_mode == STEPPED:
            own = (first + number) % 2**64
        entries.append(PromptEntry(id, prompt, own))
    whole = JobList(entries, recipe, same_noise=seed_mode == SAME)
    jobs: list[Job] = []
    left_out: dict[Job, str] = {}
    for job in whole:
        try:
            fitting, unfit = fit_jobs([job], check, invalid_prompts)
        except AdtError as error:
            raise AdtError("prompts.one_invalid", id=job.id, error=error) from error
        jobs += fitting
        left_out |= unfit
    if not jobs:
        job, reason = next(iter(left_out.items()))
        raise AdtError("prompts.none_drawn", count=len(prompts), id=job.id, reason=reason)
    return whole, jobs, left_out


def _count_too_long(prompts: list, check: Callable[[str], str], model: str, hidden: Any) -> None:
    """Show below the Prompts node how many of its prompts are too long. That node itself does not know the model."""
    graph = hidden.prompt or {}
    link = graph.get(hidden.unique_id, {}).get("inputs", {}).get("prompts")
    source = link[0] if isinstance(link, list) else None
    if source is None or graph.get(source, {}).get("class_type") != ADTTreePrompts.__name__:
        return
    too_long = sum(_is_too_long(prompt, check) for prompt in prompts)
    if too_long:
        line = message("prompts.too_long", count=len(prompts), long=too_long, model=model)
        show_line(source, line, logging.WARNING, is_lasting=True)


def _is_too_long(prompt: Any, check: Callable[[str], str]) -> bool:
    try:
        check(_text(prompt).strip())
    except AdtError as error:
        return isinstance(error, PromptTooLongError)
    return False


def news(batch: Batch) -> str:
    """Return a line about truncated and skipped prompts, or ""."""
    truncated = [(job.id, job.note) for job in batch.jobs if job.note]
    left_out = [(job.id, note) for job, note in batch.left_out.items()]
    total = len(batch.jobs) + len(left_out)
    return join(
        message(key, some=len(some), count=total, id=some[0][0], note=_without_stop(some[0][1]))
        for key, some in (("prompts.truncated", truncated), ("prompts.left_out", left_out))
        if some
    )


def _without_stop(note: str) -> str:
    return note if parts_of(note)[0].key else note.removesuffix(".")


def _check_lengths(prompts: list, **lists: list) -> None:
    """Raise AdtError if there are no prompts, or if a list does not have one value per prompt."""
    if not prompts:
        raise AdtError("prompts.none_arrived")
    for name, values in lists.items():
        if len(values) != len(prompts):
            raise AdtError("prompts.lengths", input=name, count=len(values), prompts=len(prompts))


def _seed(id: str, seed: Any) -> int:
    """Return the seed of the prompt with this id, and raise AdtError if it is not an integer in the valid range."""
    if type(seed) is not int or not NO_SEED <= seed < 2**64:
        raise AdtError("seeds.invalid", id=id, value=shown(seed))
    return seed


def _text(prompt: Any) -> str:
    if not isinstance(prompt, str):
        raise AdtError("prompts.no_text", prompt=shown(prompt))
    return prompt
