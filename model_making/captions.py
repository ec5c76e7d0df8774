"""Training captions in the style of user prompts, with hundreds of wordings for each scene.

:func:`write_caption` names some of the objects and background parts of a scene, in random order. The caption is a
sentence or a list. It may have articles, synonyms, lead-in phrases such as "there is", and unknown words. The model
chooses everything that the caption doesn't name.

    python -m model_making.captions --count 1500 --seed 7 > captions.txt

prints captions of scenes that are sampled like the training data. ``words.ini`` and the constants below contain the
complete vocabulary of the model. Every other word becomes :data:`UNKNOWN`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product

import numpy as np

from .prompts import ObjectSpec
from .scenes import PLACES, WORDS, Scene, SceneItem, describe, sample_wide_scene

UNKNOWN = "<unk>"

OBJECT_NAMES = WORDS["objects"]
COLOUR_NAMES = WORDS["colours"]
GROUND_NAMES = WORDS["grounds"]
SKY_NAMES = WORDS["skies"]
BACKDROP_NAMES = WORDS["backdrops"]
WALL_NAMES = WORDS["walls"]
TABLE_NAMES = WORDS["table"]
PLACE_NAMES = WORDS["places"]
# In the strings below "|" separates alternatives, of which one is sampled uniformly. "a|a|the|" is "a" with probability
# 1/2, "the" with 1/4, and nothing with 1/4.
_OBJECT_CONNECTIVES = "and|with|next to|beside|near|by|in front of|behind|alongside|and also"
_BACKGROUND_PREPOSITIONS = "in|on|at|by|near|over|above|under|with|against|in front of|of|from|across|along"
_LEAD_INS = (
    f"a {UNKNOWN} of|{UNKNOWN} of|there is|there are|{UNKNOWN}|an {UNKNOWN} of|{UNKNOWN} me|this is|{UNKNOWN} with|"
    f"{UNKNOWN} a {UNKNOWN} of|the {UNKNOWN} of|{UNKNOWN} {UNKNOWN} of|it is"
)
SINGULAR_ONLY = {"tree", "fruit"}
"""Nouns of which captions use no plural: "trees" means the forest, and "fruits" means the bowl."""
_NEUTRAL = (
    "and in of the with air background calm covered cream dark day distance full hot plain range rolling row setting "
    "toy weather white"
)
"""Words of names that identify no object or background by themselves, for example "of" in "cup of coffee"."""
_SILENT = (
    "photo photograph picture image painting drawing illustration sketch scene view beautiful portrait art "
    "artwork style some any my your his her its our their you we he she they which who where while as if so too "
    "very really quite just only please could would can show make create generate draw paint give want let us "
    "into onto through between among around below beneath beyond towards up down out off away here then but or "
    "not no without inside outside top bottom corner foreground close each other both stands stand standing lies "
    "lie lying sits sit sitting floats float floating flies fly flying parked hangs hanging rests resting goes go "
    "going rises rising sets shines shining glows glowing surrounded filled placed has have having was were be "
    "been being riding holding wearing small big large little tiny huge giant tall short old new young ancient "
    "modern lovely pretty cozy cosy nice cute lonely empty quiet peaceful bright warm light soft colorful "
    "colourful vibrant vivid potted leafy single lone classic vintage traditional typical simple masterpiece "
    "detailed highly ultra hyper realistic photorealistic quality best high resolution hd cinematic lighting "
    "professional stunning amazing digital render sharp focus"
)
"""Words outside the vocabulary that are common in prompts and name nothing visible. The node doesn't report them."""


@dataclass(frozen=True)
class CaptionWord:
    """Word of a caption.

    Attributes:
        text: The word.
        item: Object whose name or place ends with this word, else None. If the caption doesn't name the colour of the
            object, the colour of `item` is None.
        expected: Contents that the image must show because of the name that ends with this word. An object is given as
            an `ObjectSpec`, a part of the background as a label such as ``sky:night``.
    """

    text: str
    item: SceneItem | None = None
    expected: tuple[ObjectSpec | str, ...] = ()


# ---- vocabulary --------------------------------------------------------------------------------------


