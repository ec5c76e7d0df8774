"""Parts of a training loop that do not depend on the model: optimisers, a budget of time or steps, and checkpoints."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import wrap_library_errors
from ...files import write_in
from . import training_state


def cosine(fraction: float, warmup: float) -> float:
    """Return the factor by which the learning rate is multiplied.

    The factor rises linearly from 0.01 to 1 in the warm-up, and then falls along a cosine to 0.02.

    Args:
        fraction: Completed share of the budget, 0 to 1.
        warmup: Share of the budget for the warm-up.
    """
    if fraction < warmup:
        return max(fraction / warmup, 0.01)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (fraction - warmup) / (1 - warmup)))


class Muon(torch.optim.Optimizer):
    """Muon optimiser: momentum with orthogonalised updates (Jordan et al., 2024).

    Args:
        parameters: Matrices [in, out], and weights of convolutions [out, in, k, k], which are treated as matrices
            [out, in * k * k].
    """

    def __init__(self, parameters: list[nn.Parameter], lr: float):
        super().__init__(parameters, {"lr": lr, "momentum": 0.95, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
                buffer = self.state[p]["momentum"]
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalise(p.grad.lerp(buffer, group["momentum"]).flatten(1))
                inputs, outputs = p.shape if p.ndim == 2 else update.shape[::-1]
                scale = max(1.0, outputs / inputs) ** 0.5
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update.view_as(p), alpha=-group["lr"] * scale)


def orthogonalise(matrix: Tensor) -> Tensor:
    """Return an approximation of the semi-orthogonal matrix [m, n] that is nearest to `matrix` [m, n].

    The approximation uses three steps of a Newton-Schulz iteration of degree 5.
    """
    a = 3.4445
    b = -4.7750
    c = 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(3):  # more steps are more exact, but on a CPU they cost more time than they save
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def initialise(module: nn.Module, generator: torch.Generator, depth: int) -> None:
    """Initialise matrices with normal random numbers of standard deviation 0.02. Vectors and norms are not changed.

    Args:
        depth: Number of layers. The output projections of a layer get the standard deviation 0.02 / sqrt(2 * depth).
    """
    for name, p in module.named_parameters():
        if p.ndim >= 2 and "norm" not in name:
            std = 0.02 / (2 * depth) ** 0.5 if name.endswith((".out", ".down")) else 0.02
            p.data.copy_(torch.randn(p.shape, generator=generator) * std)


def muon_and_adam(
    model: nn.Module, muon_lr: float, adam_lr: float, not_muon: tuple[str, ...] = ()
) -> list[torch.optim.Optimizer]:
    """Return two optimisers: Muon for the hidden matrices, and AdamW for all other parameters.

    Args:
        not_muon: Parts of names. If the name of a matrix contains one of them, AdamW optimises this matrix. AdamW
            always optimises embeddings.
    """
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, p in model.named_parameters():
        if p.requires_grad:
            is_matrix = p.ndim >= 2 and not any(part in name for part in ("embed", *not_muon))
            (matrices if is_matrix else others).append(p)
    optimisers = [Muon(matrices, muon_lr), torch.optim.AdamW(others, adam_lr, (0.9, 0.98), weight_decay=0.0)]
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["peak"] = group["lr"]
    return optimisers


def autocast_dtype(device: torch.device, name: str) -> torch.dtype | None:
    """Return the dtype of matrix products in training; None for float32.

    Args:
        name: Name of the dtype, or "auto". On a GPU, "auto" is bfloat16 if the GPU supports it natively, else float16.
            On a CPU, "auto" is float32.
    """
    if name != "auto":
        return None if name == "float32" else getattr(torch, name)
    if device.type != "cuda":
        return None
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16


@dataclass
class Run:
    """Training run that can be stopped and resumed.

    The run has a budget of time, a budget of steps, or both. With both budgets, the learning rate and the end of the
    run follow the budget that is used up faster.

    Attributes:
        path: Checkpoint file. If it exists, the run resumes from it.
        minutes: Budget of time in minutes, or None.
        decay: Decay of the exponential moving average of the weights.
        steps: Budget of steps, or None.
        half: Whether gradients are float16. In this case losses are scaled, and steps that overflow are skipped.
        average: Exponential moving average of the weights, by parameter name. It is the result of the training.
        state: Content of the checkpoint from which the run was resumed; step 0 and 0 seconds for a new run.
        step: Number of finished steps.
        saved_step: Number of finished steps in the checkpoint file.
    """

    path: Path
    model: nn.Module
    optimisers: list[torch.optim.Optimizer]
    minutes: float | None
    decay: float
    steps: int | None = None
    half: bool = False

    def __post_init__(self) -> None:
        model = self.model
        self.average = {name: value.detach().clone() for name, value in model.state_dict().items()}
        device = next(model.parameters()).device
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.half)
        self.state: dict[str, Any] = {"step": 0, "elapsed": 0.0}
        if self.path.exists():
            with wrap_library_errors("checkpoint.other_run", path=self.path):
                self._resume(device)
        self.step = self.saved_step = self.state["step"]
        self.begin()

    def _resume(self, device: torch.device) -> None:
        """Load the checkpoint. If it is damaged or belongs to another run, various exceptions are raised."""
        self.state = training_state.read(self.path, device)
        self.model.load_state_dict(self.state["model"])
        self.average = {name: self.state["average"][name] for name in self.average}
        for optimiser, saved in zip(self.optimisers, self.state["optimisers"], strict=True):
            by_parameter = {int(index): value for index, value in saved["state"].items()}
            optimiser.load_state_dict(saved | {"state": by_parameter})
        if self.state.get("scaler"):  # the saved state is empty if losses were not scaled
            self.scaler.load_state_dict(self.state["scaler"])
        self.state |= {"step": int(self.state["step"]), "elapsed": float(self.state["elapsed"])}

    def begin(self) -> None:
        """Start the clock. Time since the construction of this object does not count."""
        self._start = time.monotonic() - self.state["elapsed"]

    @property
    def elapsed(self) -> float:
        """Seconds of training, including earlier runs."""
        return time.monotonic() - self._start

    @property
    def fraction(self) -> float:
        """Completed share of the budget, 0 to 1."""
        by_time = self.elapsed / (60 * self.minutes) if self.minutes else 0.0
        by_steps = self.step / self.steps if self.steps else 0.0
        return min(1.0, max(by_time, by_steps))

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the loss of a part of the current step, and add them to its gradients."""
        self.scaler.scale(loss).backward()

    @torch.no_grad()
    def apply(self, warmup: float = 0.02) -> None:
        """Update the weights and their average with the accumulated gradients; `warmup` as in :func:`cosine`."""
        factor = cosine(self.fraction, warmup)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * factor
            self.scaler.step(optimiser)
            optimiser.zero_grad()
        self.scaler.update()
        decay = min(self.decay, (1 + self.step) / (10 + self.step))
        for name, value in self.model.state_dict().items():
            if value.is_floating_point():
                self.average[name].lerp_(value, 1 - decay)
        self.step += 1

    def save(self, **more) -> None:
        """Write a checkpoint. The old checkpoint is replaced atomically."""
        state = {
            "model": self.model.state_dict(),
            "average": self.average,
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "scaler": self.scaler.state_dict(),
            "step": self.step,
            "elapsed": self.elapsed,
        }
        write_in(self.path.parent, self.path.name, training_state.to_bytes({**state, **more}))
        self.saved_step = self.step
