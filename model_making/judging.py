"""What of a prompt is in a picture: its things by their shapes, and what is around them. No network is involved, so the
answer can't drift with the model that it judges.

    python -m model_making.judging [--count 300] [--seed 11]

measures the judge itself: on the generator's own pictures, on the same after the codec, and on pictures of other
scenes. The last should fall to chance: the share of other scenes that hold the same.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
import torch

from adt_core import load_target
from adt_core.app.images import to_uint8
from adt_core.models.vq import VQModel

from .asking import Prompt, Wanted
from .finding import Found, find
from .render import render
from .scenes import Scene, sample_wide_scene
from .surroundings import surroundings

REGIONS = ("sky", "ground", "backdrop", "wall")
BARS = {"own": 0.97, "codec": 0.97, "above chance": 0.03}
SHUFFLES = 4  # other pictures that each scene is held against


@dataclass(frozen=True)
class Seen:
    """What a picture shows: things, and what is around them as ``sky:night``."""

    things: list[Found]
    around: set[str]


@dataclass(frozen=True)
class Judged:
    """What was looked for in one picture, each with whether it is there.

    named: what the prompt names, in words. shapes: each thing by kind and colour, at any place. once: each thing, and
    whether the picture is free of a second one of its kind; only things whose kind is asked for once.
    """

    named: dict[str, bool]
    shapes: list[bool]
    once: list[bool]


def see(image: np.ndarray) -> Seen:
    """Look at a picture (uint8 [128, 128, 3])."""
    things = find(image)
    return Seen(things, surroundings(image, things))


def asked_by_scene(scene: Scene, backdrop: bool = False) -> Prompt:
    """What a caption of the grammar asks for. It names the backdrop in three cases out of four only."""
    things = tuple(Wanted((item.kind,), item.colour, item.place) for item in scene.items)
    if scene.indoors:
        return Prompt("", "", things, wall=(scene.wall,), table=True)
    behind = (scene.backdrop,) if backdrop else ()
    return Prompt("", "", things, sky=(scene.sky,), ground=(scene.ground,), backdrop=behind)


def _fits(thing: Found, wanted: Wanted, at_place: bool) -> bool:
    return (
        thing.kind in wanted.kinds
        and wanted.colour in (None, thing.colour)
        and (not at_place or wanted.place in (None, thing.place))
    )


def _matched(found: list[Found], things: tuple[Wanted, ...], at_place: bool) -> list[bool]:
    """Whether each thing is there. One that was found stands for one that is wanted."""
    left, there = list(found), []
    for wanted in things:
        match = next((thing for thing in left if _fits(thing, wanted, at_place)), None)
        there.append(match is not None)
        if match:
            left.remove(match)
    return there


def judge(seen: Seen, prompt: Prompt) -> Judged:
    """What a picture shows of what a prompt asks for."""
    words = [" ".join(filter(None, (t.colour, "/".join(t.kinds), t.place))) for t in prompt.things]
    there = _matched(seen.things, prompt.things, at_place=True)
    named = dict(zip((f"thing:{word}" for word in words), there, strict=True))
    for region in REGIONS:
        if which := getattr(prompt, region):
            named[f"{region}:{'/'.join(which)}"] = any(f"{region}:{name}" in seen.around for name in which)
    if prompt.table:
        named["table:wooden"] = "table:wooden" in seen.around
    once = [
        sum(thing.kind in wanted.kinds for thing in seen.things) < 2
        for wanted in prompt.things
        if sum(bool(set(wanted.kinds) & set(other.kinds)) for other in prompt.things) == 1
    ]
    return Judged(named, _matched(seen.things, prompt.things, at_place=False), once)


@torch.inference_mode()
def through_codec(codec: VQModel, images: np.ndarray) -> np.ndarray:
    """Pictures (uint8 [n, 128, 128, 3]) as the codec gives them back."""
    pixels = codec.decode(codec.encode(torch.from_numpy(images).permute(0, 3, 1, 2) / 127.5 - 1))
    return np.stack(list(map(to_uint8, pixels)))


def measure(codec: VQModel, count: int, seed: int) -> dict[str, dict[str, float]]:
    """By kind of name: n, and the share that is seen in own, coded and shuffled pictures, beside chance."""
    prompts, own, coded = [], [], []
    for i in range(count):
        rng = np.random.default_rng([seed, i])
        scene = sample_wide_scene(rng)
        image = np.array(render(scene, rng))
        prompts.append(asked_by_scene(scene, backdrop=True))
        own.append(see(image))
        coded.append(see(through_codec(codec, image[None])[0]))
    stated = [judge(seen, prompt).named for seen, prompt in zip(own, prompts)]
    share = Counter(name for named in stated for name in named)
    tally: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    rng = np.random.default_rng([seed, count])
    for i, prompt in enumerate(prompts):
        others = (i + rng.choice(np.arange(1, count), min(SHUFFLES, count - 1), False)) % count
        runs = [("own", own[i]), ("codec", coded[i]), *(("shuffled", own[j]) for j in others)]
        for column, seen in runs:
            for name, there in judge(seen, prompt).named.items():
                tally[name.split(":")[0]][column].append(there)
        for name in stated[i]:
            tally[name.split(":")[0]]["chance"].append((share[name] - 1) / (count - 1))
    return {
        kind: {"n": len(tally[kind]["own"]), **{column: float(np.mean(v)) for column, v in tally[kind].items()}}
        for kind in ("thing", *REGIONS, "table")
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
    if misses := missed(table["thing"]):
        sys.exit("misses: " + ", ".join(misses))


if __name__ == "__main__":
    main()