def vocabulary() -> list[str]:
    """Return all words of the captions. The first is the unknown word; the others are in alphabetical order."""
    function_words = (*PLACE_NAMES.values(), _OBJECT_CONNECTIVES, _BACKGROUND_PREPOSITIONS, _LEAD_INS)
    phrases = [phrase for names in function_words for phrase in _options(names)]
    return [UNKNOWN, *sorted(_words_of([*naming_phrases(), *phrases, "a an the one that is to of side"]))]


def known_words() -> dict[str, list[str]]:
    """Return the vocabulary in three groups, each in alphabetical order.

    Returns:
        "things": Nouns of objects, for example "boat" from "sailing boat" and "bowl" from "bowl of fruit".
        "scenery": Words for the background.
        "others": Colours, places, function words and neutral words.
    """
    objects = {_noun(name) for name in _object_names()} | {f"{noun}s" for noun in SINGULAR_ONLY}
    plain = {*_NEUTRAL.split(), *_words_of(_names(COLOUR_NAMES))}
    scenery = _words_of(naming_phrases()) - objects - plain
    others = {*vocabulary()[1:], *_SILENT.split()} - objects - scenery
    return {"things": sorted(objects), "scenery": sorted(scenery), "others": sorted(others)}


def naming_phrases() -> list[str]:
    """Return all names of objects, colours and backgrounds."""
    tables = (COLOUR_NAMES, GROUND_NAMES, SKY_NAMES, BACKDROP_NAMES, WALL_NAMES, TABLE_NAMES)
    return [*_object_names(), *(name for table in tables for name in _names(table))]


def _object_names() -> list[str]:
    singular = _names(OBJECT_NAMES)
    return singular + [_plural(name) for name in singular]


def _names(table: dict[str, tuple[str, ...]]) -> list[str]:
    return [name for options in table.values() for name in options]


def _noun(name: str) -> str:
    """Return the head noun of an object's name, for example "vase" from "vase with flowers"."""
    words = re.split(" (?:of|with) ", name)[0].split()
    return words[-1]


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


# ---- captions ----------------------------------------------------------------------------------------


def write_caption(scene: Scene, rng: np.random.Generator) -> list[CaptionWord]:
    """Return a caption of a scene. One of four captions is a sentence from :func:`model_making.scenes.describe`."""
    if scene.items and rng.random() < 0.25:
        return _grammar_caption(scene, rng)
    objects, background = _caption_parts(scene, rng)
    layout = rng.random()
    if layout < 0.35:  # objects, then background
        words = _join(objects, rng, _OBJECT_CONNECTIVES) + _join(background, rng, "|||and|with")
    elif layout < 0.55:  # background, then objects
        words = _join(background, rng, "||and")
        words += _words(_pick("|with|with|,", rng)) + _join(objects, rng, _OBJECT_CONNECTIVES)
    else:  # a list in random order
        words = _join(_interleave(objects, background, rng), rng, "||||and|with")
    return _add_noise(words, rng)


def _grammar_caption(scene: Scene, rng: np.random.Generator) -> list[CaptionWord]:
    """Return a caption from :func:`model_making.scenes.describe`, split into words.

    The caption names the objects in the order of `scene.items`, each with its place. The `item` of an object is set at
    the word for the place, for example at "left" in "a red car on the left".
    """
    items = iter(scene.items)
    places = {"left", "right", "middle", "center"}
    texts = describe(scene, rng).lower().rstrip(".").split()
    words = [CaptionWord(text, next(items) if text in places else None) for text in texts]
    if scene.indoors:
        background = [f"wall:{scene.wall}", "table:wooden"]
    else:
        background = [f"sky:{scene.sky}", f"ground:{scene.ground}"]
    if scene.backdrop != "none" and WORDS["before backdrops"][scene.backdrop][0] in " ".join(texts):
        background.append(f"backdrop:{scene.backdrop}")
    objects = (ObjectSpec((item.kind,), item.colour, item.place) for item in scene.items)
    return [*words[:-1], replace(words[-1], expected=(*objects, *background))]


