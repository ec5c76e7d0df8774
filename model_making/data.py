"""Stage 1: render the captioned data set.

    python -m model_making.data --out DIR [--count 30000] [--seed 28]

writes ``images.npy`` (uint8 [count, 128, 128, 3]) and ``scenes.jsonl``. Image i depends only on (seed, i), so any part
of the data set can be reproduced. :func:`example` renders held-out images, with captions from ``scenes.describe``.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from multiprocessing import Pool
from pathlib import Path

import numpy as np

from .render import SIZE, render
from .scenes import Scene, describe, sample_scene, sample_wide_scene


def example(seed: int, index: int) -> tuple[np.ndarray, str, Scene]:
    """Sample a scene with :func:`model_making.scenes.sample_scene`, and render it.

    Returns:
        Image [SIZE, SIZE, 3] uint8, caption and scene.
    """
    rng = np.random.default_rng([seed, index])
    scene = sample_scene(rng)
    caption = describe(scene, rng)
    return np.asarray(render(scene, rng)), caption, scene


def _training_example(seed_and_index: tuple[int, int]) -> tuple[np.ndarray, Scene]:
    rng = np.random.default_rng(seed_and_index)
    scene = sample_wide_scene(rng)
    return np.asarray(render(scene, rng)), scene


def main() -> None:
    """Render the data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    parser.add_argument("--count", type=int, default=30000, help="number of images")
    parser.add_argument("--seed", type=int, default=28, help="seed of the data set")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    images = np.lib.format.open_memmap(args.out / "images.npy", "w+", np.uint8, (args.count, SIZE, SIZE, 3))
    with Pool() as pool, open(args.out / "scenes.jsonl", "w", encoding="utf-8") as scenes:
        jobs = ((args.seed, i) for i in range(args.count))
        for i, (image, scene) in enumerate(pool.imap(_training_example, jobs, chunksize=64)):
            images[i] = image
            scenes.write(json.dumps(asdict(scene)) + "\n")


if __name__ == "__main__":
    main()
