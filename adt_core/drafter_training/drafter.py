"""``python -m adt_core train-drafter``: an EAGLE drafter for any target, from prompts that the target draws itself or from captioned pictures.

In the output folder: ``config.json`` and ``model.safetensors``, the drafter as of the last checkpoint, ready for ``--drafter``; ``log.csv`` and
``log.png``, its loss and its acceptance on held-out pictures; and ``training/``, which the same command goes on from and which may be deleted.
"""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ..app.generation import choose_device, open_target
from ..app.images import write_json
from ..drafters.eagle import EagleDrafter, grid_of_pairs
from ..drafters.load import load_drafter
from ..errors import AdtError
from ..models.checkpoint import Check, Checkpoint, resolve
from ..models.target import Target
from ..rules.sampling import Sampling
from .features import Features
from .log import Log
from .pictures import Pictures, draw, encode, find_captioned, prompts_of, share_prompts
from .run import Run, initialise, muon_and_adam
from .save import config_fields, drafter_tensors, write_checkpoint
from .unroll import Reading, acceptance, read, training_loss

FIXED = (
    "model",
    "weights",
    "size",
    "prompts",
    "images",
    "pictures",
    "held_out",
    "passes",
    "batch",
    "accumulate",
    "learning_rate",
)
"""The options that make a run what it is, beside those of sampling: a run can't be gone on with under others."""
WARM_UP = 0.15
"""Share of the budget in which the drafter sees the target's features only."""
STRIDE = 2
"""Every so many positions are roots, others in the next step: neighbours teach much the same, and a step costs two thirds as much."""


@dataclass(frozen=True)
class Plan:
    """Options of ``train-drafter`` that have been found to make sense, nothing loaded yet. ``prompts``: of each picture, the held-out ones first."""

    options: argparse.Namespace
    prompts: list[str]
    paths: list[Path] | None
    sampling: Sampling
    device: torch.device

    @property
    def folder(self) -> Path:
        """What a run goes on from."""
        return self.options.output / "training"


def plan(options: argparse.Namespace, sampling: dict) -> Plan:
    """Check everything that can be checked before a model is loaded, and that ``--output`` is new or ours. Raises AdtError."""
    for name in ("held_out", "passes", "batch", "accumulate", "every", "draw_batch"):
        if getattr(options, name) < 1:
            raise AdtError(f"--{name.replace('_', '-')} is {getattr(options, name)}; it must be 1 or more.")
    if options.steps is None and options.minutes is None:
        options.minutes = 60.0
    for name in ("steps", "minutes", "pictures", "learning_rate"):
        value = getattr(options, name)
        if value is not None and not 0 < value < float("inf"):
            raise AdtError(f"--{name.replace('_', '-')} is {value}; it must be a number above 0.")
    if not 0 <= options.features_gb < float("inf"):
        raise AdtError(f"--features-gb is {options.features_gb}; it must be 0 (keep none) or a number above it.")
    chosen, paths = Sampling(**sampling), None
    if options.images:
        paths, prompts = find_captioned(options.images)
        order = np.random.default_rng(chosen.seed).permutation(len(paths))[
            : (options.pictures or len(paths)) + options.held_out
        ]
        paths, prompts = [paths[i] for i in order], [prompts[i] for i in order]
    else:
        prompts = prompts_of(options.prompts)
    needed, source = (
        options.held_out + options.batch,
        f"--{'images' if options.images else 'prompts'}: '{options.images or options.prompts}'",
    )
    if len(prompts) < options.held_out + (options.batch if paths else 1):
        raise AdtError(
            f"{source} holds {len(prompts)} captions, but {needed} are needed: {options.held_out} to measure by (--held-out) and "
            f"{options.batch} for one step (--batch); add some, or lower these."
        )
    if not paths:
        prompts = share_prompts(
            prompts, options.pictures or len(prompts) - options.held_out, options.held_out, chosen.seed
        )
        if len(prompts) < needed:
            raise AdtError(
                f"{source} gives {len(prompts) - options.held_out} pictures to train on, but one step takes {options.batch} (--batch); "
                "draw more with --pictures."
            )
    made = Plan(options, prompts, paths, chosen, choose_device(options.device))
    _check_output(made)
    return made


