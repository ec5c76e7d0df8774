"""Check that this checkout decodes the same tokens and drafts the same trees as another commit.

    git worktree add ../before COMMIT
    python -m benchmarks.identity ../before [--seeds 2] [--prompts 1] [--only adt-tree] [--keep 0.7]

Both checkouts run the same ``generate`` commands on the bundled model in float32 on the CPU. The commands cover every
method, drafter and decoding option. The benchmark compares the files that ``generate`` writes with ``--tokens`` and
``--trace``. They contain the tokens and, for every round, the number of drafter forwards, the tree sizes and the
accepted drafts.

Equal tokens are weak evidence, because a lossless method corrects every wrong draft. The benchmark therefore also
compares the rounds, except for ``auto``, whose trees depend on measured times.

The benchmark prints a line per run. The exit code is 1 if any run differs. All runs take about 15 minutes on two cores.
With ``--keep 0.7``, they take 6 minutes, because only the last 30 % of the rows of each image are decoded. Both
checkouts must accept the same options of ``generate``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from .checkouts import Checkout
from .harness import ROOT, captions

FIRST_CAPTION = 4300  # number of the first held-out caption of this benchmark
BATCHED_PROMPTS = 4  # number of prompts in runs with ``--batch-size``, which decode several images at the same time
IMAGE = ROOT / "docs" / "assets" / "icon.png"
FIELDS = tuple("image position depth_asked width_asked depth width drafts accepted ranks substituted".split())
"""Keys of the trace. Their values are compared for each image of each round."""

CHAIN = "--method eagle2 --depth 16 --width 1 --drafts 16"
PRUNED = "--depth 6 --width 3 --drafts 10 --expand-above 0.3 --keep-above 0.05"
WINDOW = "--drafter jacobi"
MERGED = "--drafter bundled+jacobi"
ADT_TREE = "--method adt-tree"
FIXED = "--method eagle2"
DELTA = "--lantern-delta 0.1"
FACTOR = "--lantern-factor 2 --lantern-k 50"
RUNS = {
    "plain": "--method no-drafting",
    "plain, several at once": "--method no-drafting --batch-size 3",
    "plain, temperature 0": "--method no-drafting --temperature 0",
    "eagle2": "--method eagle2",
    "eagle2, large tree": "--method eagle2 --depth 5 --width 8 --drafts 40",
    "eagle2, top-k": "--method eagle2 --depth 4 --width 3 --drafts 10 --proposal top-k",
    "eagle2, pruned": f"--method eagle2 {PRUNED}",
    "eagle2, temperature 0": "--method eagle2 --temperature 0",
    "eagle2, LANTERN delta": f"--method eagle2 {DELTA}",
    "eagle2, LANTERN lambda": f"--method eagle2 {FACTOR}",
    "eagle2, several at once": "--method eagle2 --batch-size 3",
    "adt-tree": ADT_TREE,
    "adt-tree, vertical": f"{ADT_TREE} --init vertical --wrap vertical",
    "adt-tree, random": f"{ADT_TREE} --init random",
    "adt-tree, reset": f"{ADT_TREE} --wrap reset --beta 0.3 --depth-step 2 --depth-max 8 --width-max 4 --drafts 16",
    "adt-tree, top-k": f"{ADT_TREE} --proposal top-k",
    "adt-tree, pruned": f"{ADT_TREE} {PRUNED} --depth-max 8",
    "adt-tree, LANTERN delta": f"{ADT_TREE} {DELTA}",
    "adt-tree, LANTERN lambda": f"{ADT_TREE} {FACTOR} --max-substitution 0.1",
    "adt-tree, several at once": f"{ADT_TREE} --batch-size 3",
    "adt-tree, two of a prompt": f"{ADT_TREE} --num-images-per-prompt 2",
    "adt-tree, continued": f"{ADT_TREE} --continue-from {IMAGE} --keep 0.4 --keep-left 0.3",
    "adt-tree, no guidance": f"{ADT_TREE} --guidance-scale 1 --top-p 0.9",
    "static:mc_sim_7b_63": "--method static:mc_sim_7b_63",
    "static:naive_extend_57": "--method static:naive_extend_57",
    "static:naive_extend_57, top-k": "--method static:naive_extend_57 --proposal top-k --top-k 200",
    "jacobi": f"{WINDOW} {FIXED}",
    "jacobi, chain": f"{WINDOW} {CHAIN}",
    "jacobi, adt-tree": f"{WINDOW} --method adt-tree",
    "jacobi, top-k": f"{WINDOW} {FIXED} --proposal top-k",
    "jacobi, LANTERN delta": f"{WINDOW} {FIXED} {DELTA}",
    "jacobi, LANTERN lambda": f"{WINDOW} {FIXED} {FACTOR}",
    "jacobi, several at once": f"{WINDOW} {FIXED} --batch-size 3",
    "jacobi, continued": f"{WINDOW} {FIXED} --continue-from {IMAGE} --keep 0.5",
    "jacobi, temperature 0": f"{WINDOW} {FIXED} --temperature 0",
    "bundled+jacobi": f"{MERGED} {FIXED}",
    "bundled+jacobi, adt-tree": f"{MERGED} --method adt-tree",
    "bundled+jacobi, LANTERN delta": f"{MERGED} {FIXED} {DELTA}",
    "bundled+jacobi, several at once": f"{MERGED} {FIXED} --batch-size 3",
    "bundled+jacobi, no guidance": f"{MERGED} {FIXED} --guidance-scale 1",
    "auto": "--method auto",
    "auto, jacobi": f"{WINDOW} --method auto",
}
"""Options of ``generate`` for each run, by the name of the run."""


class Output(NamedTuple):
    """Tokens and rounds of one run. A round has the number of drafter forwards, and the values of `FIELDS` by image."""

    tokens: list  # codebook indices: tokens[image][row][column]
    rounds: list[list]  # for each prompt

    @property
    def accepted(self) -> int:
        """Number of accepted drafts in all rounds."""
        column = FIELDS.index("accepted")
        return sum(image[column] for rounds in self.rounds for _, images in rounds for image in images)


def generate(checkout: Checkout, options: list[str], prompts: list[str], folder: Path) -> Output:
    """Run ``generate`` in a checkout, and read the tokens and the trace from the files that it writes.

    Raises:
        SystemExit: If the command fails.
    """
    names = {"prompts": "prompts.txt", "output": "pictures", "tokens": "tokens.jsonl", "trace": "trace.jsonl"}
    files = {option: folder / name for option, name in names.items()}
    files["prompts"].write_text("\n".join(prompts) + "\n", encoding="utf-8")
    file_options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    checkout.run(["generate", *file_options, "--device", "cpu", "--dtype", "float32", "--same-noise", *options])
    tokens = _images(files["tokens"], "tokens")
    rounds = _images(files["trace"], "rounds")
    return Output(tokens, [[_compared(round) for round in image] for image in rounds])


def _images(path: Path, name: str) -> list:
    """Return the entry with this name of each image, which has a line of JSON."""
    return [json.loads(line)[name] for line in path.read_text(encoding="utf-8").splitlines()]


def _compared(round: dict) -> list:
    return [round["drafter_forwards"], [[image[name] for name in FIELDS] for image in round["images"]]]


def difference(before: Output, now: Output, compare_rounds: bool) -> str:
    """Describe the first difference between the outputs of two checkouts.

    Returns:
        The description, or "" if the outputs are equal.
    """
    if before.tokens != now.tokens:
        images = [i for i, (a, b) in enumerate(zip(before.tokens, now.tokens)) if a != b]
        return f"TOKENS DIFFER in the images {images} of {len(before.tokens)}, now {len(now.tokens)}"
    if not compare_rounds:
        return ""
    for prompt, (old, new) in enumerate(zip(before.rounds, now.rounds)):
        for number, (one, other) in enumerate(zip(old, new)):
            if one != other:
                fields = f"drafter forwards and each image's {', '.join(FIELDS)}"
                return f"ROUNDS DIFFER at prompt {prompt}, round {number}: {fields} were {one}, are {other}"
        if len(old) != len(new):
            return f"ROUNDS DIFFER at prompt {prompt}: there were {len(old)}, there are {len(new)}"
    return ""


def _options(name: str, seed: int, keep: float | None) -> list[str]:
    options = [*RUNS[name].split(), "--seed", str(seed)]
    if keep is not None and "--continue-from" not in options:
        options += ["--continue-from", str(IMAGE), "--keep", str(keep)]
    return options


def main() -> None:
    """Run the command line of this benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout of another commit")
    parser.add_argument("--seeds", type=int, default=2)
    batched = f"prompts per run; runs with --batch-size use {BATCHED_PROMPTS}"
    parser.add_argument("--prompts", type=int, default=1, help=batched)
    parser.add_argument("--only", default="", help="run only the runs whose name contains this text")
    parser.add_argument("--keep", type=float, help="share of the rows of every image that is given, to save time")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    runs = [(name, seed) for name in RUNS if args.only in name for seed in range(1, args.seeds + 1)]
    different = 0
    with (
        Checkout(args.before, args.threads) as before,
        Checkout(ROOT, args.threads) as now,
        tempfile.TemporaryDirectory() as folder,
    ):
        for name, seed in runs:
            options = _options(name, seed, args.keep)
            prompts = captions(FIRST_CAPTION, BATCHED_PROMPTS if "--batch-size" in options else args.prompts)
            old, new = (
                generate(checkout, options, prompts, Path(tempfile.mkdtemp(dir=folder))) for checkout in (before, now)
            )
            found = difference(old, new, compare_rounds="auto" not in options)
            different += bool(found)
            rounds = sum(map(len, new.rounds))
            equal = f"equal ({rounds} rounds, {new.accepted} accepted drafts)"
            print(f"{name}, seed {seed}: {found or equal}", flush=True)
    print(f"{len(runs) - different} of {len(runs)} runs are equal" + ("; FAILED" if different else ""))
    sys.exit(1 if different or not runs else 0)


if __name__ == "__main__":
    main()
