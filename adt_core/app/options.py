"""What options of the command line ask for: the models, how tokens are drawn, how drafts are made, and where."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import torch

from ..drafters import DRAFTERS, JACOBI, WITH_WINDOW, drafter_defaults, is_network
from ..errors import AdtError, Check
from ..models.checkpoint import BUNDLED
from ..models.target import PublishedSampling, Target
from ..policies import Drafting, check_fit
from ..policies import options as drafting_options
from ..rules.settings import Lantern, Sampling
from .checkpoints import find_drafter, load_target, parts_of


def named(options: argparse.Namespace, *names: str) -> list[tuple[str, Path]]:
    """For ``check_outputs``: options of these names that were given, and the paths that they name."""
    given = ((f"--{name.replace('_', '-')}", getattr(options, name)) for name in names)
    return [(option, Path(path)) for option, path in given if path]


def models_of(model: str, drafter: str = JACOBI, option: str = "--drafter") -> list[tuple[str, Path]]:
    """For ``check_outputs``: the files of a target, and of a drafter if it has any. option: that names the drafter."""
    network = [] if drafter in DRAFTERS else parts_of(drafter.removesuffix(WITH_WINDOW), "drafter")
    return [*(("--model", file) for file in parts_of(model, "target")), *((option, file) for file in network)]


def sampling_of(options: argparse.Namespace, published: PublishedSampling = PublishedSampling()) -> Sampling:
    """How tokens are drawn: by the options of those names; ``published``, the target's, holds for what is not given."""
    given = {field.name: getattr(options, field.name) for field in fields(Sampling)}
    return Sampling(**{k: getattr(published, k) if value is None else value for k, value in given.items()})


def suffix_of(options: argparse.Namespace, published: PublishedSampling) -> str:
    """What is put behind every prompt: as told, else as ``published``, the target's, says."""
    return published.suffix if options.suffix is None else options.suffix


def drafting_of(options: argparse.Namespace) -> Drafting:
    """How drafts are made: the given options, else what suits drafter and device. AdtError if these don't go together.

    A PNG names options of its own method, which another one may lack. Those of the command line must belong to it.
    """
    named = {name: getattr(options, name) for name in ("method", *drafting_options())}
    given = {name: value for name, value in named.items() if value is not None}
    device = choose_device("auto").type if options.device == "auto" else options.device
    drafting = Drafting.of({**drafter_defaults(options.drafter, device), **given})
    strange = [f"--{name.replace('_', '-')}" for name in given if name not in drafting.flat()]
    if strange and not options.from_png:
        raise AdtError(
            f"{strange[0]}: method {drafting.method!r} has no such option; leave it out, or name a --method."
        )
    check_fit(drafting.method, is_network(options.drafter))
    return drafting


def lantern_of(options: argparse.Namespace) -> Lantern | None:
    """Relaxed acceptance as the options ask for it; None for exact acceptance."""
    delta, factor, share = options.lantern_delta, options.lantern_lambda, options.max_substitution
    if delta is not None and factor is not None:
        raise AdtError("--lantern-delta and --lantern-lambda are two rules; give one of them.")
    if factor is not None:
        return Lantern(options.lantern_k, factor=factor, max_substitution=share)
    return None if delta is None else Lantern(options.lantern_k, delta, max_substitution=share)


def default_drafter(model: str) -> str:
    """The drafter where none is named: the bundled model has one; others may have a published one beside them, else it
    is the one that needs no network."""
    return BUNDLED if model == BUNDLED else str(find_drafter(model) or JACOBI)


def open_target(options: argparse.Namespace, device: torch.device, check: Check | None = None) -> Target:
    """The target that ``--model``, ``--dtype``, ``--weights``, ``--exact`` and ``--size`` ask for."""
    target = load_target(
        options.model, device, getattr(torch, options.dtype), check, options.weights, options.exact == "on"
    )
    return target.sized(*options.size) if options.size else target


def choose_device(name: str) -> torch.device:
    """``auto``, ``cpu`` or ``cuda`` as a device of this machine."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise AdtError("--device cuda: this PyTorch finds no CUDA device; use --device cpu.")
    return torch.device("cuda" if available and name != "cpu" else "cpu")