def _words(phrase: str, item: SceneItem | None = None, *expected: ObjectSpec | str) -> list[CaptionWord]:
    """Split a phrase into words. Set `item` and `expected` of the last word."""
    texts = phrase.replace(",", " ").split()
    words = [CaptionWord(text) for text in texts]
    return [*words[:-1], CaptionWord(texts[-1], item, expected)] if texts else []


def _caption_parts(scene: Scene, rng: np.random.Generator) -> tuple[list[list[CaptionWord]], list[list[CaptionWord]]]:
    """Choose what the caption names. Return phrases for the chosen objects and for the chosen background parts."""
    is_complete = rng.random() < 0.25

    def is_named(probability: float) -> bool:
        return is_complete or rng.random() < probability

    items = [item for item in scene.items if is_named(0.85)]
    background = _background_options(scene)
    named = [(label, names) for label, names, probability in background if is_named(probability) and names]
    if not items and not named:  # name at least one object, or one background part if the scene has no objects
        items = list(scene.items[:1])
        named = [] if scene.items else [background[0][:2]]
    objects = _object_phrases(items, rng)
    return objects, [_background_phrase(*named[i], rng) for i in rng.permutation(len(named))]


def _background_options(scene: Scene) -> list[tuple[str, tuple[str, ...], float]]:
    """Return the label, the possible names, and the probability of being named, for each part of the background."""
    if scene.indoors:
        return [(f"wall:{scene.wall}", WALL_NAMES[scene.wall], 0.5), ("table:wooden", TABLE_NAMES["table"], 0.5)]
    return [
        (f"ground:{scene.ground}", GROUND_NAMES[scene.ground], 0.55),
        (f"sky:{scene.sky}", SKY_NAMES[scene.sky], 0.5),
        (f"backdrop:{scene.backdrop}", BACKDROP_NAMES[scene.backdrop], 0.4 * (scene.backdrop != "none")),
    ]


def default_places(places: Sequence[str | None]) -> list[str]:
    """Fill in the places that a caption doesn't name.

    One object is in the middle, two are left and right, three fill the row from the left. If the caption names some
    places, the other objects get the free places.

    With this convention, a caption always determines where its objects are. Without the convention, the model would
    have to guess at each column of the image whether an object follows further right. It would then draw some objects
    twice and omit others.

    Args:
        places: Places of up to three objects in the order of the caption; None for a place that the caption omits.

    Returns:
        Place of each object, for example ``["left", "right"]`` for ``[None, None]``.
    """
    match places:
        case [None]:
            free = ["middle"]
        case [None, None]:
            free = ["left", "right"]
        case [_, _]:
            free = [place for place in ("right", "left") if place not in places]
        case _:
            free = [place for place in PLACES if place not in places]
    remaining = iter(free)
    return [place or next(remaining) for place in places]


def _object_phrases(items: list[SceneItem], rng: np.random.Generator) -> list[list[CaptionWord]]:
    """Return a phrase for each object. The order of the phrases and the named places determine where each object is.

    A variant is an order of the objects together with a choice of the places to name. A variant is used only if
    :func:`default_places` restores the real places from it. Seven of ten captions name as few places as possible.
    """
    if {item.place for item in items} == {"left", "right"} and rng.random() < 0.1:
        return _relative_phrase([items[i] for i in rng.permutation(2)], rng)
    variants = [
        (order, is_named)
        for order in permutations(items)
        for is_named in product((False, True), repeat=len(items))
        if default_places([item.place if named else None for item, named in zip(order, is_named)])
        == [item.place for item in order]
    ]
    fewest = min(sum(is_named) for _, is_named in variants)
    if rng.random() < 0.7:
        variants = [(order, is_named) for order, is_named in variants if sum(is_named) == fewest]
    order, is_named = variants[rng.integers(len(variants))]
    return [_object_phrase(item, rng, named) for item, named in zip(order, is_named)]


def _interleave(
    objects: list[list[CaptionWord]], background: list[list[CaptionWord]], rng: np.random.Generator
) -> list[list[CaptionWord]]:
    """Mix the phrases in random order. Objects keep their order, because it can determine their places."""
    remaining = (iter(objects), iter(background))
    kinds = [0] * len(objects) + [1] * len(background)
    return [next(remaining[kinds[i]]) for i in rng.permutation(len(kinds))]


