"""``python adt.py train-drafter``: an EAGLE drafter for any target.

It learns from pictures of prompts, which the target draws, or from captioned pictures.

The output folder holds ``config.json`` and ``model.safetensors``, the drafter as of the last checkpoint, ready for
``--drafter``; ``log.csv``, its loss and its acceptance on held-out pictures; ``log.png``, the curve of its tokens a
pass; and ``training/``, from which the same command resumes, and which may be deleted.
"""

from __future__ import annotations

import math
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

from ...app.args import TrainingArgs, TrainingDataArgs, TrainingOutputArgs
from ...app.checkpoints import explain_errors
from ...app.images import check_outputs
from ...app.jobs import rounds
from ...app.loading import choose_device, complete, models_of, named, open_target
from ...drafters import JACOBI, is_network
from ...drafters.eagle import EagleDrafter
from ...drafters.eagle_files import config_fields, load_eagle, new_config
from ...engine.decoding import Decoding
from ...errors import AdtError, Check
from ...files import check_utf8, inside, to_json, write_in
from ...models.reading.checkpoint import Checkpoint
from ...models.reading.fields import read_json
from ...models.reading.paths import resolve
from ...models.target import Target, suffixed
from ...policies.recipe import Recipe
from ...rules.settings import BUNDLED, Sampling
from .callbacks import ProgressBars, TrainingCallback
from .dataset import TrainingImages, caption_file, encode, find_training_images, plain_decoding
from .estimate import GB, SavedTensorCounter, TrainingEstimate, check_disk, num_bytes, seconds_of_round
from .features import Features
from .log import sentence, write_log
from .run import Run, autocast_dtype, initialise, muon_and_adam
from .save import drafter_tensors, write_checkpoint
from .unroll import TargetOutputs, acceptance, read, training_loss

FILES = ("config.json", "model.safetensors", "log.csv", "log.png", "training/settings.json", "training/codes.npy")
"""What is written, besides what training makes and reads itself."""
WARM_UP = 0.15
"""Share of the budget in which the drafter sees the target's features only."""
SECOND_TEMPERATURE = 1.0
"""Every other step learns at this one, so that drafts stay good where somebody chooses another than the run's. A run at
0.6 without such steps left 4 % fewer tokens a pass at 1 than there had been before it."""
STRIDE = 2
"""Positions from one root to the next; the next step takes those between. Neighbours teach much the same, and a step
costs two thirds of one with all roots."""


@dataclass(frozen=True)
class TrainingPlan:
    """What is to be trained, checked; nothing is loaded yet.

    recipe: of the pictures that the target draws. prompts: of each picture, with the suffix, held-out pictures first.
    paths: of the pictures' files; None if the target draws them.
    """

    lessons: TrainingDataArgs
    training: TrainingArgs
    files: TrainingOutputArgs
    recipe: Recipe
    prompts: list[str]
    paths: list[Path] | None
    device: torch.device

    @property
    def folder(self) -> Path:
        """What a run resumes from."""
        return self.files.output / "training"

    @property
    def minutes(self) -> float | None:
        """Of the training, where they end it."""
        return 60.0 if self.training.steps is None and self.training.minutes is None else self.training.minutes

    @property
    def settings(self) -> dict:
        """What can't change when the run is resumed, in JSON's types."""
        lessons, training = self.lessons.flat(), self.training.flat()
        given = {
            **self.recipe.loading.flat(),
            **{name: lessons[name] for name in ("prompts", "images", "pictures", "held_out")},
            **{name: training[name] for name in ("start", "passes", "batch", "accumulate", "learning_rate")},
        }
        plain = {name: x if isinstance(x, int | float | None) else str(x) for name, x in given.items()}
        return {**plain, **self.recipe.sampling.told(), "captions": self.prompts}


def plan(
    lessons: TrainingDataArgs,
    training: TrainingArgs,
    files: TrainingOutputArgs,
    given: Mapping[str, Any],
    device: str,
    texts: Sequence[str] = (),
) -> TrainingPlan:
    """Check what can be checked before a model is loaded, and that ``output`` is new or ours. Raises AdtError.

    texts: prompts, where ``lessons`` names no file.
    """
    Sampling.of(given)  # what is given makes sense, whatever the model
    prompts, paths = find_training_images(lessons, training.batch, given.get("seed", 0), texts)
    model = given.get("model", BUNDLED)
    recipe = complete(given, device)
    prompts = [suffixed(prompt, recipe.suffix) for prompt in prompts]
    made = TrainingPlan(lessons, training, files, recipe, prompts, paths, choose_device(device))
    _check_output(made)
    read = [
        *models_of(model, files.compare or JACOBI, "compare"),
        *models_of(model, training.start or JACOBI, "start"),
        *named(lessons, "prompts"),
    ]
    read += [("images", file) for path in paths or () for file in (path, caption_file(path))]
    check_outputs([("output", files.output / name) for name in FILES], read)
    return made


