"""Command `python adt.py check-drafter`: find out how features and tokens were paired when a drafter was trained.

An EAGLE drafter reads pairs of a feature and a token. EAGLE pairs the feature of a token with the next token. The
published training code of Anole and Lumina-mGPT pairs the feature of a token with the same token. It also uses codes
(codebook indices) instead of token ids. It is not documented how the published drafters were trained. A drafter works
well only if inference uses the pairing of its training.

So this command tries each pairing (:class:`~adt_core.drafters.eagle.Pairing`) on images that the target generates. For
each pairing, it counts how often the drafter's most probable child of a node equals the target's token. The command
saves the pairing with the highest count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product, starmap
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...app.args import CheckDrafterArgs, given_paths
from ...app.prompts import BUNDLED_CAPTIONS, read_prompts, sample
from ...drafters import is_network
from ...drafters.eagle import EagleDrafter, Pairing
from ...drafters.eagle_files import PAIRING_FILE, load_eagle
from ...errors import AdtError
from ...files import to_json, write_in
from ...models.reading.paths import resolve
from ...models.target import Target, suffixed
from ...policies import PLAIN
from ...recipe import Placement, Recipe
from ...run.images import check_outputs
from ...run.model_files import default_drafter
from ...run.pipeline import Pipeline
from ...run.resolve import Hardware, resolve_recipe
from ...settings import BUNDLED, Sampling
from .dataset import generate
from .unroll import CHILDREN, acceptance, read


class PairingPlan(NamedTuple):
    """Checked arguments of the command. No model is needed to check them.

    Attributes:
        prompts: Prompts of the test images, without the recipe's suffix.
        file: File for the result; None for the bundled drafter, whose result is not saved.
    """

    recipe: Recipe
    prompts: list[str]
    placement: Placement
    file: Path | None


def plan(args: CheckDrafterArgs, given: Mapping[str, Any], placement: Placement) -> PairingPlan:
    """Check the arguments before a model is loaded.

    Raises:
        AdtError: If an argument is invalid, or the drafter is not a network.
    """
    recipe = resolve_recipe({**given, "method": PLAIN}, Hardware.of(placement.device))
    drafter = recipe.drafter or default_drafter(recipe.loading.model)
    if not is_network(drafter):
        raise AdtError("drafter.no_network", path=drafter)
    prompts = read_prompts(args.prompts or BUNDLED_CAPTIONS)
    prompts = sample(prompts, args.count, recipe.sampling.seed)
    place = resolve(drafter, "drafter")
    file = None if drafter == BUNDLED else (place if place.is_dir() else place.parent) / PAIRING_FILE
    check_outputs([("drafter", file)] if file else [], given_paths(args, "prompts"))
    return PairingPlan(replace(recipe, drafter=drafter), prompts, placement, file)


def run(plan: PairingPlan) -> str:
    """Generate the test images, measure every pairing, save the best, and return a table of the results."""
    recipe = plan.recipe
    file = plan.file
    target = Pipeline.of(recipe, plan.placement).target
    prompts = [suffixed(prompt, recipe.suffix) for prompt in plan.prompts]
    drafter = load_eagle(recipe.drafter or BUNDLED, target)
    shares = measure(target, drafter, prompts, recipe.sampling)
    best = max(shares, key=lambda pairing: shares[pairing][0])
    children = ", ".join(map(str, CHILDREN))
    lines = [f"Share of target tokens among the first {children} children, {len(prompts)} images of {target.name}:"]
    for pairing, hits in shares.items():
        token = "their own token" if pairing.late else "the token after them"
        words = f"features with {token}, image tokens by {'code' if pairing.codes else 'id'}"
        figures = " / ".join(f"{share:.3f}" for share in hits)
        lines.append(f"{words:62} {figures}{' <- best' if pairing == best else ''}")
    if file is not None:
        measured = [{**pairing._asdict(), "agreement": hits} for pairing, hits in shares.items()]
        write_in(file.parent, file.name, to_json({**best._asdict(), "measured": measured}))
        lines.append(f"Saved in {file}; drafting uses it.")
    return "\n".join(lines)


@torch.inference_mode()
def measure(
    target: Target, drafter: EagleDrafter, prompts: list[str], sampling: Sampling
) -> dict[Pairing, list[float]]:
    """Measure the acceptance of a drafter with every pairing.

    Returns:
        For each pairing, a list with one share for each number in `CHILDREN`. The share for the number K is the share
        of positions at which the target's token is among the drafter's K most probable children.
    """
    numbers = list(range(len(prompts)))
    codes = generate(target, prompts, numbers, sampling)
    outputs = read(target, [target.encode_prompt(prompt) for prompt in prompts], codes, numbers, sampling, None)
    drafter = drafter.to(outputs.features.dtype)
    shares = {}
    for pairing in starmap(Pairing, product((False, True), repeat=2)):
        hits = acceptance(drafter, outputs.paired(pairing), passes=1)
        shares[pairing] = [hits[f"depth 1 of {count}"] for count in CHILDREN]
    return shares
