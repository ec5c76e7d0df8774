"""Command `python adt.py train-drafter`: train an EAGLE drafter for any target.

The training data are images that the target generates for prompts, or image files with captions. Some of the images are
*held out*: the drafter is not trained on them, and its acceptance is measured on them. The output folder contains:

- `config.json` and `model.safetensors`: the drafter after the last measurement, for the option `--drafter`.
- `log.csv`: loss, and acceptance on the held-out images.
- `log.png`: chart of the tokens per target pass on the held-out images.
- `training/`: state from which the same command resumes the training. After the training it may be deleted.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...app.args import TrainingArgs, TrainingDataArgs, TrainingOutputArgs, given_paths
from ...drafters import JACOBI, is_network
from ...drafters.eagle import EagleDrafter
from ...drafters.eagle_files import config_fields, load_eagle, new_config
from ...errors import AdtError, Check
from ...files import check_utf8, folded, inside, path_key, to_json, write_in
from ...models.reading.checkpoint import Checkpoint
from ...models.reading.fields import read_json
from ...models.reading.paths import resolve
from ...models.target import Target, suffixed
from ...policies import PLAIN
from ...recipe import Placement, Recipe
from ...run.folder_lock import FolderLock
from ...run.images import check_outputs
from ...run.model_files import model_files
from ...run.pipeline import Pipeline
from ...run.resolve import Hardware, choose_device, resolve_recipe
from ...settings import BUNDLED, Sampling
from .callbacks import ProgressBars, TensorBoardLogs, TrainingCallback
from .dataset import TrainingImages, caption_file, encode, find_training_images, generate, plain_pipeline
from .estimate import SavedTensorCounter, TrainingEstimate, check_disk, num_bytes, seconds_of_round
from .features import Features
from .log import sentence, write_log
from .run import Run, autocast_dtype, initialise, muon_and_adam
from .save import drafter_tensors, write_checkpoint
from .unroll import TargetOutputs, acceptance, read, training_loss

FILES = ("config.json", "model.safetensors", "log.csv", "log.png", "training/settings.json", "training/codes.npy")
"""Output files that the command checks before it starts, relative to the output folder."""
WARM_UP = 0.15
"""Share of the budget in which a training step has only the first pass of the drafter (see :mod:`.unroll`)."""
_PATHS = ("model", "prompts", "images", "start")
"""Settings of a run that are paths."""
SECOND_TEMPERATURE = 1.0
"""Temperature of every second training step.

The other steps use the temperature of the run. Training at both makes the drafter work at other temperatures too. A
training run in which all steps had the temperature 0.6 lowered the tokens per target pass at temperature 1 by 4 %.
"""
STRIDE = 2
"""Distance between the roots of a training step, in raster positions. The next step uses the positions in between.