def _check_output(plan: TrainingPlan) -> None:
    """AdtError if ``output`` is no folder, or holds something else than a run of this plan."""
    folder, settings = plan.files.output, plan.folder / "settings.json"
    if folder.exists() and not folder.is_dir():
        raise AdtError(f"`output`: '{folder}' is a file; choose a folder.")
    if plan.lessons.images and folder.resolve() == plan.lessons.images.resolve():
        raise AdtError(
            "`output` is the folder of `images`, where the next run would use its chart as an image; choose another."
        )
    check_utf8(folder, f"`output`: {str(folder)!r}")
    inside(folder, "training", "features")
    if not settings.exists():
        if (folder / "config.json").exists() or (folder / "model.safetensors").exists():
            raise AdtError(
                f"`output`: '{folder}' contains a model that was not trained here, or its folder 'training' is "
                "missing; choose another folder."
            )
        return
    try:
        before = read_json(settings)
    except AdtError as error:
        raise AdtError(f"`output`: '{settings}' is damaged; choose another folder, or delete this one.") from error
    for name, now in plan.settings.items():
        if before.get(name, now) != now:  # an earlier version wrote down fewer options
            what = "other captions" if name == "captions" else f"{name} {before[name]}, but now it is {now}"
            raise AdtError(
                f"`output`: '{folder}' was started with {what}; use the same options to resume it, "
                "or choose another folder."
            )


def make_drafter(target: Target, start: EagleDrafter | None = None) -> EagleDrafter:
    """A new drafter in float32, with the weights of ``start``, or seeded random ones that at first pass the feature on.

    Its embedding is the target's, as a plain tensor: not trained, not averaged, not in checkpoints. AdtError if
    ``start`` has another shape.
    """
    decoder = target.decoder
    config = new_config(decoder.config)
    drafter = EagleDrafter(config, input_norm=True)
    del drafter.embedding
    initialise(drafter, torch.Generator().manual_seed(3), 1)
    drafter.fc.data[config.hidden_size :] += torch.eye(config.hidden_size)
    if start is not None:
        _copy(start, drafter)
    drafter.embedding = decoder.embedding.detach().float()  # type: ignore[assignment]
    return drafter.to(decoder.embedding.device)


def _copy(start: EagleDrafter, drafter: EagleDrafter) -> None:
    """Put the weights of ``start``, but its embedding, into ``drafter``. AdtError if it has another shape."""
    weights = {name: value.float() for name, value in start.state_dict().items() if name != "embedding"}
    shapes = {name: value.shape for name, value in drafter.state_dict().items()}
    if {name: value.shape for name, value in weights.items()} != shapes or any(start.pairing):
        raise AdtError("`start`: this drafter has another architecture than the one to train; remove it.")
    drafter.load_state_dict(weights)


def run(plan: TrainingPlan) -> str:
    """Make the pictures, train, write. Returns what to tell the user."""
    files, passes = plan.files, plan.training.passes
    target = open_target(plan.recipe.loading, plan.device)
    other = _network("compare", files.compare, target)
    with closing(ProgressBars()) as bars:
        trainer = train(plan, target, bars)
    news = trainer.news
    if other is not None:
        news += f"\n{files.compare}: {sentence(trainer.measure(other.float()), passes)}"
    return news


def train(plan: TrainingPlan, target: Target, watch: TrainingCallback) -> Trainer:
    """Do what is still to be done of a plan. Raises AdtError, and what ``watch.check`` raises."""
    drafter = make_drafter(target, _network("start", plan.training.start, target))
    write_in(plan.folder, "settings.json", to_json(plan.settings))
    pictures = TrainingImages(plan.folder / "codes.npy", plan.prompts, target.length, len(target.decoder.image_ids))
    trainer = Trainer(target, pictures, plan, drafter)
    if trainer.run.fraction < 1:
        watch.expects(trainer.needs(watch.check))
    trainer.make_pictures(watch)
    trainer.train(watch)
    return trainer


def _network(name: str, path: str | None, target: Target) -> EagleDrafter | None:
    """The drafter that the setting ``name`` gives, if it gives one. AdtError if that is no EAGLE drafter."""
    if not path:
        return None
    if not is_network(path):
        raise AdtError(f"`{name}`: {path!r} is not an EAGLE drafter; choose the folder of one, or 'bundled'.")
    with explain_errors(path, "drafter"):
        return load_eagle(path, target)