def _settings(plan: Plan) -> dict:
    """What makes the run what it is, of plain JSON types."""
    given = {
        name: value if isinstance(value := getattr(plan.options, name), (int, float, type(None))) else str(value)
        for name in FIXED
    }
    return {**given, **asdict(plan.sampling), "captions": plan.prompts}


def _check_output(plan: Plan) -> None:
    folder, known = plan.options.output, plan.folder / "settings.json"
    if folder.exists() and not folder.is_dir():
        raise AdtError(f"--output: '{folder}' is a file; name a folder.")
    if not known.exists():
        if (folder / "config.json").exists() or (folder / "model.safetensors").exists():
            raise AdtError(
                f"--output: '{folder}' holds a model that was not made here, or whose folder 'training' is gone; name another folder."
            )
        return
    before, now = json.loads(known.read_text(encoding="utf-8")), _settings(plan)
    for name in now:
        if before.get(name) != now[name]:
            what = "other captions" if name == "captions" else f"{name} {before.get(name)}, and now it is {now[name]}"
            raise AdtError(
                f"--output: '{folder}' was begun with {what}; give the same options to go on with it, or name another folder."
            )


def make_drafter(target: Target) -> EagleDrafter:
    """A new drafter in float32, seeded random weights that begin by passing the feature on.

    Its embedding is the target's, as a plain tensor: neither trained nor averaged nor kept in checkpoints.
    """
    decoder = target.decoder
    drafter = EagleDrafter(
        replace(decoder.config, num_layers=1, grid_rope=grid_of_pairs(decoder.config)), input_norm=True
    )
    del drafter.embedding
    initialise(drafter, torch.Generator().manual_seed(3), 1)
    drafter.fc.data[decoder.config.hidden_size :] += torch.eye(decoder.config.hidden_size)
    drafter.embedding = decoder.embedding.detach().float()
    return drafter.to(decoder.embedding.device)


def run(plan: Plan, check: Check | None = None) -> str:
    """Make the pictures, train, write. Returns what to tell the user."""
    options = plan.options
    target = open_target(options, plan.device, check)
    other = load_drafter(options.compare, target) if options.compare else None
    if not isinstance(other, EagleDrafter | None):
        raise AdtError(f"--compare: {options.compare!r} is no EAGLE drafter; give the folder of one, or 'bundled'.")
    config = Checkpoint(resolve(options.model, "target")).config
    plan.folder.mkdir(parents=True, exist_ok=True)
    write_json(plan.folder / "settings.json", _settings(plan))
    pictures = Pictures(plan.folder / "codes.npy", plan.prompts, target.length, options.held_out)
    if plan.paths:
        encode(pictures, plan.paths, target, check)
    else:
        draw(pictures, target, plan.sampling, options.draw_batch, check)
    trainer = Trainer(target, pictures, plan)
    trainer.train(config, check)
    lines = [trainer.log.last_line(str(options.output))]
    if other is not None:
        lines.append(trainer.log.line(options.compare, *trainer.measure(other.float())))
    return "\n".join(lines)


