"""``python -m adt_core check-drafter``: which tokens a drafter's features were paired with when it was trained.

EAGLE pairs a feature with the token after it, as inference must. The training code that was published for Anole and
Lumina-mGPT pairs it with its own token and leaves the offset out of image ids. Nobody has said how the published
drafters were trained. So it is measured on pictures that the target draws: the pairing under which the drafter's first
child is most often the target's token is recorded beside the drafter.
"""

from __future__ import annotations

import argparse
from itertools import product, starmap
from pathlib import Path

import torch

from .. import core
from .pictures import draw
from .unroll import CHILDREN, acceptance, read


def choose_drafter(options: argparse.Namespace) -> None:
    """Choose the drafter if none is named. AdtError if it is no network."""
    options.drafter = options.drafter or core.default_drafter(options.model)
    if not core.is_network(options.drafter):
        raise core.AdtError(f"--drafter: {options.drafter!r} is no network; give the folder of one.")


def run(options: argparse.Namespace) -> str:
    """Draw, measure, record. Returns what to tell the user. Raises AdtError."""
    if options.count < 1:
        raise core.AdtError(f"--count is {options.count}; it must be 1 or more.")
    core.sampling_of(options)  # what is given makes sense, whatever the model
    prompts = core.sample(core.read_prompts(options.prompts or core.BUNDLED_CAPTIONS), options.count, options.seed)
    file = None if str(options.drafter) == core.BUNDLED else _record_of(options.drafter)
    core.check_outputs([("--drafter", file)] if file else [], core.named(options, "prompts"))
    target = core.open_target(options, core.choose_device(options.device))
    sampling = core.sampling_of(options, target.published)
    prompts = [core.suffixed(prompt, core.suffix_of(options, target.published)) for prompt in prompts]
    with core.explained(options.drafter, "drafter"):
        drafter = core.load_eagle(options.drafter, target)
    shares = measure(target, drafter, prompts, sampling)
    best = max(shares, key=lambda pairing: shares[pairing][0])
    children = ", ".join(map(str, CHILDREN))
    lines = [f"The target's token is among the first {children} children, {len(prompts)} pictures of {target.name}:"]
    for pairing, found in shares.items():
        fed = "their own token" if pairing.late else "the token after them"
        said = f"features with {fed}, image tokens by {'code' if pairing.codes else 'id'}"
        figures = " / ".join(f"{share:.3f}" for share in found)
        lines.append(f"{said:62} {figures}{' <- best' if pairing == best else ''}")
    if file is not None:
        measured = [{**pairing._asdict(), "agreement": found} for pairing, found in shares.items()]
        core.write_in(file.parent, file.name, core.to_json({**best._asdict(), "measured": measured}))
        lines.append(f"Recorded in {file}; drafting follows it.")
    return "\n".join(lines)


def _record_of(drafter: str) -> Path:
    """Where the pairing of a drafter is recorded."""
    found = core.resolve(drafter, "drafter")
    return (found if found.is_dir() else found.parent) / core.PAIRING_FILE


@torch.inference_mode()
def measure(
    target: core.Target, drafter: core.EagleDrafter, prompts: list[str], sampling: core.Sampling
) -> dict[core.Pairing, list[float]]:
    """By pairing, the shares of tokens that are among the drafter's first children, for each number in CHILDREN.

    They are taken on pictures of the prompts, which the target draws plainly.
    """
    numbers = list(range(len(prompts)))
    codes = draw(target, prompts, numbers, sampling)
    reading = read(target, [target.encode_prompt(prompt) for prompt in prompts], codes, numbers, sampling, None)
    drafter, shares = drafter.to(reading.features.dtype), {}
    for pairing in starmap(core.Pairing, product((False, True), repeat=2)):
        found = acceptance(drafter, reading.paired(pairing), passes=1)
        shares[pairing] = [found[f"depth 1 of {count}"] for count in CHILDREN]
    return shares