class Trainer:
    """One training run on the pictures of one target."""

    def __init__(self, target: Target, pictures: TrainingImages, plan: TrainingPlan, drafter: EagleDrafter):
        self.target, self.pictures = target, pictures
        self.plan, self.training = plan, plan.training
        self.drafter, self.sampling = drafter, plan.recipe.sampling
        self._warm_up = 0.0 if self.training.start else WARM_UP
        self._config = Checkpoint(resolve(plan.recipe.loading.model, "target")).config
        self._features = Features(plan.folder / "features", self.training.features_gb * 2**30)
        self._encode = cache(target.encode_prompt)
        half = autocast_dtype(plan.device, self.training.autocast)
        self._autocast = torch.autocast(plan.device.type, half, enabled=half is not None)
        rate, scaled = self.training.learning_rate, half is torch.float16
        optimisers = muon_and_adam(self.drafter, muon_lr=rate, adam_lr=rate / 5, not_muon=("norm",))
        path = plan.folder / "checkpoint.pt"
        self.run = Run(path, self.drafter, optimisers, plan.minutes, 0.98, self.training.steps, scaled)
        self._shipped = make_drafter(target)
        self._shipped.embedding = self.drafter.embedding
        self._shipped.load_state_dict(self.run.average, assign=True)  # the averages themselves, which training changes
        self.log: list[dict] = list(self.run.state.get("log", []))

    @property
    def news(self) -> str:
        """What came of it, for people."""
        last = self.log[-1]
        figures = sentence(last, self.training.passes)
        return f"{self.plan.files.output}: {last['step']} steps in {last['seconds'] / 60:.1f} min; {figures}"

    def needs(self, check: Check) -> TrainingEstimate:
        """What is left to do takes: a few rounds of drawing and a step are tried. AdtError for too small a disk."""
        decoder, drafter = self.target.decoder, self.drafter
        drawing, working = self._try_drawing(check)
        learning, kept, features = self._try_learning()
        network = num_bytes(*drafter.parameters())
        copied = 0 if drafter.embedding.dtype is decoder.dtype else num_bytes(drafter.embedding)
        # The network four times: its weights, their average, their gradients, and what the optimisers keep.
        memory = num_bytes(*decoder.parameters()) + copied + 4 * network + max(working, kept)
        # A checkpoint, of three such, twice: the one before stays until the next is whole. And what ships, in halves.
        disk = features + 6 * network + (network + num_bytes(drafter.embedding)) // 2
        needs = TrainingEstimate(drawing, learning, memory, disk)
        check_disk(needs, self.plan.folder)
        return needs

    def _try_drawing(self, check: Check) -> tuple[float, int]:
        """Seconds for the pictures that are missing, and bytes of memory beside the weights."""
        missing, paths = self.pictures.missing, self.plan.paths
        if not missing:
            return 0.0, 0
        if paths:
            began = time.monotonic()
            encode(self.target, [paths[missing[0]]])
            return (time.monotonic() - began) * len(missing), 0
        together = missing[: self.plan.lessons.draw_batch]
        decoding = self.plain_decoding(together, check)
        seconds = seconds_of_round(decoding) * decoding.length * len(missing) / len(together)
        return seconds, decoding.memory_required()

    def _try_learning(self) -> tuple[float, int, int]:
        """Seconds for the steps that are left; bytes that one keeps for gradients; bytes of the features to be kept."""
        run, training, kept = self.run, self.training, SavedTensorCounter()
        self.trial()  # the first is slow
        with kept:
            began = time.monotonic()
            features = self.trial() * len(self.plan.prompts)
            seconds = time.monotonic() - began
        parts = training.accumulate + math.ceil(self.plan.lessons.held_out / training.batch) / self.plan.files.every
        by_steps = math.inf if run.steps is None else (run.steps - run.step) * parts * seconds
        by_time = math.inf if run.minutes is None else 60 * run.minutes - run.elapsed
        return min(by_steps, by_time), kept.bytes, min(features, int(training.features_gb * GB))

    def plain_decoding(self, numbers: list[int], check: Check | None) -> Decoding:
        """The decoding that draws some pictures."""
        return plain_decoding(self.target, [self.plan.prompts[i] for i in numbers], numbers, self.sampling, check)

    def make_pictures(self, watch: TrainingCallback) -> None:
        """Draw the missing pictures, or encode their files."""
        paths, total = self.plan.paths, len(self.plan.prompts)

        def codes_of(numbers: list[int], done: int) -> Tensor:
            watch.check()
            watch.draws(done, total)
            if paths:
                return encode(self.target, [paths[i] for i in numbers])
            decoding = self.plain_decoding(numbers, watch.check)
            for _ in rounds(decoding):
                watch.draws(done + decoding.done_tokens / decoding.length, total)
            return decoding.codes

        self.pictures.make(codes_of, self.plan.lessons.draw_batch)

    def train(self, watch: TrainingCallback) -> None:
        """Train until the budget is spent; every so often measure, save and write. A run that is stopped is saved."""
        run, losses = self.run, []
        run.begin()
        while run.fraction < 1:
            losses.append(self._step())
            if run.step % self.plan.files.every == 0:
                self._save(losses)
                losses = []
            try:
                watch.learns(run, self.log)
                watch.check()
            except BaseException:
                run.save(log=self.log)
                raise
        if losses:
            self._save(losses)

    def _save(self, losses: list[Tensor]) -> None:
        """Measure the averaged weights; write the checkpoint, the drafter and the log. losses: since the last time."""
        folder, shipped = self.plan.files.output, self._shipped
        loss = torch.stack(losses).mean().item()
        row = {"step": self.run.step, "seconds": round(self.run.elapsed, 1), "loss": round(loss, 5)}
        self.log.append({**row, **self.measure(shipped)})
        self.run.save(log=self.log)
        dtype = torch.bfloat16 if self.target.decoder.dtype is torch.bfloat16 else torch.float16
        write_checkpoint(folder, drafter_tensors(shipped), {**self._config, **config_fields(shipped.config)}, dtype)
        write_log(folder, self.log, self.training.passes)

    def _step(self) -> Tensor:
        """Make one optimisation step. Returns its loss, a scalar."""
        training, step = self.training, self.run.step
        sampling = self.sampling if step % 2 else replace(self.sampling, temperature=SECOND_TEMPERATURE)
        losses = []
        passes = 1 if self.run.fraction < self._warm_up else training.passes
        for part in range(training.accumulate):
            numbers = self._numbers(step * training.accumulate + part)
            reading = self._read(numbers, self.pictures.codes(numbers), self._features, sampling)
            losses.append(self._learn(reading, step, passes))
        self.run.apply()
        return torch.stack(losses).sum()

    def _learn(self, reading: TargetOutputs, step: int, passes: int) -> Tensor:
        """Add the gradients of a part of a step. Returns its loss, a scalar."""
        roots = torch.arange(step % STRIDE, reading.z.shape[1] - passes + 1, STRIDE, device=reading.z.device)
        with self._autocast:
            loss = training_loss(self.drafter, reading, roots, passes) / self.training.accumulate
        self.run.backward(loss)
        return loss.detach()

    def trial(self) -> int:
        """A part of a step on tokens at random, of which nothing is learned. Returns a picture's bytes of features."""
        numbers, tokens = self._numbers(0), len(self.target.decoder.image_ids)
        shape = len(numbers), self.target.length
        codes = torch.randint(tokens, shape, generator=torch.Generator().manual_seed(0))
        reading = self._read(numbers, codes, None)
        self._learn(reading, 0, self.training.passes).item()
        for weight in self.drafter.parameters():
            weight.grad = None
        return 2 * reading.features.numel() // len(numbers)

    def _read(
        self, numbers: list[int], codes: Tensor, stored: Features | None, sampling: Sampling | None = None
    ) -> TargetOutputs:
        """Some pictures as the target reads them. A prompt is encoded once: some targets have a large text encoder.

        sampling: with what the target would draw them; None for the run's own.
        """
        prompts = [self._encode(self.pictures.prompts[number]) for number in numbers]
        return read(self.target, prompts, codes, numbers, sampling or self.sampling, stored)

    def _numbers(self, index: int) -> list[int]:
        """Pictures of batch ``index``. Each epoch has an order of its own, fixed by the seed, and leaves out what does
        not fill its last batch."""
        held_out, size = self.plan.lessons.held_out, self.training.batch
        count = len(self.pictures.prompts) - held_out
        epoch, place = divmod(index, count // size)
        order = np.random.default_rng([self.sampling.seed, epoch]).permutation(count) + held_out
        return order[place * size : (place + 1) * size].tolist()

    def measure(self, drafter: EagleDrafter) -> dict[str, float]:
        """Acceptance on the held-out pictures, by the names of the log's columns."""
        batches = [batch.tolist() for batch in torch.arange(self.plan.lessons.held_out).split(self.training.batch)]
        readings = (self._read(batch, self.pictures.codes(batch), self._features) for batch in batches)
        rows = [acceptance(drafter, reading.paired(drafter.pairing), self.training.passes) for reading in readings]
        sums = {name: sum(len(batch) * row[name] for batch, row in zip(batches, rows)) for name in rows[0]}
        return {name: round(value / self.plan.lessons.held_out, 4) for name, value in sums.items()}
