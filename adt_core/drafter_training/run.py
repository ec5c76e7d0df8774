"""What every training shares: optimisers, a schedule over a budget of time or steps, and resumable checkpoints."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn


def cosine(fraction: float, warmup: float = 0.02, floor: float = 0.02) -> float:
    """Learning-rate factor: linear warm-up, then a cosine down to ``floor``."""
    if fraction < warmup:
        return max(fraction / warmup, 0.01)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * (fraction - warmup) / (1 - warmup)))


class WeightAverage:
    """Exponential moving average of a module's parameters; what is shipped."""

    def __init__(self, module: nn.Module, decay: float):
        self.decay = decay
        self.shadow = {k: v.detach().clone() for k, v in module.state_dict().items()}

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        for key, value in module.state_dict().items():
            if value.is_floating_point():
                self.shadow[key].lerp_(value, 1 - decay)


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised by Newton-Schulz (Jordan et al., 2024), for weight matrices
    (convolutions are flattened to [out, in * k * k])."""

    def __init__(self, parameters, lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.01):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                buffer = state.setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalise(p.grad.lerp(buffer, group["momentum"]).flatten(1))
                inputs, outputs = p.shape if p.ndim == 2 else update.shape[::-1]  # matrices are stored [in, out]
                scale = max(1.0, outputs / inputs) ** 0.5
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update.view_as(p), alpha=-group["lr"] * scale)


def orthogonalise(matrix: Tensor, steps: int = 3) -> Tensor:
    """Nearest semi-orthogonal matrix, roughly: a quintic Newton-Schulz iteration, cut short because a CPU pays for every step."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def initialise(module: nn.Module, generator: torch.Generator, depth: int) -> None:
    """Normal(0, 0.02) matrices, output projections scaled down with ``depth`` (in layers); vectors and norms stay as they are."""
    for name, p in module.named_parameters():
        if p.ndim >= 2 and "norm" not in name:
            std = 0.02 / (2 * depth) ** 0.5 if name.endswith((".out", ".down")) else 0.02
            p.data.copy_(torch.randn(p.shape, generator=generator) * std)


def muon_and_adam(
    model: nn.Module, muon_lr: float, adam_lr: float, not_muon: tuple[str, ...] = ()
) -> list[torch.optim.Optimizer]:
    """Muon for the hidden matrices, AdamW for vectors, embeddings and whatever ``not_muon`` names."""
    matrices, others = [], []
    for name, p in model.named_parameters():
        if p.requires_grad:
            is_matrix = p.ndim >= 2 and "embed" not in name and not any(part in name for part in not_muon)
            (matrices if is_matrix else others).append(p)
    optimisers = [Muon(matrices, lr=muon_lr), torch.optim.AdamW(others, adam_lr, (0.9, 0.98), weight_decay=0.0)]
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["peak"] = group["lr"]
    return optimisers


class Run:
    """A resumable training run: weights, their average, optimisers, step and the time spent.

    The budget, ``minutes`` or ``steps`` or whichever ends first, sets the learning rate's schedule. ``decay``: of the weight average.
    ``half``: gradients come from float16, so losses are scaled and steps that overflow are left out.
    """

    def __init__(
        self,
        path: Path,
        model: nn.Module,
        optimisers: list[torch.optim.Optimizer],
        minutes: float | None = None,
        *,
        steps: int | None = None,
        decay: float,
        half: bool = False,
    ):
        """Take up the checkpoint at ``path`` if there is one."""
        self.path, self.model, self.optimisers, self.minutes, self.steps = path, model, optimisers, minutes, steps
        self.average = WeightAverage(model, decay)
        device = next(model.parameters()).device
        self.scaler = torch.amp.GradScaler(device.type, enabled=half)
        state = (
            torch.load(path, map_location=device, weights_only=True) if path.exists() else {"step": 0, "elapsed": 0.0}
        )
        if "model" in state:
            model.load_state_dict(state["model"])
            self.average.shadow = state["average"]
            for optimiser, saved in zip(optimisers, state["optimisers"], strict=True):
                optimiser.load_state_dict(saved)
            self.scaler.load_state_dict(state.get("scaler", {}) if half else {})
        self.state, self.step = state, state["step"]
        self._start = time.monotonic() - state["elapsed"]
        self._saved = self.elapsed

    @property
    def elapsed(self) -> float:
        """Seconds spent, those before a restart included."""
        return time.monotonic() - self._start

    @property
    def fraction(self) -> float:
        """Share of the budget that is spent; the run is over at 1."""
        spent = [self.elapsed / (60 * self.minutes)] if self.minutes else []
        return min(1.0, max(spent + ([self.step / self.steps] if self.steps else [])))

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of ``loss``, one of the parts that make up a step."""
        self.scaler.scale(loss).backward()

    def apply(self, warmup: float = 0.02) -> None:
        """One optimisation step on the gradients that have come together."""
        factor = cosine(self.fraction, warmup)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * factor
            self.scaler.step(optimiser)
            optimiser.zero_grad()
        self.scaler.update()
        self.average.update(self.model, self.step)
        self.step += 1

    def advance(self, loss: Tensor, warmup: float = 0.02) -> None:
        """One optimisation step on ``loss``; prints it now and then."""
        self.backward(loss)
        self.apply(warmup)
        if self.step % 25 == 0:
            print(f"step {self.step} {self.fraction:.3f} loss {loss.item():.4f}", flush=True)

    def due(self, seconds: float = 200) -> bool:
        """Time for a checkpoint: every ``seconds`` and at the end."""
        return self.elapsed - self._saved > seconds or self.fraction >= 1

    def save(self, **more) -> None:
        """Write a checkpoint, with ``more`` entries, so that a kill in the middle leaves the previous one intact."""
        self._saved = self.elapsed
        state = {
            "model": self.model.state_dict(),
            "average": self.average.shadow,
            "optimisers": [o.state_dict() for o in self.optimisers],
            "scaler": self.scaler.state_dict(),
            "step": self.step,
            "elapsed": self.elapsed,
        }
        torch.save({**state, **more}, self.path.with_suffix(".tmp"))
        os.replace(self.path.with_suffix(".tmp"), self.path)
