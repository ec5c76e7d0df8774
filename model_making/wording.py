"""Captions as people type them: the same scene in hundreds of wordings.

:func:`word` names some of what a scene shows, in some order: as a sentence, as a list, with articles or without, with
other names for the same thing, with leading phrases, and with words that mean nothing to the model between them. What
it leaves out is drawn freely.

    python -m model_making.wording --count 1500 --seed 7 > captions.txt

prints captions of such scenes as training draws. ``words.ini`` and the lists below are all that the model is taught to
understand. A word in none of them is :data:`UNKNOWN` to it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product

import numpy as np

from .asking import Prompt, Wanted
from .scenes import PLACES, WORDS, Item, Scene, describe, sample_wide_scene

UNKNOWN = "<unk>"

THING_NAMES, COLOUR_NAMES, GROUND_NAMES, SKY_NAMES, BACKDROP_NAMES, WALL_NAMES, TABLE_NAMES, PLACE_NAMES = (
    WORDS[table] for table in "things colours grounds skies backdrops walls table places".split()
)
_BESIDE = "and|with|next to|beside|near|by|in front of|behind|alongside|and also"
_BEFORE = "in|on|at|by|near|over|above|under|with|against|in front of|of|from|across|along"
_LEADS = (
    f"a {UNKNOWN} of|{UNKNOWN} of|there is|there are|{UNKNOWN}|an {UNKNOWN} of|{UNKNOWN} me|this is|{UNKNOWN} with|"
    f"{UNKNOWN} a {UNKNOWN} of|the {UNKNOWN} of|{UNKNOWN} {UNKNOWN} of|it is"
)
SINGULAR_ONLY = {"tree", "fruit"}  # trees are a forest, and fruits are in a bowl
_NOTHING_ALONE = (
    "and in of the with air background calm covered cream dark day distance full hot plain range rolling row setting "
    "toy weather white"
)
"""Words of names that ask for nothing by themselves."""
_FRAMING = "photo photograph picture image painting drawing illustration sketch scene view beautiful"
"""Words around a scene that the model passes over without harm, and that no remark lists."""


@dataclass(frozen=True)
class Said:
    """A word of a caption. of: the thing that it ends to name, with its colour only if that was said. asks: what a
    picture must show because of the name that ends here; what is around things as ``sky:night``."""

    word: str
    of: Item | None = None
    asks: tuple[Wanted | str, ...] = ()


def vocabulary() -> list[str]:
    """All words that captions are made of, in a fixed order; the unknown word comes first."""
    others = (*PLACE_NAMES.values(), _BESIDE, _BEFORE, _LEADS, "a an the one that is to of side")
    return [
        UNKNOWN,
        *sorted(_words_of([*naming_phrases(), *(phrase for names in others for phrase in _options(names))])),
    ]


def known_words() -> dict[str, list[str]]:
    """Return the words that the model is taught, in a fixed order.

    "things": nouns that name a thing ("boat" of "sailing boat", "bowl" of "bowl of fruit"). "scenery": words for what
    is around things. "others": colours, places, words between them, and words that ask for nothing.
    """
    things = {_noun(name) for name in _thing_names()} | {f"{noun}s" for noun in SINGULAR_ONLY}
    plain = {*_NOTHING_ALONE.split(), *_words_of(_names(COLOUR_NAMES))}
    scenery = _words_of(naming_phrases()) - things - plain
    others = {*vocabulary()[1:], *_FRAMING.split()} - things - scenery
    return {"things": sorted(things), "scenery": sorted(scenery), "others": sorted(others)}


def naming_phrases() -> list[str]:
    """All names of what a picture can show."""
    around = (COLOUR_NAMES, GROUND_NAMES, SKY_NAMES, BACKDROP_NAMES, WALL_NAMES, TABLE_NAMES)
    return [*_thing_names(), *(name for table in around for name in _names(table))]


def _thing_names() -> list[str]:
    singular = _names(THING_NAMES)
    return singular + [_plural(name) for name in singular]


def _names(table: dict[str, tuple[str, ...]]) -> list[str]:
    return [name for options in table.values() for name in options]


def _noun(name: str) -> str:
    """Return the word of a thing's name that says what it is: "vase" of "vase with flowers"."""
    words = re.split(" (?:of|with) ", name)[0].split()
    return words[-1]


def asked_by(caption: list[Said]) -> Prompt:
    """What a picture of a caption must show."""
    asked = [one for said in caption for one in said.asks]
    around = dict(one.split(":") for one in asked if isinstance(one, str))
    table = around.pop("table", None) is not None
    things = tuple(one for one in asked if isinstance(one, Wanted))
    text = " ".join(said.word for said in caption)
    return Prompt("wording", text, things, table=table, **{region: (name,) for region, name in around.items()})