def _object_phrase(item: SceneItem, rng: np.random.Generator, names_place: bool) -> list[CaptionWord]:
    """Return a phrase for an object, with or without article and colour."""
    colour = item.colour if rng.random() < 0.85 else None
    named_item = SceneItem(item.kind, colour, item.place)
    name = _pick(OBJECT_NAMES[item.kind], rng)
    kinds = tuple(kind for kind, names in OBJECT_NAMES.items() if name in names)
    if rng.random() < 0.05:
        name = _plural(name)
    adjective = _pick(COLOUR_NAMES[colour], rng) if colour else _pick(f"||{UNKNOWN}", rng)
    if not item.colour and rng.random() < 0.2:
        adjective = "green"  # the natural colour of plants
    noise = _pick(f"|||||{UNKNOWN}", rng)
    article = _pick("a|a|the||an|one", rng)
    place = _pick(PLACE_NAMES[item.place], rng) if names_place else ""
    spec = ObjectSpec(kinds, colour, item.place if place else None)
    layout = rng.random()
    if layout < 0.04 and colour:
        words = [*_words(f"{article} {name} that is"), *_words(adjective, named_item, spec)]
    elif layout < 0.08 and colour:
        words = [*_words(f"{name}"), *_words(adjective, named_item, spec)]
    elif layout < 0.12 and place:
        return [*_words(f"{place} {article} {adjective}"), *_words(name, named_item, spec)]
    else:
        words = [*_words(f"{article} {noise} {adjective}"), *_words(name, named_item, spec)]
    return words + _words(place, named_item)


def _relative_phrase(items: list[SceneItem], rng: np.random.Generator) -> list[list[CaptionWord]]:
    """Return one phrase for two objects, for example "a red car to the left of a blue tent"."""
    first, second = items
    side = "left" if PLACES[first.place] < PLACES[second.place] else "right"
    relation = _pick(f"to the {side} of|{side} of|on the {side} of|on the {side} side of", rng)
    return [[*_object_phrase(first, rng, False), *_words(relation), *_object_phrase(second, rng, False)]]


def _background_phrase(label: str, names: tuple[str, ...], rng: np.random.Generator) -> list[CaptionWord]:
    """Return a phrase for a part of the background, in most cases with preposition and article."""
    preposition = _pick(_BACKGROUND_PREPOSITIONS, rng) if rng.random() < 0.6 else ""
    article = _pick("a|the|a|an||", rng)
    noise = _pick(f"||||||{UNKNOWN}", rng)
    return _words(f"{preposition} {article} {noise} {_pick(names, rng)}", None, label)


def _join(phrases: list[list[CaptionWord]], rng: np.random.Generator, connectives: str) -> list[CaptionWord]:
    words: list[CaptionWord] = []
    for phrase in phrases:
        words += [*(_words(_pick(connectives, rng)) if words else []), *phrase]
    return words


def _add_noise(words: list[CaptionWord], rng: np.random.Generator) -> list[CaptionWord]:
    """Add noise to a part of the captions: a lead-in phrase, unknown words in the caption, unknown words at the end."""
    if rng.random() < 0.3:
        words = _words(_pick(_LEAD_INS, rng)) + words
    if rng.random() < 0.3:
        for _ in range(rng.integers(1, 4)):
            words.insert(rng.integers(len(words) + 1), CaptionWord(UNKNOWN))
    if rng.random() < 0.2:
        words = words + [CaptionWord(UNKNOWN)] * rng.integers(1, 7)
    return words


def main() -> None:
    """Print captions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, required=True, help="number of captions")
    parser.add_argument("--seed", type=int, required=True, help="seed of the captions")
    args = parser.parse_args()
    for rng in (np.random.default_rng([args.seed, i]) for i in range(args.count)):
        print(" ".join(word.text for word in write_caption(sample_wide_scene(rng), rng)))


if __name__ == "__main__":
    main()
