"""Random scenes and their captions, for the bundled model's training data.

A :class:`Scene` lists the objects and the background of an image. :func:`sample_scene` samples a scene,
:func:`describe` writes a caption for it in the style of MS-COCO, and ``model_making.render.render`` paints it. These
functions take all random numbers from their ``numpy.random.Generator`` argument. The seed of the generator
therefore determines the data set.
"""

from __future__ import annotations

from collections.abc import Sequence
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
COLOURED_OBJECTS = tuple(dict.fromkeys((*LAND_OBJECTS, *WATER_OBJECTS, *AIR_OBJECTS, *TABLE_OBJECTS)))
# Kinds of objects that are sampled rarely on a table or outdoors, because some of them are unusual there.
_RARE_ON_TABLE = ("ball", "flower", "car", "house", "umbrella", "sailboat")
_RARE_OUTDOORS = (*LAND_OBJECTS, *WATER_OBJECTS, "mug", "vase", "lamp", "bowl", "teapot")

_TABLES = ConfigParser(interpolation=None)
_TABLES.read(Path(__file__).parent / "words.ini", encoding="utf-8")
WORDS = {
    section: {key: tuple(filter(None, words.split("|"))) for key, words in _TABLES[section].items()}
    for section in _TABLES.sections()
}
"""Contents of ``words.ini`` by section and key: all names for an object, colour, place or background part."""

# Object colours that are hard to see in front of the background, for people and for the detector.
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
class SceneItem:
    """Object of a scene."""

    kind: str  # one of :data:`COLOURED_OBJECTS` or :data:`PLANTS`
    colour: str | None  # key of :data:`COLOURS`, or None for plants, which have their natural colour
    place: str  # key of :data:`PLACES`


@dataclass(frozen=True)
class Scene:
    """Symbolic description of an image. `ground`, `sky` and `backdrop` are used outdoors, `wall` indoors."""

    items: tuple[SceneItem, ...]  # in the order in which :func:`describe` names them
    ground: str | None = None  # one of :data:`GROUNDS`
    sky: str | None = None  # one of :data:`SKIES`
    backdrop: str = "none"  # one of :data:`BACKDROPS`
    wall: str | None = None  # one of :data:`WALLS`

    @property
    def indoors(self) -> bool:
        """Whether the scene is a still life on a table."""
        return self.wall is not None


def _contrasting_colour(rng: np.random.Generator, *background: str, used: tuple[str | None, ...] = ()) -> str:
    banned = set(used).union(*(_CLASHES.get(name, set()) for name in background))
    return str(rng.choice([name for name in COLOURS if name not in banned]))


def _outdoor_item(
    rng: np.random.Generator, ground: str, sky: str, place: str, used: tuple[str | None, ...]
) -> SceneItem:
    if rng.random() < 0.2:
        return SceneItem(str(rng.choice(AIR_OBJECTS)), _contrasting_colour(rng, sky, used=used), place)
    kinds = WATER_OBJECTS if ground == "water" else LAND_OBJECTS
    return SceneItem(str(rng.choice(kinds)), _contrasting_colour(rng, ground, sky, used=used), place)


def sample_scene(rng: np.random.Generator) -> Scene:
    """Sample a scene of one or two objects; about one in five is indoors."""
    places = [str(p) for p in rng.permutation(list(PLACES))]
    if rng.random() < 0.2:
        wall = str(rng.choice(WALLS))
        first = SceneItem(str(rng.choice(TABLE_OBJECTS)), _contrasting_colour(rng, wall, "table"), places[0])
        items = [first]
        if rng.random() < 0.5:
            kind = str(rng.choice([k for k in TABLE_OBJECTS if k != first.kind]))
            items.append(SceneItem(kind, _contrasting_colour(rng, wall, "table", used=(first.colour,)), places[1]))
        return Scene(tuple(items), wall=wall)
    ground = str(rng.choice(GROUNDS))
    sky = str(rng.choice(SKIES))
    items = [_outdoor_item(rng, ground, sky, places[0], ())]
    if rng.random() < 0.55:
        if ground != "water" and rng.random() < 0.4:
            items.append(SceneItem(str(rng.choice(PLANTS)), None, places[1]))
        else:
            other = _outdoor_item(rng, ground, sky, places[1], (items[0].colour,))
            if other.kind != items[0].kind:
                items.append(other)
    return Scene(tuple(items), ground=ground, sky=sky, backdrop=str(rng.choice(BACKDROPS)))


