"""Benchmark for the prompt adherence of a model, on held-out captions and evaluation prompts.

    python -m model_making.quality [--target FOLDER --plain] [--count 100] [--seeds 2] [--sheet FILE.jpg]

The script generates images, scores them with ``model_making.scoring``, and prints four reports. Each report has a
threshold. If a threshold is missed, the script exits with an error.

1. Held-out captions from ``scenes.describe``: share of the named attributes that the images show.
2. Evaluation prompts of ``model_making.prompts``, with several seeds: the same share, in total and by style of prompt.
3. Objects of reports 1 and 2: share with the right kind and colour, and share of objects that are drawn only once.
4. Prompts of templates and blueprints, with eight seeds each: number of images that show all named attributes.

``--sheet`` writes a contact sheet of the first 24 images of report 1 and the first 24 images of report 2. ``--plain``
decodes without a drafter. This is for a new target that has no drafter yet; a drafter doesn't change the images.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from adt_core import Drafting, Pipeline, Recipe, Sampling, load_drafter, load_target
from adt_core.models.load import BUNDLED_SAMPLING
from adt_core.policies import PLAIN
from adt_core.run.images import to_uint8

from .data import example
from .prompts import PROMPTS, TEMPLATES, PromptSpec
from .scoring import PromptScore, analyse_image, scene_spec, score_prompt

HELD_OUT_SEED = 2
BATCH = 8
IMAGES_PER_SHEET_PART = 24
MIN_COMPLETE_IMAGES = 7
"""Each template prompt gets eight images. At least this number of them must show all named attributes."""
THRESHOLDS = {"captions": 0.96, "ordinary prompts": 0.93, "kind and colour": 0.85, "not twice": 0.90}


def generate(pipeline: Pipeline, prompts: list[str], seeds: Sequence[int] | None = None) -> np.ndarray:
    """Generate an image for each prompt.

    Args:
        seeds: Seed of each image. By default, all images of batch i have the pipeline's seed + i * BATCH.

    Returns:
        [n, H, W, 3] uint8.
    """
    first_seed = pipeline.recipe.sampling.seed
    all_seeds = list(seeds or (first_seed + number // BATCH * BATCH for number in range(len(prompts))))
    images = []
    for part in (slice(start, start + BATCH) for start in range(0, len(prompts), BATCH)):
        decoding = pipeline.decoding(prompts[part], seeds=all_seeds[part]).run()
        with torch.inference_mode():
            images += map(to_uint8, pipeline.target.pixels(decoding.grid_codes()))
    return np.stack(images)


def contact_sheet(images: np.ndarray, columns: int = 8, gap: int = 4) -> Image.Image:
    """Arrange images in a grid on a white background.

    Args:
        images: [n, H, W, 3] uint8.
        gap: Distance between images, in pixels.
    """
    n, height, width, _ = images.shape
    rows = -(-n // columns)
    sheet = Image.new("RGB", (columns * (width + gap) - gap, rows * (height + gap) - gap), "white")
    for i, image in enumerate(images):
        sheet.paste(Image.fromarray(image), (i % columns * (width + gap), i // columns * (height + gap)))
    return sheet


def select_prompts(count: int) -> list[PromptSpec]:
    """Return `count` evaluation prompts at equal distances in the list, so that all groups are represented."""
    return [PROMPTS[i * len(PROMPTS) // count] for i in range(count)]


def print_rates(title: str, results: Iterable[tuple[str, bool]]) -> None:
    """Print one line per name: number of successes, number of results, and share of successes.

    Args:
        results: Pairs (name, success). A success means that the image shows the attribute.
    """
    by_name: dict[str, list[bool]] = defaultdict(list)
    for name, present in results:
        by_name[name].append(present)
    print(title)
    for name, outcomes in by_name.items():
        print(f"  {name:10}{sum(outcomes):5} of {len(outcomes):4}{sum(outcomes) / len(outcomes):9.1%}")


def results_by_kind(scores: list[PromptScore]) -> Iterable[tuple[str, bool]]:
    """Yield (kind, present) for each named attribute. The kind is "object", "sky", "ground" and so on."""
    return ((label.split(":")[0], present) for score in scores for label, present in sorted(score.named.items()))


def report_prompts(prompts: list[PromptSpec], scores: list[PromptScore], list_missing: bool) -> None:
    """Print the results of the evaluation prompts by group and by kind of attribute.

    Args:
        list_missing: Whether to print the missing attributes of each image.
    """
    by_group = ((prompt.group, present) for prompt, score in zip(prompts, scores) for present in score.named.values())
    print_rates(f"ordinary prompts, {len(prompts)} images, by style", by_group)
    print_rates("ordinary prompts, by kind of attribute", results_by_kind(scores))
    for prompt, score in zip(prompts, scores):
        missing = [label for label, present in score.named.items() if not present]
        if list_missing and missing:
            print(f"  {prompt.text!r} lacks {', '.join(missing)}")


def report_templates(pipeline: Pipeline) -> list[str]:
    """Print the number of images that show all named attributes, for each template prompt.

    Returns:
        ["templates"] if a prompt is below :data:`MIN_COMPLETE_IMAGES`, else an empty list.
    """
    counts = []
    print("templates and blueprints, images with all named attributes")
    for prompt in TEMPLATES:
        images = generate(pipeline, [prompt.text] * BATCH, range(1, BATCH + 1))
        count = sum(all(score_prompt(analyse_image(image), prompt).named.values()) for image in images)
        print(f"  {count} of {BATCH}  {prompt.text}")
        counts.append(count)
    return ["templates"] if min(counts) < MIN_COMPLETE_IMAGES else []


def report_thresholds(results: dict[str, list[bool]]) -> list[str]:
    """Print each share with its threshold.

    Args:
        results: Outcomes by key of :data:`THRESHOLDS`; an empty list is skipped.

    Returns:
        Names of the missed thresholds.
    """
    missed = []
    for name, threshold in THRESHOLDS.items():
        if outcomes := results[name]:
            share = sum(outcomes) / len(outcomes)
            print(f"{name}: {sum(outcomes)} of {len(outcomes)} ({share:.1%}; at least {threshold:.0%} required)")
            missed += [name] if share < threshold else []
    return missed


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="bundled", help="folder of a checkpoint; default: the bundled model")
    parser.add_argument("--plain", action="store_true", help="decode without a drafter")
    parser.add_argument("--count", type=int, default=100, help="number of held-out captions")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="number of evaluation prompts")
    parser.add_argument("--seeds", type=int, default=2, help="images per evaluation prompt")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first batch of images")
    for name, kind in (("guidance-scale", float), ("temperature", float), ("top-k", int), ("top-p", float)):
        default = getattr(BUNDLED_SAMPLING, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=kind, default=default)
    parser.add_argument(
        "--templates", action=argparse.BooleanOptionalAction, default=True, help="evaluate the template prompts, too"
    )
    parser.add_argument("--sheet", type=Path, help="file for a contact sheet")
    parser.add_argument("--misses", action="store_true", help="list the missing attributes of each prompt")
    return parser.parse_args()


def _make_pipeline(args: argparse.Namespace) -> Pipeline:
    target = load_target(args.target)
    drafter = None if args.plain else load_drafter("bundled", target)
    sampling = Sampling(args.seed, args.temperature, args.top_k, args.top_p, args.guidance_scale)
    return Pipeline(target, Recipe(sampling, Drafting("adt-tree" if drafter else PLAIN)), drafter)


def main() -> None:
    """Print the reports; exit with an error if a threshold is missed."""
    args = _parse_args()
    pipeline = _make_pipeline(args)
    held_out = [example(HELD_OUT_SEED, i) for i in range(args.count)]
    prompts = select_prompts(args.prompts) * args.seeds
    texts = [caption for _, caption, _ in held_out] + [prompt.text for prompt in prompts]
    begin = time.perf_counter()
    images = generate(pipeline, texts)
    print(f"{len(images)} images, {(time.perf_counter() - begin) / len(images):.2f} s each")
    caption_images = images[: args.count]
    prompt_images = images[args.count :]
    if args.sheet:
        parts = [caption_images[:IMAGES_PER_SHEET_PART], prompt_images[:IMAGES_PER_SHEET_PART]]
        contact_sheet(np.concatenate(parts)).save(args.sheet, quality=92)
    captions = [score_prompt(analyse_image(x), scene_spec(scene)) for x, (_, _, scene) in zip(caption_images, held_out)]
    ordinary = [score_prompt(analyse_image(x), prompt) for x, prompt in zip(prompt_images, prompts)]
    print_rates(f"captions, {len(captions)} images, by kind of attribute", results_by_kind(captions))
    report_prompts(prompts, ordinary, args.misses)
    missed = report_thresholds(
        {
            "captions": [present for score in captions for present in score.named.values()],
            "ordinary prompts": [present for score in ordinary for present in score.named.values()],
            "kind and colour": [present for score in captions + ordinary for present in score.kind_and_colour],
            "not twice": [present for score in captions + ordinary for present in score.not_repeated],
        }
    )
    missed += report_templates(pipeline) if args.templates else []
    if missed:
        sys.exit("missed: " + ", ".join(missed))


if __name__ == "__main__":
    main()
