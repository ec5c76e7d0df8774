"""Does a model draw what it is asked for?

    python -m model_making.quality [--target FOLDER --plain] [--count 100] [--seeds 2] [--sheet FILE.jpg]

Four reports, each with a bar; exits non-zero if one is missed. What is named is looked for by shape and surroundings
(``model_making.judging``).

1. Held-out captions of the grammar.
2. The ordinary prompts of ``model_making.asking``, each with several seeds. A table shows it by kind of prompt.
3. Shapes and numbers, over the pictures of both: how many things are there in their kind and colour, and how many that
   were asked for once are not there twice.
4. The prompts of templates and blueprints, each with eight seeds: in how many pictures is all that they name?

``--sheet`` writes the first 24 pictures of captions and the first 24 of prompts, uncurated. ``--plain`` decodes without
a drafter: the pictures are the same, and a new target has no drafter yet.
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

from adt_core import Drafting, Sampling, load_drafter, load_target
from adt_core.app.checkpoints import BUNDLED_SAMPLING
from adt_core.app.images import to_uint8
from adt_core.app.jobs import decode, new_decoding
from adt_core.engine.job import Job
from adt_core.policies import PLAIN
from adt_core.policies.recipe import Recipe

from .asking import PROMPTS, TEMPLATES, Prompt
from .data import example
from .judging import Judged, asked_by_scene, judge, see

HELD_OUT_SEED, BATCH, ON_SHEET = 2, 8, 24
WHOLE_OF_EIGHT = 7
"""Of eight pictures of a template's prompt, so many must have all that it names."""
BARS = {"captions": 0.96, "ordinary prompts": 0.93, "kind and colour": 0.85, "not twice": 0.90}


