"""The batch sampler node: an image for each prompt of a list, several at a time, none made twice."""

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import comfy.model_management as mm
import folder_paths
import torch
from comfy.cli_args import args
from comfy_api.v0_0_2 import io, ui
from torch import Tensor

from .. import adt_core
from ..adt_core.app.batch import STRETCH, Batch, Picture
from ..adt_core.errors import AdtError
from .loaders import CATEGORY
from .runtime import Progress, check_cancelled, load, refusal
from .sampler import preview
from .sampling import choose_drafting, patchers, sampling_inputs
from .sockets import (
    BatchResults,
    DrafterSocket,
    LanternSocket,
    LoadedDrafter,
    LoadedModel,
    ModelSocket,
    ResultsSocket,
    SettingsSocket,
)
from .stock import encode, to_image

FOLDER = "adt_tree_batches"


class ADTTreeBatchSampler(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ADTTreeBatchSampler",
            display_name="ADT-Tree Batch Sampler",
            category=CATEGORY,
            description="Makes an image for each prompt of a list, several at a time. Every image is saved as soon as it is finished, in a folder of "
            f"output/{FOLDER} that belongs to the settings: a batch that was cancelled goes on where it stopped when it is queued again, and prompts "
            "that are added later join those that are done.",
            search_aliases=["prompt list", "batch generate", "dataset", "coco", "resume"],
            is_input_list=True,
            inputs=[
                ModelSocket.Input("model", tooltip="The model that makes the images."),
                io.String.Input(
                    "prompts",
                    force_input=True,
                    tooltip="What to draw: the list of an ADT-Tree Prompts node, or of any node that gives texts. The same prompt twice is one image.",
                ),
                io.String.Input(
                    "ids",
                    optional=True,
                    force_input=True,
                    tooltip="What each prompt is called in the report, one for each; without them, prompts are numbered.",
                ),
                DrafterSocket.Input(
                    "drafter",
                    optional=True,
                    tooltip="What guesses ahead. Without one the settings' method has to be 'autoregressive'.",
                ),
                SettingsSocket.Input(
                    "settings", optional=True, tooltip="How to draft; without it, ADT-Tree with its defaults."
                ),
                LanternSocket.Input(
                    "lantern",
                    optional=True,
                    tooltip="Relaxed acceptance, which changes the images, by the drafter and its settings as well; without it, exact.",
                ),
                *sampling_inputs(
                    "Decides the noise, the same for every prompt: each image is the one that the ADT-Tree Sampler gives for its prompt with this seed, "
                    "whatever else is in the list. For other images of the same prompts, queue again with another seed."
                ),
                io.String.Input(
                    "negative",
                    default="",
                    multiline=True,
                    tooltip="Usually empty. A text here pushes all images away from what it says, as the ADT-Tree Sampler's negative does.",
                ),
                io.Int.Input(
                    "chunk_size",
                    default=4,
                    min=1,
                    max=256,
                    tooltip="How many images are made at the same time; when one is finished, the next takes its place. More is faster and takes more "
                    "memory; it does not change the images, so a batch may go on with another number. Cancelling loses those in the making, and no "
                    "finished one.",
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="images",
                    tooltip="All images as one batch, in the order of the prompts. They are held in memory, 3 MB each at 512 by 512 pixels: take thousands in "
                    "parts, by the start and count of ADT-Tree Prompts.",
                ),
                io.String.Output(display_name="ids", is_output_list=True, tooltip="The id of each image, as a list."),
                ResultsSocket.Output(
                    display_name="results", tooltip="Images, figures and files, for the ADT-Tree Collector."
                ),
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt, io.Hidden.extra_pnginfo],
            is_output_node=True,
        )

    @classmethod
    def validate_inputs(cls, guidance: list = None, temperature: list = None, top_p: list = None) -> bool | str:
        given = {"guidance": guidance, "temperature": temperature, "top_p": top_p}
        return refusal(adt_core.Sampling, **{name: values[0] for name, values in given.items() if values})

    @classmethod
    def execute(cls, prompts: list[str], ids: list | None = None, **lists: list) -> io.NodeOutput:
        single = {name: _one(name, values) for name, values in lists.items()}
        model, chunk_size = single.pop("model"), single.pop("chunk_size")
        prompts = [prompt.strip() for prompt in prompts]
        ids = [str(number) for number in range(1, len(prompts) + 1)] if ids is None else [str(id) for id in ids]
        _check(prompts, ids, model)
        batch = _batch(model, texts=_metadata(cls.hidden), **single)
        folder = Path(folder_paths.get_output_directory()) / FOLDER / batch.key()
        found, images = _make(
            batch, model, single.get("drafter"), list(dict.fromkeys(prompts)), folder, chunk_size, cls.hidden.unique_id
        )
        rows = [
            {"id": id, "prompt": text, **found[text].figures, "file": found[text].path.name}
            for id, text in zip(ids, prompts)
        ]
        settings = {name: value for name, value in batch.settings("").items() if name != "prompt"}
        results = BatchResults(torch.cat([images[text] for text in prompts]), rows, settings, folder)
        subfolder = f"{FOLDER}/{folder.name}"
        saved = [ui.SavedResult(picture.path.name, subfolder, io.FolderType.output) for picture in found.values()]
        return io.NodeOutput(results.images, ids, results, ui=ui.SavedImages(saved))


