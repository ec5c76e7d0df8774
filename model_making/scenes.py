"""Procedural scenes with captions: what the bundled model is taught to draw.

A :class:`Scene` is a small symbolic description. :func:`sample_scene` draws one, :func:`describe`
words it the way MS-COCO captions read, and ``model_making.render.render`` paints it. Everything is a
function of the ``numpy.random.Generator`` that is passed in, so a seed names a data set.
"""

from __future__ import annotations

from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

import numpy as np

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (205, 48, 44),
    "orange": (242, 138, 36),
    "yellow": (247, 213, 58),
    "green": (52, 158, 74),
    "blue": (48, 98, 208),
    "purple": (140, 70, 182),
}
PLACES: dict[str, float] = {"left": 7 / 32, "middle": 0.5, "right": 25 / 32}

GROUNDS = ("grass", "sand", "snow", "water", "cobblestone")
SKIES = ("clear", "cloudy", "sunset", "night", "rain")
BACKDROPS = ("none", "mountains", "hills", "forest")
WALLS = ("brick", "plaster", "striped", "tiled")

LAND_OBJECTS = ("house", "tent", "ball", "car", "umbrella", "flower")
WATER_OBJECTS = ("sailboat", "ball", "rowboat")
AIR_OBJECTS = ("balloon", "kite")
TABLE_OBJECTS = ("mug", "vase", "teapot", "lamp", "bowl")
PLANTS = ("tree", "pine")
THINGS = tuple(dict.fromkeys((*LAND_OBJECTS, *WATER_OBJECTS, *AIR_OBJECTS, *TABLE_OBJECTS)))
_TOYS = ("ball", "flower", "car", "house", "umbrella", "sailboat")  # that stand on a table now and then
_ANYWHERE = (*LAND_OBJECTS, *WATER_OBJECTS, "mug", "vase", "lamp", "bowl", "teapot")  # that stand outdoors now and then

_TABLES = ConfigParser(interpolation=None)
_TABLES.read(Path(__file__).parent / "words.ini", encoding="utf-8")
WORDS = {
    section: {key: tuple(filter(None, words.split("|"))) for key, words in _TABLES[section].items()}
    for section in _TABLES.sections()
}
"""The words of captions: what each thing, colour, place ... may be called, by section of ``words.ini``."""

# Colours that would melt into what is behind the object: neither a person nor the
# attribute check could tell them apart.
_CLASHES = {
    "grass": {"green"},
    "sand": {"yellow", "orange"},
    "water": {"blue"},
    "clear": {"blue"},
    "sunset": {"orange", "yellow"},
    "night": {"blue", "purple"},
    "brick": {"red", "orange"},
    "table": {"orange"},
}


@dataclass(frozen=True)
class Item:
    """One named thing: its kind, its colour (None for plants in their natural colour) and its place."""

    kind: str
    colour: str | None
    place: str


@dataclass(frozen=True)
class Scene:
    """What a picture shows. ``sky`` and ``ground`` are set outdoors, ``wall`` indoors."""

    items: tuple[Item, ...]
    ground: str | None = None
    sky: str | None = None
    backdrop: str = "none"
    wall: str | None = None

    @property
    def indoors(self) -> bool:
        return self.wall is not None


def _colour(rng: np.random.Generator, *surroundings: str, used: tuple[str | None, ...] = ()) -> str:
    banned = set(used).union(*(_CLASHES.get(name, set()) for name in surroundings))
    return str(rng.choice([name for name in COLOURS if name not in banned]))


def _outdoor_item(rng: np.random.Generator, ground: str, sky: str, place: str, used: tuple[str | None, ...]) -> Item:
    if rng.random() < 0.2:
        return Item(str(rng.choice(AIR_OBJECTS)), _colour(rng, sky, used=used), place)
    kinds = WATER_OBJECTS if ground == "water" else LAND_OBJECTS
    return Item(str(rng.choice(kinds)), _colour(rng, ground, sky, used=used), place)


def sample_scene(rng: np.random.Generator) -> Scene:
    """Draw one scene; about one in five is a still life indoors."""
    places = [str(p) for p in rng.permutation(list(PLACES))]
    if rng.random() < 0.2:
        wall = str(rng.choice(WALLS))
        first = Item(str(rng.choice(TABLE_OBJECTS)), _colour(rng, wall, "table"), places[0])
        items = [first]
        if rng.random() < 0.5:
            kind = str(rng.choice([k for k in TABLE_OBJECTS if k != first.kind]))
            items.append(Item(kind, _colour(rng, wall, "table", used=(first.colour,)), places[1]))
        return Scene(tuple(items), wall=wall)
    ground, sky = str(rng.choice(GROUNDS)), str(rng.choice(SKIES))
    items = [_outdoor_item(rng, ground, sky, places[0], ())]
    if rng.random() < 0.55:
        if ground != "water" and rng.random() < 0.4:
            items.append(Item(str(rng.choice(PLANTS)), None, places[1]))
        else:
            other = _outdoor_item(rng, ground, sky, places[1], (items[0].colour,))
            if other.kind != items[0].kind:
                items.append(other)
    return Scene(tuple(items), ground=ground, sky=sky, backdrop=str(rng.choice(BACKDROPS)))


