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

from ..adt_core.app.batch import Batch, Picture, key
from ..adt_core.app.jobs import Job, rounds, stretches
from ..adt_core.engine.decoding import Decoding
from ..adt_core.errors import AdtError
from ..adt_core.rules.sampling import Sampling
from ..adt_core.rules.verify import Lantern
from .runtime import Progress, check_cancelled, loaded, refusal
from .sampling import choose_drafting, loaded_for, patchers, preview, sampling_inputs
from .schema import schema
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
)
from .stock import encode, to_image

FOLDER = "adt_tree_batches"


class ADTTreeBatchSampler(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            "ADTTreeBatchSampler",
            "ADT-Tree Batch Sampler",
            description="Makes an image for each prompt of a list, several at a time. Every image is saved as soon as "
            f"it is finished, in a folder of output/{FOLDER} that belongs to the settings: a batch that was cancelled "
            "goes on where it stopped when it is queued again, and prompts that are added later join those that are "
            "done.",
            search_aliases=["prompt list", "batch generate", "dataset", "coco", "resume"],
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
                io.Int.Input("chunk_size", default=4, min=1, max=256),
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
    def validate_inputs(
        cls, guidance: list | None = None, temperature: list | None = None, top_p: list | None = None
    ) -> bool | str:
        given = {"guidance": guidance, "temperature": temperature, "top_p": top_p}
        return refusal(Sampling, **{name: values[0] for name, values in given.items() if values})

    @classmethod
    def execute(cls, prompts: list[str], ids: list | None = None, **lists: list) -> io.NodeOutput:
        single = {name: _one(name, values) for name, values in lists.items()}
        model, drafter, chunk_size = single.pop("model"), single.pop("drafter", None), single.pop("chunk_size")
        prompts = [prompt.strip() for prompt in prompts]
        ids = [str(number) for number in range(1, len(prompts) + 1)] if ids is None else [str(id) for id in ids]
        _check(prompts=prompts, ids=ids, model=model)
        job = _job(model=model, drafter=drafter, **single)
        with loaded(patchers(model, drafter)):  # the folder is named by what the weights are
            folder = Path(folder_paths.get_output_directory()) / FOLDER / key(job)
        batch = Batch(job, folder, _metadata(cls.hidden))
        made = _make(batch, model, drafter, list(dict.fromkeys(prompts)), chunk_size, cls.hidden.unique_id)
        rows = [
            {"id": id, "prompt": text, **made[text][0].figures, "file": made[text][0].path.name}
            for id, text in zip(ids, prompts)
        ]
        settings = {name: value for name, value in job.settings("").items() if name != "prompt"}
        results = BatchResults(torch.cat([made[text][1] for text in prompts]), rows, settings, folder)
        subfolder = f"{FOLDER}/{folder.name}"
        saved = [ui.SavedResult(picture.path.name, subfolder, io.FolderType.output) for picture, _ in made.values()]
        return io.NodeOutput(results.images, ids, results, ui=ui.SavedImages(saved))


def _one(name: str, values: Sequence) -> Any:
    """The value of an input that is no list: a node that takes lists gets it as a list of one."""
    if len(values) != 1:
        raise AdtError(
            f"{name}: {len(values)} values arrived, and all images of a batch share one; connect a node that gives a "
            "single value."
        )
    return values[0]


@checked
def _check(prompts: list, ids: list, model: LoadedModel) -> None:
    """Raises AdtError, naming the prompt, for what would otherwise be found after an hour."""
    if len(ids) != len(prompts):
        raise AdtError(
            f"ids: {len(ids)} ids arrived for {len(prompts)} prompts; connect both from the same ADT-Tree Prompts "
            "node, or no ids."
        )
    for id, prompt in zip(ids, prompts):
        try:
            encode(model, prompt)
        except AdtError as error:
            raise AdtError(f"prompts: that with the id '{id}': {error}") from error


@checked
def _job(
    model: LoadedModel,
    drafter: LoadedDrafter | None,
    negative: str,
    settings: dict | None = None,
    lantern: Lantern | None = None,
    **sampling,
) -> Job:
    return Job(
        model.target,
        Sampling(**sampling),
        choose_drafting(settings, drafter, model),
        drafter.drafter if drafter is not None else None,
        lantern,
        negative,
        model_path=model.path,
        drafter_path=drafter.path if drafter is not None else None,
    )


def _metadata(hidden: Any) -> dict[str, str]:
    """The text chunks of ComfyUI's own PNGs: a picture that is dropped on the page opens its workflow."""
    if args.disable_metadata:
        return {}
    found = {"prompt": hidden.prompt, **(hidden.extra_pnginfo or {})}
    return {name: json.dumps(value) for name, value in found.items() if value is not None}


def _make(
    batch: Batch, model: LoadedModel, drafter: LoadedDrafter | None, prompts: list[str], chunk_size: int, node_id: str
) -> dict[str, tuple[Picture, Tensor]]:
    """Make what is not in the folder yet. For each prompt, in their order: the picture and its IMAGE [1, H, W, 3]."""
    kept = {text: picture for text in prompts if (picture := batch.find(text)) is not None}
    missing = [text for text in prompts if text not in kept]
    made = _draw(batch, model, drafter, missing, len(kept), chunk_size, node_id)
    if kept:
        target = model.target
        room = target.codec.working_bytes(target.length * target.downsample**2)
        with loaded([model.codec], memory_required=room):
            for text, picture in kept.items():
                made[text] = picture, _image(batch.job.pixels(picture.codes[None], check_cancelled))
    return {text: made[text] for text in prompts}


def _draw(
    batch: Batch,
    model: LoadedModel,
    drafter: LoadedDrafter | None,
    missing: list[str],
    kept: int,
    chunk_size: int,
    node_id: str,
) -> dict[str, tuple[Picture, Tensor]]:
    """Make the images of these prompts, and write each once it is finished. kept: images that were made before."""
    length, count = model.target.length, kept + len(missing)
    made: dict[str, tuple[Picture, Tensor]] = {}
    decoding: Decoding
    progress = Progress(count * length, node_id, lambda: preview(model.target, decoding, decoding.at_work[0]))
    for stretch in stretches(len(missing), chunk_size):
        prompts = missing[stretch.start : stretch.stop]
        decoding = batch.job.decoding(prompts, at_once=chunk_size, check=check_cancelled)
        with loaded_for([decoding], model, drafter), closing(rounds(decoding)) as running:
            for finished in running:
                for image in finished:
                    picture, pixels = batch.keep(decoding, image, prompts[image], check_cancelled)
                    made[prompts[image]] = picture, _image(pixels)
                done = (kept + stretch.start) * length + decoding.done_tokens
                progress.update(done, f"{kept + len(made)} of {count} images, {done} of {count * length} tokens")
    progress.say(f"{count} images, {kept} of them made before; they are in output/{FOLDER}/{batch.folder.name}")
    return made


def _image(pixels: Tensor) -> Tensor:
    return to_image(pixels).to(mm.intermediate_device())