class Trainer:
    """One training run on the pictures of one target."""

    def __init__(self, target: Target, pictures: Pictures, plan: Plan):
        self.target, self.pictures, self.sampling, self.options = target, pictures, plan.sampling, plan.options
        self.drafter, self.folder = make_drafter(target), plan.options.output
        self._features = Features(plan.folder / "features", plan.options.features_gb * 2**30)
        self._prompts: dict[int, list[int]] = {}
        self._autocast = _autocast_dtype(plan.device, plan.options.autocast)
        optimisers = muon_and_adam(
            self.drafter, muon_lr=self.options.learning_rate, adam_lr=self.options.learning_rate / 5, not_muon=("norm",)
        )
        self.run = Run(
            plan.folder / "checkpoint.pt",
            self.drafter,
            optimisers,
            self.options.minutes,
            steps=self.options.steps,
            decay=0.98,
            half=self._autocast is torch.float16,
        )
        self.log = Log(self.folder, self.run.state.get("log", []), self.options.passes)

    def train(self, config: dict, check: Check | None = None) -> None:
        """To the end of the budget; every so often measure, save and write the drafter, with ``config`` of its target."""
        losses, finished = [], self.run.fraction >= 1
        with tqdm(
            total=self.options.steps,
            initial=self.run.step,
            unit=" steps",
            desc="training",
            mininterval=0.5,
            leave=False,
        ) as bar:
            while not finished:
                if check is not None:
                    check()
                losses.append(self._step())
                bar.update()
                finished = self.run.fraction >= 1
                if self.run.step % self.options.every == 0 or finished:
                    shipped = make_drafter(self.target)
                    shipped.load_state_dict(self.run.average.shadow)
                    self.log.add(
                        self.run.step, self.run.elapsed, torch.stack(losses).mean().item(), *self.measure(shipped)
                    )
                    bar.set_postfix_str(self.log.summary())
                    self.run.save(log=self.log.rows)
                    dtype = torch.bfloat16 if self.target.decoder.dtype is torch.bfloat16 else torch.float16
                    write_checkpoint(self.folder, drafter_tensors(shipped), {**config, **config_fields(shipped)}, dtype)
                    self.log.write()
                    losses = []

    def _step(self) -> Tensor:
        """One optimisation step; its loss."""
        options, losses = self.options, []
        passes = 1 if self.run.fraction < WARM_UP else options.passes
        for part in range(options.accumulate):
            numbers = self._numbers(self.run.step * options.accumulate + part)
            reading = self._read(numbers, noisy=False)
            roots = torch.arange(
                self.run.step % STRIDE, reading.z.shape[1] - passes + 1, STRIDE, device=reading.z.device
            )
            with self._cast():
                loss = (
                    training_loss(self.target, self.drafter, reading, roots, passes, self.sampling) / options.accumulate
                )
            self.run.backward(loss)
            losses.append(loss.detach())
        self.run.apply()
        return torch.stack(losses).sum()

    def _read(self, numbers: list[int], noisy: bool) -> Reading:
        """Some pictures as the target reads them. A prompt is encoded once: some targets have a large text encoder."""
        for number in numbers:
            if number not in self._prompts:
                self._prompts[number] = self.target.encode_prompt(self.pictures.prompts[number])
        rows = [self._prompts[number] for number in numbers]
        return read(self.target, rows, self.pictures.codes(numbers), numbers, self.sampling, self._features, noisy)

    def _numbers(self, index: int) -> list[int]:
        """Pictures of batch ``index``: every epoch in another order, fixed by the seed; a last batch that is not full is left out."""
        count, size = len(self.pictures) - self.pictures.held_out, self.options.batch
        epoch, place = divmod(index, count // size)
        order = np.random.default_rng([self.sampling.seed, epoch]).permutation(count) + self.pictures.held_out
        return order[place * size : (place + 1) * size].tolist()

    def measure(self, drafter: EagleDrafter) -> tuple[Tensor, float]:
        """Acceptance [passes, 3] and chain length on the held-out pictures."""
        shares, taus, weights = [], [], []
        for numbers in (chunk.tolist() for chunk in torch.arange(self.pictures.held_out).split(self.options.batch)):
            reading = self._read(numbers, noisy=True)
            share, tau = acceptance(self.target, drafter, reading, self.options.passes, self.sampling)
            shares.append(share.cpu())
            taus.append(tau)
            weights.append(len(numbers))
        weight = torch.tensor(weights) / sum(weights)
        return (torch.stack(shares) * weight[:, None, None]).sum(0), (torch.stack(taus) * weight).sum().item()

    def _cast(self):
        device = self.target.decoder.embedding.device.type
        return torch.autocast(device, self._autocast) if self._autocast else nullcontext()


def _autocast_dtype(device: torch.device, wish: str) -> torch.dtype | None:
    """The dtype of matrix products in training: None is float32. ``auto``: whichever half the GPU is fast in."""
    if wish != "auto":
        return None if wish == "float32" else getattr(torch, wish)
    if device.type != "cuda":
        return None
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
