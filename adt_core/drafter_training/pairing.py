"""``python -m adt_core check-drafter``: which tokens a drafter's features were paired with when it was trained.

EAGLE pairs a feature with the token after it, as inference must. The training code that was published for Anole and Lumina-mGPT pairs it with its own
token and leaves the offset out of image ids, and nobody has said which way the published drafters were made. So it is measured, teacher-forced on
pictures that the target draws: the pairing under which the drafter's first child is most often the target's token is recorded beside it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from ..app.generation import choose_device, open_target
from ..app.images import write_json
from ..app.prompts import BUNDLED_CAPTIONS, read_prompts, sample
from ..drafters.eagle import PAIRING_FILE, EagleDrafter, Pairing, load_eagle, paired_ids
from ..engine.decoding import Decoding
from ..errors import AdtError
from ..models.checkpoint import BUNDLED, Checkpoint, resolve
from ..models.target import Target
from ..policies.shape import Drafting
from ..rules.sampling import Sampling
from .unroll import CHILDREN, Reading, acceptance, read

PAIRINGS = [Pairing(late, codes) for late, codes in product((False, True), (False, True))]


def run(options: argparse.Namespace, sampling: dict) -> str:
    """Draw, measure, record. Returns what to tell the user. Raises AdtError."""
    if options.count < 1:
        raise AdtError(f"--count is {options.count}; it must be 1 or more.")
    chosen = Sampling(**sampling)
    prompts = sample(read_prompts(options.prompts or BUNDLED_CAPTIONS), options.count, chosen.seed)
    target = open_target(options, choose_device(options.device))
    drafter = load_eagle(options.drafter, target)
    shares = measure(target, drafter, draw(target, prompts, chosen), chosen)
    best = max(shares, key=lambda pairing: shares[pairing][0].item())
    lines = [
        f"{describe(pairing):62} {' / '.join(f'{share:.3f}' for share in shares[pairing].tolist())}"
        + (" <- best" if pairing == best else "")
        for pairing in PAIRINGS
    ]
    head = f"The target's token is among the first {', '.join(map(str, CHILDREN))} children, {len(prompts)} pictures of {target.name}:"
    if str(options.drafter) == BUNDLED:
        return "\n".join([head, *lines])
    file = record(Checkpoint(resolve(options.drafter, "drafter")).folder, best, shares)
    return "\n".join([head, *lines, f"Recorded in {file}; drafting follows it."])


def describe(pairing: Pairing) -> str:
    """A pairing in words."""
    return f"features with {'their own token' if pairing.late else 'the token after them'}, image tokens by {'code' if pairing.codes else 'id'}"


@torch.inference_mode()
def draw(target: Target, prompts: list[str], sampling: Sampling) -> Reading:
    """Pictures of the prompts, decoded plainly, as the target reads them."""
    rows, numbers = [target.encode_prompt(prompt) for prompt in prompts], list(range(len(prompts)))
    decoding = Decoding(
        target, rows, sampling=sampling, drafting=Drafting(method="autoregressive"), image_indices=numbers
    )
    for _ in decoding:
        pass
    return read(target, rows, decoding.codes, numbers, sampling, None, noisy=True)


@torch.inference_mode()
def measure(target: Target, drafter: EagleDrafter, reading: Reading, sampling: Sampling) -> dict[Pairing, Tensor]:
    """By pairing: the shares of tokens that are among the drafter's first ``CHILDREN``."""
    first = torch.tensor([[prompt[0]] for prompt in reading.prompts], device=reading.ids.device)
    every = torch.cat([first, reading.ids], 1)
    drafter = drafter.to(reading.features.dtype)
    return {
        pairing: acceptance(
            target, drafter, replace(reading, ids=paired_ids(pairing, every, target.decoder.image_ids)), 1, sampling
        )[0][0]
        for pairing in PAIRINGS
    }


def record(folder: Path, best: Pairing, shares: dict[Pairing, Tensor]) -> Path:
    """Write the best pairing, and what was measured, into the drafter's folder."""
    found = [{**pairing._asdict(), "agreement": share.tolist()} for pairing, share in shares.items()]
    write_json(folder / PAIRING_FILE, {**best._asdict(), "measured": found})
    return folder / PAIRING_FILE