def _one(name: str, values: Sequence) -> Any:
    """The value of an input that is no list; lists of one are how ComfyUI hands it to a node that takes lists."""
    if len(values) != 1:
        raise AdtError(
            f"{name}: {len(values)} values arrived, and all images of a batch share one; connect a node that gives a single value."
        )
    return values[0]


def _check(prompts: list[str], ids: list[str], model: LoadedModel) -> None:
    """What would otherwise be found after an hour. AdtError that names the prompt."""
    if len(ids) != len(prompts):
        raise AdtError(
            f"ids: {len(ids)} ids arrived for {len(prompts)} prompts; connect both from the same ADT-Tree Prompts node, or no ids."
        )
    for id, prompt in zip(ids, prompts):
        try:
            encode(model, prompt)
        except AdtError as error:
            raise AdtError(f"prompts: that with the id '{id}': {error}") from error


def _batch(
    model: LoadedModel,
    texts: dict[str, str],
    negative: str,
    drafter: LoadedDrafter | None = None,
    settings: "adt_core.Drafting | None" = None,
    lantern: "adt_core.Lantern | None" = None,
    **sampling,
) -> Batch:
    drafting = choose_drafting(settings, drafter, model)
    named = {"drafter": drafter.drafter, "drafter_name": drafter.name} if drafter is not None else {}
    return Batch(
        model.target, adt_core.Sampling(**sampling), drafting, **named, lantern=lantern, negative=negative, texts=texts
    )


def _metadata(hidden: Any) -> dict[str, str]:
    """The text chunks that ComfyUI's own PNGs have, so that dropping one on the page opens its workflow."""
    if args.disable_metadata:
        return {}
    found = {"prompt": hidden.prompt, **(hidden.extra_pnginfo or {})}
    return {name: json.dumps(value) for name, value in found.items() if value is not None}


def _make(
    batch: Batch,
    model: LoadedModel,
    drafter: LoadedDrafter | None,
    prompts: list[str],
    folder: Path,
    chunk_size: int,
    node_id: str,
) -> tuple[dict[str, Picture], dict[str, Tensor]]:
    """Make what is not in the folder yet. For each prompt, in their order: the finished picture, and its IMAGE [1, H, W, 3]."""
    found = {text: picture for text in prompts if (picture := batch.find(folder, text)) is not None}
    todo, kept = [text for text in prompts if text not in found], len(found)
    length = model.target.length
    images: dict[str, Tensor] = {}
    decoding = None
    progress = Progress(len(prompts) * length, node_id, lambda: preview(model.target, decoding, decoding.at_work[0]))
    for first in range(0, len(todo), STRETCH * chunk_size):
        chunk = todo[first : first + STRETCH * chunk_size]
        decoding = batch.start(chunk, chunk_size, check_cancelled)
        load(patchers(model, drafter), memory_required=decoding.memory_required())
        with closing(batch.run(decoding, chunk, folder, check_cancelled)) as rounds:
            for finished in rounds:
                for picture, pixels in finished:
                    found[picture.prompt] = picture
                    images[picture.prompt] = to_image(pixels).to(mm.intermediate_device())
                done = (kept + first) * length + decoding.done_tokens
                progress.update(
                    done, f"{len(found)} of {len(prompts)} images, {done} of {len(prompts) * length} tokens"
                )
    if kept:
        side = model.target.downsample
        device = load([model.codec], memory_required=model.target.codec.working_bytes(length * side**2))
        for text in found.keys() - images.keys():
            images[text] = to_image(
                model.target.codec.decode(found[text].codes[None].to(device), check=check_cancelled)
            ).to(mm.intermediate_device())
    progress.say(f"{len(prompts)} images, {kept} of them made before; they are in output/{FOLDER}/{folder.name}")
    return {text: found[text] for text in prompts}, images
