"""Training node: trains a drafter for the loaded model from a list of prompts."""

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import comfy.model_management as mm
import numpy as np
import torch
from comfy_api.v0_0_2 import io
from PIL import Image

from ..adt_core import AdtError, Sampling
from ..adt_core.app import TrainingArgs, TrainingDataArgs, TrainingOutputArgs, non_blank
from ..adt_core.errors import renaming
from ..adt_core.lab import training
from ..adt_core.messages import join, message
from ..adt_core.policies import PLAIN
from ..adt_core.recipe import Placement
from . import folders
from .batch import one
from .comfy_runtime import Progress, check_cancelled, decorating, refusal, tell, telling_what_is_kept, temporary_file
from .drafting import check_same_model, open_drafter
from .prompts import check, fingerprint, read
from .sampling import prepare, preset_input, sampling_inputs
from .schema import Tooltips, schema, widget
from .sockets import DrafterSocket, LoadedDrafter, LoadedModel, ModelSocket, checked
from .weights import loaded

MEASURED = 10
"""Minimum number of measurements during the training, which are the points of the curve. It applies if the user sets
the number of steps."""
_PARTS = 1000  # number of steps of the progress bar
_TRAIN_DRAFTER_TOOLTIPS = Tooltips(
    inputs={
        "model": "The model to train a drafter for.",
        "name": "Name of the drafter. The same name and inputs continue an earlier training.",
        "prompts": "Training prompts: one per line, a list from ADT-Tree Prompts, or the name of a file in ComfyUI's "
        "input folder (.txt, .csv, .tsv, .json, .jsonl). If empty, captions that are included in the pack.",
        "training_images": "Number of images that the model generates for training. More give a better drafter and "
        "take longer to generate.",
        "minutes": "Duration of the training, without the time to generate images.",
        "start": "A drafter to start from, for example the drafter of the model that yours was fine-tuned from.",
        "seed": "Sets the noise of the training images.",
        "steps": "Maximum number of training steps. 0: only minutes limits the training.",
        "validation_prompts": "Number of prompts that are not trained on, to measure the result.",
        "generation_batch_size": "Number of training images that are generated at the same time.",
        "training_batch_size": "Number of images per training step. Fewer need less memory.",
        "cache_gb": "Disk space in GB for features of the training images, which speeds up the steps. 0 stores none.",
    },
    outputs={
        "drafter": "The drafter, for a sampler.",
        "curve": "Tokens per pass on validation prompts over the training steps, as an image.",
        "stats": "The result of the training as text.",
    },
)