def generate(job: Job, prompts: list[str], seeds: Sequence[int] | None = None) -> np.ndarray:
    """Pictures of ``prompts``, uint8 [n, H, W, 3].

    seeds: of each picture; unless given, every BATCH pictures have another one.
    """
    own = list(seeds or (job.recipe.sampling.seed + number // BATCH * BATCH for number in range(len(prompts))))
    images = []
    for part in (slice(start, start + BATCH) for start in range(0, len(prompts), BATCH)):
        decoding = decode(new_decoding(job, prompts[part], seeds=own[part]))
        with torch.inference_mode():
            images += map(to_uint8, job.pixels(decoding.grid_codes()))
    return np.stack(images)


def contact_sheet(images: np.ndarray, columns: int = 8, gap: int = 4) -> Image.Image:
    """Pictures side by side on white."""
    n, height, width, _ = images.shape
    rows = -(-n // columns)
    sheet = Image.new("RGB", (columns * (width + gap) - gap, rows * (height + gap) - gap), "white")
    for i, image in enumerate(images):
        sheet.paste(Image.fromarray(image), (i % columns * (width + gap), i // columns * (height + gap)))
    return sheet


def chosen_prompts(count: int) -> list[Prompt]:
    """``count`` of the ordinary prompts, from all kinds of them."""
    return [PROMPTS[i * len(PROMPTS) // count] for i in range(count)]


def tally(title: str, lines: Iterable[tuple[str, bool]]) -> None:
    """Print how many were found, by what stands first in each line."""
    found: dict[str, list[bool]] = defaultdict(list)
    for name, there in lines:
        found[name].append(there)
    print(title)
    for name, results in found.items():
        print(f"  {name:10}{sum(results):5} of {len(results):4}{sum(results) / len(results):9.1%}")


def kinds_of(judged: list[Judged]) -> Iterable[tuple[str, bool]]:
    """``thing``, ``sky`` ... of everything that was named."""
    return ((name.split(":")[0], there) for one in judged for name, there in sorted(one.named.items()))


def report_prompts(prompts: list[Prompt], judged: list[Judged], misses: bool) -> None:
    """The tables by kind of prompt and by what is named; with ``misses``, what each picture lacks."""
    by_group = ((p.group, there) for p, one in zip(prompts, judged) for there in one.named.values())
    tally(f"ordinary prompts, {len(prompts)} pictures, by kind of prompt", by_group)
    tally("ordinary prompts, by what is named", kinds_of(judged))
    for prompt, one in zip(prompts, judged):
        lacking = [name for name, there in one.named.items() if not there]
        if misses and lacking:
            print(f"  {prompt.text!r} lacks {', '.join(lacking)}")


def report_templates(job: Job) -> list[str]:
    """Print in how many of eight pictures is all that each prompt names; return what misses the bar."""
    wholes = []
    print("templates and blueprints, pictures with all that is named")
    for prompt in TEMPLATES:
        images = generate(job, [prompt.text] * BATCH, range(1, BATCH + 1))
        whole = sum(all(judge(see(image), prompt).named.values()) for image in images)
        print(f"  {whole} of {BATCH}  {prompt.text}")
        wholes.append(whole)
    return ["templates"] if min(wholes) < WHOLE_OF_EIGHT else []


def verdict(results: dict[str, list[bool]]) -> list[str]:
    """Print each share beside its bar; return those that miss theirs. What was not measured misses nothing."""
    missed = []
    for name, bar in BARS.items():
        if found := results[name]:
            share = sum(found) / len(found)
            print(f"{name}: {sum(found)} of {len(found)} ({share:.1%}; the bar is {bar:.0%})")
            missed += [name] if share < bar else []
    return missed


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="bundled", help="folder of a checkpoint; the bundled model if left out")
    parser.add_argument("--plain", action="store_true", help="decode without a drafter")
    parser.add_argument("--count", type=int, default=100, help="of held-out captions")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="of the ordinary prompts")
    parser.add_argument("--seeds", type=int, default=2, help="pictures of each ordinary prompt")
    parser.add_argument("--seed", type=int, default=1)
    for name, kind in (("guidance", float), ("temperature", float), ("top-k", int), ("top-p", float)):
        own = getattr(BUNDLED_SAMPLING, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=kind, default=own)
    parser.add_argument("--templates", action=argparse.BooleanOptionalAction, default=True, help="their prompts, too")
    parser.add_argument("--sheet", type=Path)
    parser.add_argument("--misses", action="store_true", help="say which prompts lack what")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    target = load_target(args.target)
    drafter = None if args.plain else load_drafter("bundled", target)
    sampling = Sampling(args.seed, args.temperature, args.top_k, args.top_p, args.guidance)
    job = Job(target, Recipe(sampling, Drafting("adt-tree" if drafter else PLAIN)), drafter)
    held_out = [example(HELD_OUT_SEED, i) for i in range(args.count)]
    prompts = chosen_prompts(args.prompts) * args.seeds
    texts = [caption for _, caption, _ in held_out] + [prompt.text for prompt in prompts]
    begin = time.perf_counter()
    images = generate(job, texts)
    print(f"{len(images)} pictures, {(time.perf_counter() - begin) / len(images):.2f} s each")
    of_captions, of_prompts = images[: args.count], images[args.count :]
    if args.sheet:
        contact_sheet(np.concatenate([of_captions[:ON_SHEET], of_prompts[:ON_SHEET]])).save(args.sheet, quality=92)
    captions = [judge(see(x), asked_by_scene(scene)) for x, (_, _, scene) in zip(of_captions, held_out)]
    ordinary = [judge(see(x), prompt) for x, prompt in zip(of_prompts, prompts)]
    tally(f"captions, {len(captions)} pictures, by what is named", kinds_of(captions))
    report_prompts(prompts, ordinary, args.misses)
    missed = verdict(
        {
            "captions": [there for one in captions for there in one.named.values()],
            "ordinary prompts": [there for one in ordinary for there in one.named.values()],
            "kind and colour": [there for one in captions + ordinary for there in one.shapes],
            "not twice": [there for one in captions + ordinary for there in one.once],
        }
    )
    missed += report_templates(job) if args.templates else []
    if missed:
        sys.exit("missed: " + ", ".join(missed))


if __name__ == "__main__":
    main()