def sample_wide_scene(rng: np.random.Generator) -> Scene:
    """Sample a scene for training. About one of three scenes is from :func:`sample_scene`, the others are more varied.

    The varied scenes have zero to three objects. They include scenes with only plants, objects in unusual surroundings,
    and colours with little contrast. No kind of object occurs twice in a scene, so the model learns to draw an object
    only once if the caption names it once.
    """
    if rng.random() < 0.35:
        return sample_scene(rng)
    places = [str(place) for place in rng.permutation(list(PLACES))]
    if rng.random() < 0.25:
        wall = str(rng.choice(WALLS))
        kinds = _wide_kinds(rng, 1 + rng.choice(3, p=(0.25, 0.4, 0.35)), TABLE_OBJECTS, _RARE_ON_TABLE)
        return Scene(_wide_items(rng, kinds, places, (wall, "table")), wall=wall)
    ground = str(rng.choice(GROUNDS))
    sky = str(rng.choice(SKIES))
    common = WATER_OBJECTS if ground == "water" else LAND_OBJECTS
    kinds = _wide_kinds(rng, rng.choice(4, p=(0.07, 0.25, 0.36, 0.32)), common, _RARE_OUTDOORS)
    if ground != "water":
        kinds = [str(rng.choice(PLANTS)) if rng.random() < 0.2 else kind for kind in kinds]
    kinds = list(dict.fromkeys(str(rng.choice(AIR_OBJECTS)) if rng.random() < 0.18 else kind for kind in kinds))
    items = _wide_items(rng, kinds, places, (ground, sky))
    return Scene(items, ground=ground, sky=sky, backdrop=str(rng.choice(BACKDROPS)))


def _wide_kinds(rng: np.random.Generator, count: int, common: tuple[str, ...], rare: tuple[str, ...]) -> list[str]:
    """Sample up to `count` different kinds. One in ten is sampled from `rare`, the others from `common`."""
    return list(dict.fromkeys(str(rng.choice(rare if rng.random() < 0.1 else common)) for _ in range(count)))


def _wide_items(
    rng: np.random.Generator, kinds: list[str], places: list[str], background: tuple[str, ...]
) -> tuple[SceneItem, ...]:
    """Return an object of each kind. The kind with index i gets the place with index i.

    The third object has an arbitrary colour. The first two have an arbitrary colour with probability 0.33; otherwise
    their colour contrasts with the background.
    """
    items: list[SceneItem] = []
    for kind, place in zip(kinds, places):
        if kind in PLANTS:
            colour = None
        elif len(items) == 2 or rng.random() < 0.33:
            colour = str(rng.choice(list(COLOURS)))
        else:
            colour = _contrasting_colour(rng, *background, used=tuple(item.colour for item in items))
        items.append(SceneItem(kind, colour, place))
    return tuple(items)


_NAMES = {"balloon": "hot air balloon", "pine": "pine tree", "bowl": "bowl of fruit", "vase": "vase of flowers"}


def _name(item: SceneItem) -> str:
    words = " ".join(part for part in (item.colour, _NAMES.get(item.kind, item.kind)) if part)
    return ("an " if words[0] in "aeiou" else "a ") + words


def _place_phrase(place: str, rng: np.random.Generator) -> str:
    if place == "middle":
        return str(rng.choice(["in the middle", "in the center"]))
    return str(rng.choice([f"on the {place}", f"to the {place}"]))


def describe(scene: Scene, rng: np.random.Generator) -> str:
    """Return a caption of a scene: one sentence in the style of MS-COCO. `rng` chooses between several wordings."""

    def pick(options: Sequence[str]) -> str:
        return str(rng.choice(options))

    first, *rest = scene.items
    subject = _name(first)
    place = _place_phrase(first.place, rng)
    if scene.indoors:
        setting = pick(["on a wooden table", "on a table"])
        background = pick(WORDS["before walls"][scene.wall])
    else:
        settings = WORDS["over grounds" if first.kind in AIR_OBJECTS else "on grounds"]
        setting = pick(settings[scene.ground])
        background = pick(WORDS["under skies"][scene.sky])
    sentence = pick([f"{subject} {place} {setting} {background}", f"{subject} {setting} {place} {background}"])
    for item in rest:
        connective = pick(["with", "and", "next to"])
        sentence += f" {connective} {_name(item)} {_place_phrase(item.place, rng)}"
    if scene.backdrop != "none" and rng.random() < 0.75:
        sentence += " " + WORDS["before backdrops"][scene.backdrop][0]
    return sentence[0].upper() + sentence[1:] + "."
