"""Does this checkout draw what another one draws: the same tokens, from the same draft trees?

    git worktree add ../before COMMIT
    python -m benchmarks.identity ../before [--seeds 2] [--prompts 1] [--only adt-tree] [--keep 0.7]

Both checkouts run the same ``generate`` commands on the bundled model in float32 on the CPU: all methods, drafters and
ways to decode. The tokens are compared, and of every round the trees, the accepted drafts and the drafter's forwards.
Tokens alone prove little: a lossless method writes the right ones whatever its drafter does. ``auto`` follows the
clock, so only its tokens are compared. Prints a line per run; the exit code is 1 if anything differs.
All runs take about 15 minutes; with ``--keep 0.7``, where most of every image is given, about 6.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from .checkouts import HERE, Checkout
from .harness import captions

FIRST = 4300  # held-out caption of this benchmark
MANY = 4
"""Prompts of the runs that decode several images at once."""
PICTURE = HERE / "assets" / "icon.png"
FIELDS = tuple("image position depth_asked width_asked depth width nodes accepted ranks substituted".split())
"""What is compared of an image's share of a round."""

CHAIN = "--method eagle2 --depth 16 --width 1 --nodes 16"
PRUNED = "--depth 6 --width 3 --nodes 10 --expand-above 0.3 --keep-above 0.05"
WINDOW = "--drafter jacobi"
BOTH = "--drafter bundled+jacobi"
ADT_TREE = "--method adt-tree"
FIXED = "--method eagle2"
DELTA = "--lantern-delta 0.1"
FACTOR = "--lantern-lambda 2 --lantern-k 50"
RUNS = {
    "plain": "--method autoregressive",
    "plain, several at once": "--method autoregressive --at-once 3",
    "plain, temperature 0": "--method autoregressive --temperature 0",
    "eagle2": "--method eagle2",
    "eagle2, large tree": "--method eagle2 --depth 5 --width 8 --nodes 40",
    "eagle2, top-k": "--method eagle2 --depth 4 --width 3 --nodes 10 --proposal top-k",
    "eagle2, pruned": f"--method eagle2 {PRUNED}",
    "eagle2, temperature 0": "--method eagle2 --temperature 0",
    "eagle2, LANTERN delta": f"--method eagle2 {DELTA}",
    "eagle2, LANTERN lambda": f"--method eagle2 {FACTOR}",
    "eagle2, several at once": "--method eagle2 --at-once 3",
    "adt-tree": ADT_TREE,
    "adt-tree, vertical": f"{ADT_TREE} --init vertical --wrap vertical",
    "adt-tree, random": f"{ADT_TREE} --init random",
    "adt-tree, reset": f"{ADT_TREE} --wrap reset --beta 0.3 --depth-step 2 --depth-max 8 --width-max 4 --nodes 16",
    "adt-tree, top-k": f"{ADT_TREE} --proposal top-k",
    "adt-tree, pruned": f"{ADT_TREE} {PRUNED} --depth-max 8",
    "adt-tree, LANTERN delta": f"{ADT_TREE} {DELTA}",
    "adt-tree, LANTERN lambda": f"{ADT_TREE} {FACTOR} --max-substitution 0.1",
    "adt-tree, several at once": f"{ADT_TREE} --at-once 3",
    "adt-tree, two of a prompt": f"{ADT_TREE} --batch-size 2",
    "adt-tree, continued": f"{ADT_TREE} --continue-from {PICTURE} --keep 0.4 --keep-left 0.3",
    "adt-tree, no guidance": f"{ADT_TREE} --cfg 1 --top-p 0.9",
    "static:mc_sim_7b_63": "--method static:mc_sim_7b_63",
    "static:naive_extend_57": "--method static:naive_extend_57",
    "static:naive_extend_57, top-k": "--method static:naive_extend_57 --proposal top-k --top-k 200",
    "jacobi": f"{WINDOW} {FIXED}",
    "jacobi, chain": f"{WINDOW} {CHAIN}",
    "jacobi, adt-tree": f"{WINDOW} --method adt-tree",
    "jacobi, top-k": f"{WINDOW} {FIXED} --proposal top-k",
    "jacobi, LANTERN delta": f"{WINDOW} {FIXED} {DELTA}",
    "jacobi, LANTERN lambda": f"{WINDOW} {FIXED} {FACTOR}",
    "jacobi, several at once": f"{WINDOW} {FIXED} --at-once 3",
    "jacobi, continued": f"{WINDOW} {FIXED} --continue-from {PICTURE} --keep 0.5",
    "jacobi, temperature 0": f"{WINDOW} {FIXED} --temperature 0",
    "bundled+jacobi": f"{BOTH} {FIXED}",
    "bundled+jacobi, adt-tree": f"{BOTH} --method adt-tree",
    "bundled+jacobi, LANTERN delta": f"{BOTH} {FIXED} {DELTA}",
    "bundled+jacobi, several at once": f"{BOTH} {FIXED} --at-once 3",
    "bundled+jacobi, no guidance": f"{BOTH} {FIXED} --cfg 1",
    "auto": "--method auto",
    "auto, jacobi": f"{WINDOW} --method auto",
}
"""Options of ``generate`` for each run."""