def _words_of(phrases: list[str]) -> set[str]:
    return {word for phrase in phrases for word in phrase.split()} - {UNKNOWN}


def _options(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return names if isinstance(names, tuple) else tuple(names.split("|"))


def _pick(names: str | tuple[str, ...], rng: np.random.Generator) -> str:
    options = _options(names)
    return options[rng.integers(len(options))]


def _plural(name: str) -> str:
    first, *rest = name.split(" ")
    if rest and rest[0] in ("of", "with"):
        return " ".join([_plural(first), *rest])
    *before, noun = name.split(" ")
    if noun in SINGULAR_ONLY:
        return name
    noun = {"daisy": "daisies", "poppy": "poppies", "canoe": "canoes"}.get(noun, noun)
    return " ".join([*before, noun if noun.endswith("s") else noun + "s"])


def word(scene: Scene, rng: np.random.Generator) -> list[Said]:
    """Word a scene. A quarter of the captions are whole sentences of :func:`model_making.scenes.describe`."""
    if scene.items and rng.random() < 0.25:
        return _sentence(scene, rng)
    parts = _parts(scene, rng)
    shape = rng.random()
    if shape < 0.35:  # things first, then where they are
        said = _joined(parts[0], rng, _BESIDE) + _joined(parts[1], rng, "|||and|with")
    elif shape < 0.55:  # the surroundings first
        said = _joined(parts[1], rng, "||and") + _words(_pick("|with|with|,", rng)) + _joined(parts[0], rng, _BESIDE)
    else:  # a list in any order
        said = _joined(_mixed(*parts, rng), rng, "||||and|with")
    return _with_noise(said, rng)


def _sentence(scene: Scene, rng: np.random.Generator) -> list[Said]:
    """The caption of the grammar, marked behind each thing's place word: it names things in order, each with one."""
    items = iter(scene.items)
    places = {"left", "right", "middle", "center"}
    words = describe(scene, rng).lower().rstrip(".").split()
    said = [Said(text, next(items) if text in places else None) for text in words]
    around = [f"wall:{scene.wall}", "table:wooden"] if scene.indoors else [f"sky:{scene.sky}", f"ground:{scene.ground}"]
    if scene.backdrop != "none" and WORDS["before backdrops"][scene.backdrop][0] in " ".join(words):
        around.append(f"backdrop:{scene.backdrop}")
    things = (Wanted((item.kind,), item.colour, item.place) for item in scene.items)
    return [*said[:-1], replace(said[-1], asks=(*things, *around))]


def _words(phrase: str, of: Item | None = None, *asks: Wanted | str) -> list[Said]:
    """A phrase as words, the last of which ends to name ``of``, and ``asks``."""
    texts = phrase.replace(",", " ").split()
    said = [Said(text) for text in texts]
    return [*said[:-1], Said(texts[-1], of, asks)] if texts else []


def _parts(scene: Scene, rng: np.random.Generator) -> tuple[list[list[Said]], list[list[Said]]]:
    """What the caption names: things, and what is around them."""
    everything = rng.random() < 0.25
    chance = lambda share: everything or rng.random() < share  # noqa: E731
    items = [item for item in scene.items if chance(0.85)]
    if scene.indoors:
        around = [(f"wall:{scene.wall}", WALL_NAMES[scene.wall], 0.5), ("table:wooden", TABLE_NAMES["table"], 0.5)]
    else:
        around = [
            (f"ground:{scene.ground}", GROUND_NAMES[scene.ground], 0.55),
            (f"sky:{scene.sky}", SKY_NAMES[scene.sky], 0.5),
            (f"backdrop:{scene.backdrop}", BACKDROP_NAMES[scene.backdrop], 0.4 * (scene.backdrop != "none")),
        ]
        if everything:
            around = around[: 3 if scene.backdrop != "none" else 2]
    named = [(asked, names) for asked, names, share in around if chance(share) and names]
    if not items and not named:
        items, named = list(scene.items[:1]), [] if scene.items else [around[0][:2]]
    things = _things(items, rng)
    return things, [_around(*named[i], rng) for i in rng.permutation(len(named))]


def usual_places(said: Sequence[str | None]) -> list[str]:
    """Where up to three things stand, in the order in which they are named. None: the place is not said.

    One thing stands in the middle, two stand left and right, three fill the row from the left. So a caption always
    tells where its things are, and none is drawn twice or forgotten because it may yet come further right.
    """
    match said:
        case [None]:
            free = ["middle"]
        case [_, _]:
            free = ["left", "right"] if said == [None, None] else [p for p in ("right", "left") if p not in said]
        case _:
            free = [place for place in PLACES if place not in said]
    places = iter(free)
    return [place or next(places) for place in said]


def _things(items: list[Item], rng: np.random.Generator) -> list[list[Said]]:
    """Things in an order in which some of their places, mostly as many as can be, are left out."""
    if {item.place for item in items} == {"left", "right"} and rng.random() < 0.1:
        return _relative([items[i] for i in rng.permutation(2)], rng)
    ways = [
        (order, says)
        for order in permutations(items)
        for says in product((False, True), repeat=len(items))
        if usual_places([item.place if say else None for item, say in zip(order, says)]) == [i.place for i in order]
    ]
    fewest = min(sum(says) for _, says in ways)
    if rng.random() < 0.7:
        ways = [(order, says) for order, says in ways if sum(says) == fewest]
    order, says = ways[rng.integers(len(ways))]
    return [_thing(item, rng, say) for item, say in zip(order, says)]


def _mixed(things: list[list[Said]], around: list[list[Said]], rng: np.random.Generator) -> list[list[Said]]:
    """All parts in any order; the things stay in theirs."""
    rest = iter(things), iter(around)
    kinds = [0] * len(things) + [1] * len(around)
    return [next(rest[kinds[i]]) for i in rng.permutation(len(kinds))]


def _thing(item: Item, rng: np.random.Generator, says_place: bool) -> list[Said]:
    """A thing: its article and colour may be left out."""
    colour = item.colour if rng.random() < 0.85 else None
    known = Item(item.kind, colour, item.place)
    name = _pick(THING_NAMES[item.kind], rng)
    kinds = tuple(kind for kind, names in THING_NAMES.items() if name in names)
    if rng.random() < 0.05:
        name = _plural(name)
    spoken = _pick(COLOUR_NAMES[colour], rng) if colour else _pick(f"||{UNKNOWN}", rng)
    if not item.colour and rng.random() < 0.2:
        spoken = "green"  # as trees are
    noise = _pick(f"|||||{UNKNOWN}", rng)
    article = _pick("a|a|the||an|one", rng)
    place = _pick(PLACE_NAMES[item.place], rng) if says_place else ""
    asked = Wanted(kinds, colour, item.place if place else None)
    shape = rng.random()
    if shape < 0.04 and colour:
        said = [*_words(f"{article} {name} that is"), *_words(spoken, known, asked)]
    elif shape < 0.08 and colour:
        said = [*_words(f"{name}"), *_words(spoken, known, asked)]
    elif shape < 0.12 and place:
        return [*_words(f"{place} {article} {spoken}"), *_words(name, known, asked)]
    else:
        said = [*_words(f"{article} {noise} {spoken}"), *_words(name, known, asked)]
    return said + _words(place, known)


def _relative(items: list[Item], rng: np.random.Generator) -> list[list[Said]]:
    """Two things, one to a side of the other."""
    first, second = items
    side = "left" if PLACES[first.place] < PLACES[second.place] else "right"
    between = _pick(f"to the {side} of|{side} of|on the {side} of|on the {side} side of", rng)
    return [[*_thing(first, rng, False), *_words(between), *_thing(second, rng, False)]]


def _around(asked: str, names: tuple[str, ...], rng: np.random.Generator) -> list[Said]:
    """What is around the things, mostly with a preposition and an article."""
    before = _pick(_BEFORE, rng) if rng.random() < 0.6 else ""
    article, noise = _pick("a|the|a|an||", rng), _pick(f"||||||{UNKNOWN}", rng)
    return _words(f"{before} {article} {noise} {_pick(names, rng)}", None, asked)


def _joined(parts: list[list[Said]], rng: np.random.Generator, joints: str) -> list[Said]:
    said: list[Said] = []
    for part in parts:
        said += [*(_words(_pick(joints, rng)) if said else []), *part]
    return said


def _with_noise(said: list[Said], rng: np.random.Generator) -> list[Said]:
    """Leading phrases, and words that mean nothing between and behind."""
    if rng.random() < 0.3:
        said = _words(_pick(_LEADS, rng)) + said
    if rng.random() < 0.3:
        for _ in range(rng.integers(1, 4)):
            said.insert(rng.integers(len(said) + 1), Said(UNKNOWN))
    if rng.random() < 0.2:
        said = said + [Said(UNKNOWN)] * rng.integers(1, 7)
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    args = parser.parse_args()
    for rng in (np.random.default_rng([args.seed, i]) for i in range(args.count)):
        print(" ".join(said.word for said in word(sample_wide_scene(rng), rng)))


if __name__ == "__main__":
    main()