def sample_wide_scene(rng: np.random.Generator) -> Scene:
    """Draw one scene for training: as :func:`sample_scene`, and in most cases as people ask for them.

    Those hold none to three things, plants alone, things where they seldom are, and colours that hardly stand out from
    what is behind them. No kind comes twice: what a caption names is drawn once.
    """
    if rng.random() < 0.35:
        return sample_scene(rng)
    places = [str(place) for place in rng.permutation(list(PLACES))]
    if rng.random() < 0.25:
        wall = str(rng.choice(WALLS))
        kinds = _wide_kinds(rng, 1 + rng.choice(3, p=(0.25, 0.4, 0.35)), TABLE_OBJECTS, _TOYS)
        return Scene(_wide_items(rng, kinds, places, (wall, "table")), wall=wall)
    ground, sky = str(rng.choice(GROUNDS)), str(rng.choice(SKIES))
    at_home = WATER_OBJECTS if ground == "water" else LAND_OBJECTS
    kinds = _wide_kinds(rng, rng.choice(4, p=(0.07, 0.25, 0.36, 0.32)), at_home, _ANYWHERE)
    if ground != "water":
        kinds = [str(rng.choice(PLANTS)) if rng.random() < 0.2 else kind for kind in kinds]
    kinds = list(dict.fromkeys(str(rng.choice(AIR_OBJECTS)) if rng.random() < 0.18 else kind for kind in kinds))
    items = _wide_items(rng, kinds, places, (ground, sky))
    return Scene(items, ground=ground, sky=sky, backdrop=str(rng.choice(BACKDROPS)))


def _wide_kinds(rng: np.random.Generator, count: int, common: tuple[str, ...], rare: tuple[str, ...]) -> list[str]:
    """Up to ``count`` different kinds, one in ten of the rare ones."""
    return list(dict.fromkeys(str(rng.choice(rare if rng.random() < 0.1 else common)) for _ in range(count)))


def _wide_items(
    rng: np.random.Generator, kinds: list[str], places: list[str], surroundings: tuple[str, ...]
) -> tuple[Item, ...]:
    """The things in their places. One colour in three is any colour, the others stand out."""
    items: list[Item] = []
    for kind, place in zip(kinds, places):
        if kind in PLANTS:
            colour = None
        elif len(items) == 2 or rng.random() < 0.33:
            colour = str(rng.choice(list(COLOURS)))
        else:
            colour = _colour(rng, *surroundings, used=tuple(item.colour for item in items))
        items.append(Item(kind, colour, place))
    return tuple(items)


_NAMES = {"balloon": "hot air balloon", "pine": "pine tree", "bowl": "bowl of fruit", "vase": "vase of flowers"}


def _name(item: Item) -> str:
    words = " ".join(part for part in (item.colour, _NAMES.get(item.kind, item.kind)) if part)
    return ("an " if words[0] in "aeiou" else "a ") + words


def _where(place: str, rng: np.random.Generator) -> str:
    if place == "middle":
        return str(rng.choice(["in the middle", "in the center"]))
    return str(rng.choice([f"on the {place}", f"to the {place}"]))


def describe(scene: Scene, rng: np.random.Generator) -> str:
    """Word a scene as one MS-COCO style sentence; the wording varies with ``rng``."""
    first, rest = scene.items[0], scene.items[1:]
    pick = lambda options: str(rng.choice(options))  # noqa: E731
    subject, where = _name(first), _where(first.place, rng)
    if scene.indoors:
        setting, close = pick(["on a wooden table", "on a table"]), pick(WORDS["before walls"][scene.wall])
    else:
        words = WORDS["over grounds" if first.kind in AIR_OBJECTS else "on grounds"]
        setting, close = pick(words[scene.ground]), pick(WORDS["under skies"][scene.sky])
    sentence = pick([f"{subject} {where} {setting} {close}", f"{subject} {setting} {where} {close}"])
    for item in rest:
        joint = pick(["with", "and", "next to"])
        sentence += f" {joint} {_name(item)} {_where(item.place, rng)}"
    if scene.backdrop != "none" and rng.random() < 0.75:
        sentence += " " + WORDS["before backdrops"][scene.backdrop][0]
    return sentence[0].upper() + sentence[1:] + "."