class Drawn(NamedTuple):
    """tokens: codes by image, row, column. rounds: by prompt and round, drafter's forwards and every image's FIELDS."""

    tokens: list
    rounds: list[list]

    @property
    def accepted(self) -> int:
        """Accepted drafts of all rounds."""
        at = FIELDS.index("accepted")
        return sum(share[at] for rounds in self.rounds for _, shares in rounds for share in shares)


def draw(checkout: Checkout, options: list[str], prompts: list[str], folder: Path) -> Drawn:
    """What ``generate`` writes with these options. Exits where the command fails."""
    file, tokens, trace = folder / "prompts.txt", folder / "tokens.json", folder / "trace.json"
    file.write_text("\n".join(prompts) + "\n", encoding="utf-8")
    files = {"prompts": file, "output": folder / "picture.png", "tokens": tokens, "trace": trace}
    arguments = ["generate", *(word for name, path in files.items() for word in (f"--{name}", str(path)))]
    code, said = checkout.run([*arguments, "--device", "cpu", "--dtype", "float32", *options])
    if code:
        sys.exit(f"generate {' '.join(options)} ended with {code}: {said.strip().splitlines()[-1]}")
    decodings = json.loads(trace.read_text(encoding="utf-8"))["decodings"]

    def compared(round: dict) -> list:
        return [round["drafter_forwards"], [[share[name] for name in FIELDS] for share in round["images"]]]

    rounds = [[compared(round) for round in decoding["rounds"]] for decoding in decodings]
    return Drawn(json.loads(tokens.read_text(encoding="utf-8"))["tokens"], rounds)


def difference(before: Drawn, now: Drawn, rounds_too: bool) -> str:
    """The first difference in words; empty if there is none. rounds_too: compare the rounds as well."""
    if before.tokens != now.tokens:
        images = [i for i, (a, b) in enumerate(zip(before.tokens, now.tokens)) if a != b]
        return f"TOKENS DIFFER in the images {images} of {len(before.tokens)}, now {len(now.tokens)}"
    if not rounds_too:
        return ""
    for prompt, (old, new) in enumerate(zip(before.rounds, now.rounds)):
        for number, (one, other) in enumerate(zip(old, new)):
            if one != other:
                what = f"drafter forwards and each image's {', '.join(FIELDS)}"
                return f"ROUNDS DIFFER at prompt {prompt}, round {number}: {what} were {one}, are {other}"
        if len(old) != len(new):
            return f"ROUNDS DIFFER at prompt {prompt}: there were {len(old)}, there are {len(new)}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout of another commit")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=1, help=f"of each run but those at once, which have {MANY}")
    parser.add_argument("--only", default="", help="runs whose name holds this")
    parser.add_argument("--keep", type=float, help="share of every image's rows that is given, to be done sooner")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    different = 0
    chosen = [(name, seed) for name in RUNS if args.only in name for seed in range(1, args.seeds + 1)]
    with (
        Checkout(args.before, args.threads) as before,
        Checkout(HERE, args.threads) as now,
        tempfile.TemporaryDirectory() as folder,
    ):
        for name, seed in chosen:
            options = [*RUNS[name].split(), "--seed", str(seed)]
            if args.keep is not None and "--continue-from" not in options:
                options += ["--continue-from", str(PICTURE), "--keep", str(args.keep)]
            prompts = captions(FIRST, MANY if "--at-once" in options else args.prompts)
            old, new = (draw(checkout, options, prompts, Path(folder)) for checkout in (before, now))
            found = difference(old, new, rounds_too="auto" not in options)
            different += bool(found)
            rounds = sum(map(len, new.rounds))
            equal = f"equal ({rounds} rounds, {new.accepted} accepted drafts)"
            print(f"{name}, seed {seed}: {found or equal}", flush=True)
    print(f"{len(chosen) - different} of {len(chosen)} runs are equal" + ("; FAILED" if different else ""))
    sys.exit(1 if different or not chosen else 0)


if __name__ == "__main__":
    main()