class ADTTreeTrainDrafter(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        lessons = TrainingDataArgs.options()
        how = TrainingArgs.options()
        _, *numbers = sampling_inputs()
        return schema(
            "ADTTreeTrainDrafter",
            "ADT-Tree Train Drafter",
            tooltips=_TRAIN_DRAFTER_TOOLTIPS,
            description="Trains a drafter network for the model on images that the model generates from your prompts. "
            "Shows an estimate first and the progress during training. Run again to continue a cancelled training.",
            search_aliases=["eagle", "draft model", "distill", "training", "训练草稿模型", "推测解码"],
            is_input_list=True,
            inputs=[
                ModelSocket.Input("model"),
                io.String.Input("name", default="my drafter"),
                io.String.Input("prompts", default="", multiline=True),
                widget("training_images", lessons["training_images"]._replace(default=400)),
                widget("minutes", how["minutes"]._replace(default=30.0, high=1e5)),
                DrafterSocket.Input("start", optional=True),
                widget("seed", Sampling.options()["seed"], control_after_generate=False),
                *numbers,
                preset_input(),
                widget("steps", how["steps"]._replace(default=0, low=0), advanced=True),
                widget("validation_prompts", lessons["validation_prompts"]._replace(default=8), advanced=True),
                widget("generation_batch_size", lessons["generation_batch_size"], advanced=True),
                widget("training_batch_size", how["training_batch_size"], advanced=True),
                widget("cache_gb", how["cache_gb"]._replace(high=1e5), advanced=True),
            ],
            outputs=[
                DrafterSocket.Output(display_name="drafter"),
                io.Image.Output(display_name="curve"),
                io.String.Output(display_name="stats"),
            ],
            is_output_node=True,
        )

    @classmethod
    def validate_inputs(cls, name: list | None = None, prompts: list | None = None) -> bool | str:
        return refusal(
            _check, **{key: one(key, values) for key, values in (("name", name), ("prompts", prompts)) if values}
        )

    @classmethod
    def fingerprint_inputs(cls, prompts: list | None = None, **_) -> str:
        return fingerprint(prompts[0]) if prompts and isinstance(prompts[0], str) else ""

    @classmethod
    def execute(cls, **lists: list) -> io.NodeOutput:
        prompts = lists.pop("prompts", [""])
        return cls._train(prompts=prompts, **{name: one(name, values) for name, values in lists.items()})

    @classmethod
    @checked
    def _train(
        cls,
        model: LoadedModel,
        name: str,
        prompts: list,
        training_images: int,
        minutes: float,
        steps: int,
        validation_prompts: int,
        generation_batch_size: int,
        training_batch_size: int,
        cache_gb: float,
        start: LoadedDrafter | None = None,
        preset: str | None = None,
        **sampling,
    ) -> io.NodeOutput:
        if start is not None:
            check_same_model(start, model)
        with renaming(output="name"):
            folder = _folder(name)
            texts = _texts(prompts)
            data = TrainingDataArgs(None, None, training_images, validation_prompts, generation_batch_size)
            first = start.path if start is not None else None
            how = TrainingArgs(first, steps or None, minutes, training_batch_size, cache_gb=cache_gb)
            given = _given(model, preset, **sampling)
            # With few steps, the interval is smaller, so that the curve has at least `MEASURED` points.
            every = max(1, min(TrainingOutputArgs.every, (steps or 10**6) // MEASURED))
            output = TrainingOutputArgs(output=folder, every=every)
            plan = training.plan(data, how, output, given, Placement(model.patcher.load_device.type), texts)
            news, log = _run(plan, model, cls.hidden.unique_id)
        last = log[-1]
        picture = training.curve(log, plan.training.passes)
        tell(message("training.done", name=name, tau=f"{last['tau']:.2f}", steps=last["step"]), logging.INFO)
        image = torch.from_numpy(np.asarray(picture, dtype=np.float32) / 255)[None]
        drafter = open_drafter(model, str(folder))
        shown: dict[str, list] = {}
        with decorating("the curve on the node"):
            shown["images"] = [temporary_file(f"adt_tree_{name}", ".png", picture.save)]
        return io.NodeOutput(drafter, image, news, ui=shown)


class _NodeWatch(training.TrainingCallback):
    """Progress of a training on its node: the bar, a line of text, and the curve as a preview.

    Attributes:
        kept: Message on the kept results of a stopped training; "" while it runs.
    """

    check = staticmethod(check_cancelled)

    def __init__(self, node_id: str, passes: int):
        self._node_id = node_id
        self._passes = passes
        self._log: list[dict] = []
        self._bars: dict[str, Progress] = {}
        self._learning = 0.0
        self._began: dict[str, float] = {}
        self.kept = ""

    def on_estimate(self, estimate: training.TrainingEstimate) -> None:
        self._learning = estimate.learning
        tell(estimate.message, logging.INFO)

    def on_images(self, done: float, total: int) -> None:
        line = message("training.images", done=int(done), count=total)
        self._update("pictures", done / total, line, self._learning)

    def on_step(self, run: training.Run, log: list[dict]) -> None:
        self._log = log
        line = message("training.steps", steps=run.step)
        if log:
            line = message("training.steps_and_tau", steps=run.step, tau=f"{log[-1]['tau']:.2f}")
        self._update("steps", run.fraction, line)

    def on_stop(self, images: int, total: int, steps: int) -> None:
        self.kept = message("training.kept_images", done=images, count=total)
        if steps:
            self.kept = message("training.kept_steps", steps=steps)

    def _update(self, stage: str, share: float, line: str, then: float = 0.0) -> None:
        """Show a line with the time left, from the speed so far and `then`, the estimated seconds of later stages."""
        now = time.monotonic()
        passed = now - self._began.setdefault(stage, now)
        left = passed * (1 - share) / share + then if passed and share else 0.0
        text = join((line, message("training.left", seconds=round(left))), "") if left else line
        if stage not in self._bars:
            self._bars[stage] = Progress(_PARTS, self._node_id, self._curve if stage == "steps" else None)
        self._bars[stage].update(int(share * _PARTS), text)

    def _curve(self) -> Image.Image | None:
        return training.curve(self._log, self._passes) if self._log else None


def _run(plan: training.TrainingPlan, model: LoadedModel, node_id: str) -> tuple[str, list[dict]]:
    """Train, and return a summary and the log.

    ComfyUI runs nodes in PyTorch's inference mode. Weights that were moved to the device in this mode cannot propagate
    gradients. This function therefore unloads all models, and loads the weights again outside inference mode.
    """
    with torch.inference_mode(False), torch.enable_grad():
        mm.unload_all_models()
        watch = _NodeWatch(node_id, plan.training.passes)
        tell(message("training.begin"), logging.INFO, is_lasting=False)  # loading and measuring can take half a minute
        weights = [model.patcher, *filter(None, [model.text])]
        with telling_what_is_kept(lambda: watch.kept), loaded(weights) as device:
            trainer = training.train(replace(plan, placement=Placement(str(device))), model.target, watch)
            return trainer.summary, trainer.log


def _given(model: LoadedModel, preset: str | None, **sampling) -> dict[str, Any]:
    """Return the settings with which the training images are generated, by the field names of a `Recipe`."""
    run = prepare(model, settings={"method": PLAIN}, preset=preset, **sampling)
    if note := join(run.notes):
        tell(note)
    recipe = run.pipeline.recipe
    return {"model": model.path, **model.target.loaded, **recipe.sampling.flat(), "suffix": recipe.suffix}


def _check(name: str | None = None, prompts: str = "") -> None:
    """Check the inputs before a run. Large files are not read; see `prompts.check`."""
    if name is not None:
        _folder(name)
    check(prompts, "prompts")


def _folder(name: str) -> Path:
    """Return the folder of a new drafter. Raise AdtError if the name is invalid or not free."""
    folders.check_name(name)
    if name in folders.WITHOUT_FILES:
        raise AdtError("name.taken", name=name)
    return folders.new_drafter(name)


def _texts(prompts: list) -> list[str]:
    """Return the training prompts. Several values are one prompt each; a single one is a file, or one per line."""
    if len(prompts) == 1:
        return [prompt.text for prompt in non_blank(read(str(prompts[0]), "prompts"))]
    return [str(prompt) for prompt in prompts if str(prompt).strip()]
