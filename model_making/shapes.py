"""Does the check see what is in a picture? What is seen by name, and a measure of the check itself.

    python -m model_making.shapes [--count 300] [--seed 11]

:func:`names_in` tells the things of a picture (``model_making.finding``) and what is around them
(``model_making.surroundings``). The command measures it on the generator's own pictures, on the same after the codec,
and on scenes that were dealt to the wrong pictures. The last should fall to chance: the share of other scenes that
hold the same. A thing counts as told right when kind, colour and place are, and no other of its kind is seen.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict

import numpy as np
import torch

from adt_core import load_target
from adt_core.app.images import to_uint8
from adt_core.models.vq import VQModel

from .finding import find
from .render import render
from .scenes import Scene, sample_wide_scene
from .surroundings import names_of, surroundings

BARS = {"own": 0.97, "codec": 0.97, "above chance": 0.03}
_ROWS = ("thing", "plant", "picture", "sky", "ground", "backdrop", "wall", "table")


def _thing(kind: str, colour: str | None, place: str) -> str:
    return f"thing:{colour} {kind} {place}" if colour else f"plant:{kind} {place}"


def names_in(image: np.ndarray) -> set[str]:
    """What a picture (uint8 [128, 128, 3]) shows: ``thing:red house left``, ``plant:pine right``, ``sky:night`` ...

    A kind that is seen twice is left out: it was asked for once.
    """
    found = find(image)
    count = Counter(thing.kind for thing in found)
    once = {_thing(t.kind, t.colour, t.place) for t in found if count[t.kind] == 1}
    return once | surroundings(image, found) | {f"picture:{len(found)} things"}


def stated(scene: Scene) -> set[str]:
    """The same of a scene."""
    things = {_thing(item.kind, item.colour, item.place) for item in scene.items}
    return things | names_of(scene) | {f"picture:{len(scene.items)} things"}


@torch.inference_mode()
def through_codec(codec: VQModel, images: np.ndarray) -> np.ndarray:
    """Pictures (uint8 [n, 128, 128, 3]) as the codec gives them back."""
    pixels = codec.decode(codec.encode(torch.from_numpy(images).permute(0, 3, 1, 2) / 127.5 - 1))
    return np.stack(list(map(to_uint8, pixels)))


def measure(codec: VQModel, count: int, seed: int, shuffles: int = 4) -> dict[str, dict[str, float]]:
    """By kind of name: n, and the share that is seen in own, coded and shuffled pictures, beside chance."""
    scenes, own, coded = [], [], []
    for i in range(count):
        rng = np.random.default_rng([seed, i])
        scenes.append(sample_wide_scene(rng))
        image = np.array(render(scenes[-1], rng))
        own.append(names_in(image))
        coded.append(names_in(through_codec(codec, image[None])[0]))
    wanted = [stated(scene) for scene in scenes]
    share = Counter(name for names in wanted for name in names)
    tally: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    rng = np.random.default_rng([seed, count])
    for i, names in enumerate(wanted):
        others = [own[j] for j in (i + rng.choice(np.arange(1, count), min(shuffles, count - 1), False)) % count]
        for name in names:
            row = tally[name.split(":")[0]]
            row["own"].append(name in own[i])
            row["codec"].append(name in coded[i])
            row["shuffled"] += [name in other for other in others]
            row["chance"].append((share[name] - 1) / (count - 1))
    return {
        kind: {"n": len(tally[kind]["own"]), **{column: float(np.mean(v)) for column, v in tally[kind].items()}}
        for kind in _ROWS
        if kind in tally
    }


def missed(rates: dict[str, float]) -> list[str]:
    """The bars that a row of :func:`measure` misses."""
    rates = rates | {"above chance": rates["shuffled"] - rates["chance"]}
    return [bar for bar, at in BARS.items() if (rates[bar] > at if bar == "above chance" else rates[bar] < at)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()
    columns = ["own", "codec", "shuffled", "chance"]
    table = measure(load_target().codec, args.count, args.seed)
    print(f"{'kind':10}{'n':>6}" + "".join(f"{column:>10}" for column in columns))
    for kind, rates in table.items():
        print(f"{kind:10}{rates['n']:6}" + "".join(f"{rates[column]:10.1%}" for column in columns))
    image = np.array(render(sample_wide_scene(np.random.default_rng(args.seed)), np.random.default_rng(args.seed)))
    begin = time.perf_counter()
    for _ in range(10):
        names_in(image)
    print(f"{(time.perf_counter() - begin) / 10:.3f} s a picture on {torch.get_num_threads()} threads")
    misses = [f"{bar} of {kind}s" for kind in ("thing", "plant") if kind in table for bar in missed(table[kind])]
    if misses:
        sys.exit("misses: " + ", ".join(misses))


if __name__ == "__main__":
    main()