Neighbouring roots have similar gradients, so the drafter learns nearly as much from a step, which takes two thirds of
the time of a step with all positions as roots.
"""


@dataclass(frozen=True)
class TrainingPlan:
    """Checked arguments of a training. No model is needed to check them.

    Attributes:
        recipe: Recipe with which the target generates images.
        prompts: Prompt of each image, with the recipe's suffix. Held-out images come first.
        paths: File of each image, in the order of `prompts`; None if the target generates the images.
    """

    data: TrainingDataArgs
    training: TrainingArgs
    files: TrainingOutputArgs
    recipe: Recipe
    prompts: list[str]
    paths: list[Path] | None
    placement: Placement

    @property
    def folder(self) -> Path:
        """Folder of the internal state."""
        return self.files.output / "training"

    @property
    def minutes(self) -> float | None:
        """Budget of time in minutes; None if only the number of steps is limited."""
        return 60.0 if self.training.steps is None and self.training.minutes is None else self.training.minutes

    @property
    def settings(self) -> dict:
        """Settings that must be the same when the run is resumed, as plain JSON types."""
        data = self.data.flat()
        training = self.training.flat()
        fixed = ("start", "passes", "training_batch_size", "accumulate", "learning_rate")
        given = {
            **self.recipe.loading.flat(),
            **{name: data[name] for name in ("prompts", "images", "training_images", "validation_prompts")},
            **{name: training[name] for name in fixed},
        }
        plain = {name: x if isinstance(x, int | float | None) else str(x) for name, x in given.items()}
        return {**plain, **self.recipe.sampling.recorded(), "captions": self.prompts}


def plan(
    data: TrainingDataArgs,
    training: TrainingArgs,
    files: TrainingOutputArgs,
    given: Mapping[str, Any],
    placement: Placement,
    texts: Sequence[str] = (),
) -> TrainingPlan:
    """Check the arguments before a model is loaded.

    Args:
        given: Settings of the recipe that the user has set, by option name.
        texts: Prompts to use if `data` names neither images nor a file of prompts.

    Raises:
        AdtError: If an argument is invalid, or the output folder contains a model that this command did not train with
            the same arguments.
    """
    Sampling.of(given)  # check these values first: they do not depend on the model
    prompts, paths = find_training_images(data, training.training_batch_size, given.get("seed", 0), texts)
    model = given.get("model", BUNDLED)
    recipe = resolve_recipe({**given, "method": PLAIN}, Hardware.of(placement.device))
    prompts = [suffixed(prompt, recipe.suffix) for prompt in prompts]
    result = TrainingPlan(data, training, files, recipe, prompts, paths, placement)
    _check_output(result)
    inputs = [
        *model_files(model, files.compare or JACOBI, "compare"),
        *model_files(model, training.start or JACOBI, "start"),
        *given_paths(data, "prompts"),
    ]
    inputs += [("images", file) for path in paths or () for file in (path, caption_file(path))]
    check_outputs([("output", files.output / name) for name in FILES], inputs)
    return result


def _check_output(plan: TrainingPlan) -> None:
    """Raise AdtError if the output is a file, or a folder with a model that was not trained with this plan."""
    folder = plan.files.output
    settings = plan.folder / "settings.json"
    if folder.exists() and not folder.is_dir():
        raise AdtError("output.is_file", folder=folder)
    if plan.data.images and path_key(folder) == path_key(plan.data.images):
        raise AdtError("output.is_images")
    check_utf8(folder, f"`output`: {str(folder)!r}")
    inside(folder, "training", "features")
    if not settings.exists():
        if (folder / "config.json").exists() or (folder / "model.safetensors").exists():
            raise AdtError("output.other_model", folder=folder)
        return
    try:
        before = read_json(settings)
    except AdtError as error:
        raise AdtError("output.damaged", path=settings) from error
    for name, now in plan.settings.items():
        if not _is_same(name, before.get(name), now):
            what = "other captions" if name == "captions" else f"{name} {before.get(name)}, but now it is {now}"
            raise AdtError("output.other_options", folder=folder, options=what)


def _is_same(name: str, before: Any, now: Any) -> bool:
    """Return whether a setting has the same value as before.

    A path may have another spelling, such as a relative path. Files that were moved are recognised by their name, if
    there is nothing at their earlier place.
    """
    if before == now or name not in _PATHS or BUNDLED in (before, now) or not {type(before), type(now)} == {str}:
        return before == now
    is_moved = not os.path.exists(os.path.expanduser(before)) and folded(Path(before).name) == folded(Path(now).name)
    return is_moved or path_key(before) == path_key(now)


def make_drafter(target: Target, start: EagleDrafter | None = None) -> EagleDrafter:
    """Create a drafter for training, in float32.

    With random weights, the output of the drafter is close to its input feature. The drafter uses the embedding of the
    target. In the drafter, the embedding is a plain tensor and not a parameter. So it is neither trained nor saved in
    the checkpoints of the run.

    Args:
        start: Drafter from which the weights are copied; None for random weights with a fixed seed.

    Raises:
        AdtError: If `start` has another architecture or pairing than a new drafter for this target.
    """
    decoder = target.decoder
    config = new_config(decoder.config)
    drafter = EagleDrafter(config, input_norm=True)
    del drafter.embedding
    initialise(drafter, torch.Generator().manual_seed(3), 1)
    drafter.fc.data[config.hidden_size :] += torch.eye(config.hidden_size)
    if start is not None:
        weights = {name: value.float() for name, value in start.state_dict().items() if name != "embedding"}
        shapes = {name: value.shape for name, value in drafter.state_dict().items()}
        if {name: value.shape for name, value in weights.items()} != shapes or any(start.pairing):
            raise AdtError("start.other_architecture")
        drafter.load_state_dict(weights)
    drafter.embedding = decoder.embedding.detach().float()  # type: ignore[assignment]
    return drafter.to(decoder.embedding.device)


def run(plan: TrainingPlan) -> str:
    """Load the models, run a training, and return a summary for the user.

    Raises:
        AdtError: If a model cannot be loaded, or the disk has too little space.
    """
    target = Pipeline.of(plan.recipe, plan.placement).target
    other = _load_network("compare", plan.files.compare, target)
    logging_dir = plan.files.logging_dir
    with closing(ProgressBars() if logging_dir is None else TensorBoardLogs(logging_dir)) as bars:
        trainer = train(plan, target, bars)
    if other is None:
        return trainer.summary
    metrics = sentence(trainer.measure(other.float()), plan.training.passes)
    return f"{trainer.summary}\n{plan.files.compare}: {metrics}"


def train(plan: TrainingPlan, target: Target, callback: TrainingCallback) -> Trainer:
    """Run or resume a training until its budget is used up.

    Args:
        callback: Progress callback. An exception from it stops the training, which can be resumed later.

    Raises:
        AdtError: If the disk has too little space, or another process trains in the output folder.
    """
    drafter = make_drafter(target, _load_network("start", plan.training.start, target))
    with FolderLock(plan.folder, ".adt-tree.lock"):
        write_in(plan.folder, "settings.json", to_json(plan.settings))
        images = TrainingImages(plan.folder / "codes.npy", plan.prompts, target.length, len(target.decoder.image_ids))
        trainer = Trainer(target, images, plan, drafter)
        try:
            if trainer.run.fraction < 1:
                callback.on_estimate(trainer.estimate(callback.check))
            trainer.create_images(callback)
            trainer.train(callback)
        except BaseException:
            total = len(plan.prompts)
            callback.on_stop(total - len(images.missing), total, trainer.run.saved_step)
            raise
        return trainer


def _load_network(name: str, path: str | None, target: Target) -> EagleDrafter | None:
    """Load the drafter network that an option names, or return None if it is not set."""
    if not path:
        return None
    if not is_network(path):
        raise AdtError("drafter.no_eagle", input=name, path=path)
    return load_eagle(path, target)


class Trainer:
    """Training run of a drafter, with its images, its log and its output files."""

    def __init__(self, target: Target, images: TrainingImages, plan: TrainingPlan, drafter: EagleDrafter):
        self.target = target
        self.images = images
        self.plan = plan
        self.training = plan.training
        self.drafter = drafter
        self.sampling = plan.recipe.sampling
        self._warm_up = 0.0 if self.training.start else WARM_UP
        self._config = Checkpoint(resolve(plan.recipe.loading.model, "target")).config
        self._features = Features(plan.folder / "features", self.training.cache_gb * 10**9)
        self._encode = cache(target.encode_prompt)
        device = choose_device(plan.placement.device)
        half = autocast_dtype(device, self.training.autocast)
        self._autocast = torch.autocast(device.type, half, enabled=half is not None)
        rate = self.training.learning_rate
        optimisers = muon_and_adam(self.drafter, muon_lr=rate, adam_lr=rate / 5, not_muon=("norm",))
        path = plan.folder / "checkpoint.safetensors"
        is_scaled = half is torch.float16
        self.run = Run(path, self.drafter, optimisers, plan.minutes, 0.98, self.training.steps, is_scaled)
        self._averaged = make_drafter(target)
        self._averaged.embedding = self.drafter.embedding
        self._averaged.load_state_dict(self.run.average, assign=True)  # shares memory with the averages
        self.log: list[dict] = list(self.run.state.get("log", []))

    @property
    def summary(self) -> str:
        """Summary of the last measurement."""
        last = self.log[-1]
        metrics = sentence(last, self.training.passes)
        return f"{self.plan.files.output}: {last['step']} steps in {last['seconds'] / 60:.1f} min; {metrics}"

    def estimate(self, check: Check) -> TrainingEstimate:
        """Estimate the resources that the rest of the run needs. A few decoding rounds and one training step are timed.

        Raises:
            AdtError: If the disk has too little space.
        """
        decoder = self.target.decoder
        drafter = self.drafter
        drawing, working = self._time_images(check)
        learning, activations, features = self._time_training()
        network = num_bytes(*drafter.parameters())
        copied = 0 if drafter.embedding.dtype is decoder.dtype else num_bytes(drafter.embedding)
        # The memory holds four copies of the network: weights, average, gradients, and the state of the optimisers.
        memory = num_bytes(*decoder.parameters()) + copied + 4 * network + max(working, activations)
        # A checkpoint holds three copies of the network. While a checkpoint is replaced, the old and the new one are on
        # the disk. The exported drafter has two bytes per number instead of four.
        disk = features + 6 * network + (network + num_bytes(drafter.embedding)) // 2
        estimate = TrainingEstimate(drawing, learning, memory, disk)
        check_disk(estimate, self.plan.folder)
        return estimate

    def _time_images(self, check: Check) -> tuple[float, int]:
        """Return the seconds that the missing images will take, and the bytes of memory in addition to the weights."""
        missing = self.images.missing
        paths = self.plan.paths
        if not missing:
            return 0.0, 0
        if paths:
            began = time.monotonic()
            encode(self.target, [paths[missing[0]]])
            return (time.monotonic() - began) * len(missing), 0
        batch = missing[: self.plan.data.generation_batch_size]
        prompts = [self.plan.prompts[i] for i in batch]
        decoding = plain_pipeline(self.target, self.sampling).decoding(prompts, batch, check=check)
        seconds = seconds_of_round(decoding) * decoding.length * len(missing) / len(batch)
        return seconds, decoding.memory_required()

    def _time_training(self) -> tuple[float, int, int]:
        """Measure one part of a training step.

        Returns:
            Seconds that the remaining steps will take, bytes of activations in a step, and bytes of all cached
            features.
        """
        run = self.run
        training = self.training
        activations = SavedTensorCounter()
        self.trial()  # the first call is slow
        with activations:
            began = time.monotonic()
            features = self.trial() * len(self.plan.prompts)
            seconds = time.monotonic() - began
        measured = math.ceil(self.plan.data.validation_prompts / training.training_batch_size)
        parts = training.accumulate + measured / self.plan.files.every
        by_steps = math.inf if run.steps is None else (run.steps - run.step) * parts * seconds
        by_time = math.inf if run.minutes is None else 60 * run.minutes - run.elapsed
        return min(by_steps, by_time), activations.bytes, min(features, int(training.cache_gb * 10**9))

    def create_images(self, callback: TrainingCallback) -> None:
        """Generate the missing images, or encode their files if the training data are files."""
        paths = self.plan.paths
        total = len(self.plan.prompts)

        def codes_of(numbers: list[int], done: int) -> Tensor:
            callback.check()
            callback.on_images(done, total)
            if paths:
                return encode(self.target, [paths[i] for i in numbers])
            prompts = [self.plan.prompts[i] for i in numbers]
            return generate(
                self.target,
                prompts,
                numbers,
                self.sampling,
                callback.check,
                lambda images: callback.on_images(done + images, total),
            )

        self.images.fill(codes_of, self.plan.data.generation_batch_size)

    def train(self, callback: TrainingCallback) -> None:
        """Train until the budget is used up. After every `files.every` steps, measure and write the output files.

        If the callback raises an exception, a checkpoint is written, and the training stops.
        """
        run = self.run
        losses: list[Tensor] = []
        run.begin()
        while run.fraction < 1:
            losses.append(self._train_step())
            if run.step % self.plan.files.every == 0:
                self._save(losses)
                losses = []
            try:
                callback.on_step(run, self.log)
                callback.check()
            except BaseException:
                run.save(log=self.log)
                raise
        if losses:
            self._save(losses)

    def _save(self, losses: list[Tensor]) -> None:
        """Measure the drafter with averaged weights, then write the checkpoint, this drafter and the log."""
        folder = self.plan.files.output
        drafter = self._averaged
        loss = torch.stack(losses).mean().item()
        row = {"step": self.run.step, "seconds": round(self.run.elapsed, 1), "loss": round(loss, 5)}
        self.log.append({**row, **self.measure(drafter)})
        self.run.save(log=self.log)
        dtype = torch.bfloat16 if self.target.decoder.dtype is torch.bfloat16 else torch.float16
        write_checkpoint(folder, drafter_tensors(drafter), {**self._config, **config_fields(drafter.config)}, dtype)
        write_log(folder, self.log, self.training.passes)

    def _train_step(self) -> Tensor:
        """Run one training step, which consists of `accumulate` batches, and return its loss, a scalar."""
        training = self.training
        step = self.run.step
        sampling = self.sampling if step % 2 else replace(self.sampling, temperature=SECOND_TEMPERATURE)
        losses = []
        passes = 1 if self.run.fraction < self._warm_up else training.passes
        for part in range(training.accumulate):
            numbers = self._numbers(step * training.accumulate + part)
            outputs = self._read(numbers, self.images.codes(numbers), self._features, sampling)
            losses.append(self._backward(outputs, step, passes))
        self.run.apply()
        return torch.stack(losses).sum()

    def _backward(self, outputs: TargetOutputs, step: int, passes: int) -> Tensor:
        """Add the gradients of one batch of a step, and return the loss of this batch, a scalar."""
        roots = torch.arange(step % STRIDE, outputs.z.shape[1] - passes + 1, STRIDE, device=outputs.z.device)
        with self._autocast:
            loss = training_loss(self.drafter, outputs, roots, passes) / self.training.accumulate
        self.run.backward(loss)
        return loss.detach()

    def trial(self) -> int:
        """Run one batch of a training step on random tokens. The weights do not change.

        Returns:
            Bytes that the cached features of one image need.
        """
        numbers = self._numbers(0)
        tokens = len(self.target.decoder.image_ids)
        shape = len(numbers), self.target.length
        codes = torch.randint(tokens, shape, generator=torch.Generator().manual_seed(0))
        outputs = self._read(numbers, codes, None)
        self._backward(outputs, 0, self.training.passes).item()
        for weight in self.drafter.parameters():
            weight.grad = None
        return 2 * outputs.features.numel() // len(numbers)

    def _read(
        self, numbers: list[int], codes: Tensor, stored: Features | None, sampling: Sampling | None = None
    ) -> TargetOutputs:
        """Return the target's outputs, as :func:`.unroll.read`, by default with the sampling settings of the run.

        Each prompt is encoded only once, since text encoders are slow.
        """
        prompts = [self._encode(self.images.prompts[number]) for number in numbers]
        return read(self.target, prompts, codes, numbers, sampling or self.sampling, stored)

    def _numbers(self, index: int) -> list[int]:
        """Return the indices of the images in the batch with this number since the start of the training.

        Each epoch has a random order of the images. The order depends only on the seed and the number of the epoch. If
        the last batch of an epoch would be incomplete, this batch is left out.
        """
        held_out = self.plan.data.validation_prompts
        size = self.training.training_batch_size
        count = len(self.images.prompts) - held_out
        epoch, place = divmod(index, count // size)
        order = np.random.default_rng([self.sampling.seed, epoch]).permutation(count) + held_out
        return order[place * size : (place + 1) * size].tolist()

    def measure(self, drafter: EagleDrafter) -> dict[str, float]:
        """Return the means of :func:`.unroll.acceptance` over the held-out images, as columns of the log."""
        held_out = self.plan.data.validation_prompts
        batches = [batch.tolist() for batch in torch.arange(held_out).split(self.training.training_batch_size)]
        outputs = (self._read(batch, self.images.codes(batch), self._features) for batch in batches)
        rows = [acceptance(drafter, one.paired(drafter.pairing), self.training.passes) for one in outputs]
        sums = {name: sum(len(batch) * row[name] for batch, row in zip(batches, rows)) for name in rows[0]}
        return {name: round(value / held_out, 4) for name, value in sums.items()}
