"""Does the bundled model draw what the caption says?

    python -m model_making.quality [--count 100] [--sheet FILE.png]

Generates held-out captions at the default settings and looks each named attribute up in the pixels
(``model_making.attributes``). Prints the pass rate per kind and exits non-zero below 90 %. ``--sheet`` writes the first
24 pictures, uncurated.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from adt_core import Decoding, Drafting, Sampling, load_drafter, load_target

from .attributes import check
from .data import example

SEED, BATCH, BAR = 2, 8, 0.90


def generate(target, drafter, captions: list[str], seed: int) -> np.ndarray:
    """Pictures of ``captions``, uint8 [n, H, W, 3], at the default settings."""
    images = []
    for start in range(0, len(captions), BATCH):
        prompts = [target.encode_prompt(caption) for caption in captions[start : start + BATCH]]
        decoding = Decoding(
            target, prompts, sampling=Sampling(seed=seed + start), drafting=Drafting("adt-tree"), drafter=drafter
        )
        for _ in decoding:
            pass
        with torch.inference_mode():
            pixels = target.codec.decode(decoding.grid_codes())
        images.append(((pixels + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).numpy())
    return np.concatenate(images)


def contact_sheet(images: np.ndarray, columns: int = 8, gap: int = 4) -> Image.Image:
    """Pictures side by side on white."""
    n, height, width, _ = images.shape
    rows = -(-n // columns)
    sheet = Image.new("RGB", (columns * (width + gap) - gap, rows * (height + gap) - gap), "white")
    for i, image in enumerate(images):
        sheet.paste(Image.fromarray(image), (i % columns * (width + gap), i // columns * (height + gap)))
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sheet", type=Path)
    args = parser.parse_args()
    target = load_target()
    drafter = load_drafter("bundled", target)
    _, captions, scenes = zip(*(example(SEED, i) for i in range(args.count)))
    images = generate(target, drafter, list(captions), args.seed)
    if args.sheet:
        contact_sheet(images[:24]).save(args.sheet)
    found: dict[str, list[bool]] = defaultdict(list)
    for image, scene in zip(images, scenes):
        for name, passed in check(image, scene).items():
            found[name.split(":")[0]].append(passed)
    for kind, results in sorted(found.items()):
        print(f"{kind}: {sum(results)} of {len(results)}")
    everything = [passed for results in found.values() for passed in results]
    rate = sum(everything) / len(everything)
    print(f"{sum(everything)} of {len(everything)} attributes found ({rate:.1%}; the bar is {BAR:.0%})")
    sys.exit(0 if rate >= BAR else 1)


if __name__ == "__main__":
    main()
