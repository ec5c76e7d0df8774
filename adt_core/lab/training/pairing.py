"""``python adt.py check-drafter``: which tokens a drafter's features were paired with when it was trained.

EAGLE pairs a feature with the token after it, as inference must. The training code that was published for Anole and
Lumina-mGPT pairs it with its own token and leaves the offset out of image ids. Nobody has said how the published
drafters were trained. So it is measured on pictures that the target draws: the pairing under which the drafter's first
child is most often the target's token is recorded beside the drafter.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product, starmap
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...app.args import CheckDrafterArgs
from ...app.checkpoints import explain_errors
from ...app.images import check_outputs
from ...app.jobs import decode
from ...app.loading import choose_device, complete, named, open_target
from ...app.prompts import BUNDLED_CAPTIONS, read_prompts, sample
from ...drafters import JACOBI, is_network
from ...drafters.eagle import EagleDrafter, Pairing
from ...drafters.eagle_files import PAIRING_FILE, load_eagle
from ...errors import AdtError
from ...files import to_json, write_in
from ...models.reading.paths import resolve
from ...models.target import Target, suffixed
from ...policies.recipe import Recipe
from ...rules.settings import BUNDLED, Sampling
from .dataset import plain_decoding
from .unroll import CHILDREN, acceptance, read


class PairingPlan(NamedTuple):
    """What is measured; nothing is loaded yet. file: where the result is recorded; None for the bundled drafter."""

    recipe: Recipe
    prompts: list[str]
    device: torch.device
    file: Path | None


def plan(order: CheckDrafterArgs, given: Mapping[str, Any], device: str) -> PairingPlan:
    """Check what can be checked before a model is loaded. AdtError if the drafter is no network."""
    recipe = complete(given, device)
    drafter = recipe.drafter or JACOBI
    if not is_network(drafter):
        raise AdtError(f"`drafter`: {drafter!r} is not a drafter network; choose the folder of one.")
    prompts = read_prompts(order.prompts or BUNDLED_CAPTIONS)
    prompts = sample(prompts, order.count, recipe.sampling.seed)
    file = None if drafter == BUNDLED else _record_of(drafter)
    check_outputs([("drafter", file)] if file else [], named(order, "prompts"))
    return PairingPlan(recipe, prompts, choose_device(device), file)


def run(plan: PairingPlan) -> str:
    """Draw, measure, record. Returns what to tell the user. Raises AdtError."""
    recipe, file = plan.recipe, plan.file
    target = open_target(recipe.loading, plan.device)
    prompts = [suffixed(prompt, recipe.suffix) for prompt in plan.prompts]
    path = recipe.drafter or BUNDLED
    with explain_errors(path, "drafter"):
        drafter = load_eagle(path, target)
    shares = measure(target, drafter, prompts, recipe.sampling)
    best = max(shares, key=lambda pairing: shares[pairing][0])
    children = ", ".join(map(str, CHILDREN))
    lines = [f"Share of target tokens among the first {children} children, {len(prompts)} images of {target.name}:"]
    for pairing, hits in shares.items():
        fed = "their own token" if pairing.late else "the token after them"
        words = f"features with {fed}, image tokens by {'code' if pairing.codes else 'id'}"
        figures = " / ".join(f"{share:.3f}" for share in hits)
        lines.append(f"{words:62} {figures}{' <- best' if pairing == best else ''}")
    if file is not None:
        measured = [{**pairing._asdict(), "agreement": hits} for pairing, hits in shares.items()]
        write_in(file.parent, file.name, to_json({**best._asdict(), "measured": measured}))
        lines.append(f"Saved in {file}; drafting uses it.")
    return "\n".join(lines)


def _record_of(drafter: str) -> Path:
    """Where the pairing of a drafter is recorded."""
    place = resolve(drafter, "drafter")
    return (place if place.is_dir() else place.parent) / PAIRING_FILE


@torch.inference_mode()
def measure(
    target: Target, drafter: EagleDrafter, prompts: list[str], sampling: Sampling
) -> dict[Pairing, list[float]]:
    """By pairing, the shares of tokens that are among the drafter's first children, for each number in CHILDREN.

    They are taken on pictures of the prompts, which the target draws plainly.
    """
    numbers = list(range(len(prompts)))
    codes = decode(plain_decoding(target, prompts, numbers, sampling)).codes
    reading = read(target, [target.encode_prompt(prompt) for prompt in prompts], codes, numbers, sampling, None)
    drafter, shares = drafter.to(reading.features.dtype), {}
    for pairing in starmap(Pairing, product((False, True), repeat=2)):
        hits = acceptance(drafter, reading.paired(pairing), passes=1)
        shares[pairing] = [hits[f"depth 1 of {count}"] for count in CHILDREN]
    return shares
