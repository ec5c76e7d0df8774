"""Sixty prompts as people type them, and what a picture of each must show.

They were written by hand, without a look at how captions are worded for training (``model_making.wording``), so that
they ask what the model understands and not what it was told. ``PROMPTS`` lists them by kind of prompt. What a prompt
does not name is free: a house without a place may stand anywhere, under any sky.
"""

from __future__ import annotations

from .asking import Prompt, Wanted
from .scenes import COLOURS, PLACES


def _wanted(words: str) -> Wanted:
    """Read ``red house left`` or ``sailboat/rowboat``: colour and place may be missing, a slash means either."""
    colour = place = None
    kinds: tuple[str, ...] = ()
    for word in words.split():
        if word in COLOURS:
            colour = word
        elif word in PLACES:
            place = word
        else:
            kinds = tuple(word.split("/"))
    return Wanted(kinds, colour, place)


def _prompt(group: str, text: str, things: str = "", table: bool = False, **regions: str) -> Prompt:
    """``things`` with commas between them; a region's classes with slashes between them."""
    wanted = tuple(_wanted(words) for words in things.split(",") if words)
    return Prompt(
        group, text, wanted, table=table, **{name: tuple(which.split("/")) for name, which in regions.items()}
    )


def _fragments() -> list[Prompt]:
    things = ("red house", "blue car", "purple umbrella", "yellow kite", "orange tent", "purple lamp", "teapot")
    return [
        *(_prompt("fragment", words, words) for words in things),
        _prompt("fragment", "hot air balloon", "balloon"),
        _prompt("fragment", "Green mug", "green mug"),
    ]


def _lists() -> list[Prompt]:
    def named(text: str, things: str, **regions) -> Prompt:
        return _prompt("list", text, things, **regions)

    return [
        named("red car, cobblestone street, rain", "red car", ground="cobblestone", sky="rain"),
        named("blue tent, snow, mountains", "blue tent", ground="snow", backdrop="mountains"),
        named("sailboat, sunset, calm water", "sailboat", sky="sunset", ground="water"),
        named("blue vase, yellow mug, wooden table", "blue vase,yellow mug", table=True),
        named("Red balloon, yellow kite, cloudy sky, hills", "red balloon,yellow kite", sky="cloudy", backdrop="hills"),
        named("night, stars, green house, snow", "green house", sky="night", ground="snow"),
        named(
            "red umbrella, blue ball, yellow flower, sandy beach", "red umbrella,blue ball,yellow flower", ground="sand"
        ),
    ]


def _sentences() -> list[Prompt]:
    def named(text: str, things: str, **regions) -> Prompt:
        return _prompt("sentence", text, things, **regions)

    return [
        named(
            "A purple car is parked on a cobbled street in the rain.", "purple car", ground="cobblestone", sky="rain"
        ),
        named("There is a teapot on the table.", "teapot", table=True),
        named(
            "A small red boat floats on the lake while the sun goes down.",
            "red rowboat/sailboat",
            ground="water",
            sky="sunset",
        ),
        named(
            "an orange umbrella stands on the beach under a cloudy sky", "orange umbrella", ground="sand", sky="cloudy"
        ),
        named("A yellow house with a pine tree next to it in the snow", "yellow house,pine", ground="snow"),
        named("A bowl of fruit and a blue mug stand on a wooden table.", "bowl,blue mug", table=True),
        named(
            "The child's red ball lies in the grass, with hills behind.", "red ball", ground="grass", backdrop="hills"
        ),
        named(
            "An orange kite is flying over a green meadow on a sunny day.", "orange kite", ground="grass", sky="clear"
        ),
    ]


def _with_places() -> list[Prompt]:
    def named(text: str, things: str, **regions) -> Prompt:
        return _prompt("place", text, things, **regions)

    return [
        named("a green ball on the left and a yellow tent on the right", "green ball left,yellow tent right"),
        named("house in the middle, tree on the right", "house middle,tree right"),
        named("a blue lamp on the right side of a table, plain wall", "blue lamp right", table=True, wall="plaster"),
        named(
            "red flower on the left, blue umbrella on the right, grass",
            "red flower left,blue umbrella right",
            ground="grass",
        ),
        named("On the left a rowboat, on the right a sailboat", "rowboat left,sailboat right"),
        named("a purple hot air balloon at the top left, over a forest", "purple balloon left", backdrop="forest"),
        named("centered orange vase in front of striped wallpaper", "orange vase middle", wall="striped"),
        named(
            "a blue bowl on the left, a green teapot in the middle and a red mug on the right",
            "blue bowl left,green teapot middle,red mug right",
        ),
    ]


def _synonyms() -> list[Prompt]:
    def named(text: str, things: str, **regions) -> Prompt:
        return _prompt("synonym", text, things, **regions)

    return [
        named("Winter cabin in front of mountain peaks", "house", ground="snow", backdrop="mountains"),
        named("a crimson automobile on a paved square", "red car", ground="cobblestone"),
        named("ship on the ocean in the evening", "sailboat/rowboat", ground="water", sky="sunset/night"),
        named("violet parasol at the seaside", "purple umbrella", ground="sand/water"),
        named("a cup of coffee on a desk", "mug", table=True),
        named("starry sky above a cottage in a field", "house", sky="night", ground="grass"),
        named("a canoe on a river at dusk", "rowboat", ground="water", sky="sunset/night"),
        named("christmas tree in a winter landscape", "pine", ground="snow"),
    ]


def _phrases() -> list[Prompt]:
    def named(text: str, things: str, **regions) -> Prompt:
        return _prompt("phrase", text, things, **regions)

    return [
        named("a photo of a blue sailboat", "blue sailboat"),
        named("Draw me a red tent under the stars, please", "red tent", sky="night"),
        named("my grandmother's green teapot, cozy, warm light", "green teapot"),
        named("a beautiful painting of an orange flower, 4k, masterpiece", "orange flower"),
        named("picture of a lonely lamp against a brick wall", "lamp", wall="brick"),
        named("highly detailed photograph of a green kite in a rainy sky", "green kite", sky="rain"),
        named(
            "An image of a very old orange car with hills behind it, cinematic lighting", "orange car", backdrop="hills"
        ),
        named(
            "could you show me a really nice bowl on a table, with tiles on the wall", "bowl", table=True, wall="tiled"
        ),
    ]


def _settings() -> list[Prompt]:
    return [
        _prompt("setting", "sunset over the sea", sky="sunset", ground="water"),
        _prompt("setting", "snowy mountains at night", backdrop="mountains", sky="night"),
        _prompt("setting", "Rainy street", sky="rain", ground="cobblestone"),
        _prompt("setting", "an empty beach on a sunny day", ground="sand", sky="clear"),
        _prompt("setting", "rolling hills, blue sky, green grass", backdrop="hills", sky="clear", ground="grass"),
        _prompt("setting", "dark forest in winter", backdrop="forest", ground="snow"),
    ]


def _plants() -> list[Prompt]:
    return [
        _prompt("plant", "a tree", "tree"),
        _prompt("plant", "pine tree in the snow", "pine", ground="snow"),
        _prompt("plant", "lone tree in evening light, hills", "tree", sky="sunset/night", backdrop="hills"),
        _prompt("plant", "A fir tree on the right, cloudy day", "pine right", sky="cloudy"),
        _prompt("plant", "tree on the left, pine on the right, meadow", "tree left,pine right", ground="grass"),
        _prompt("plant", "a leafy green tree in the rain", "tree", sky="rain"),
    ]


PROMPTS: tuple[Prompt, ...] = (
    *_fragments(),
    *_lists(),
    *_sentences(),
    *_with_places(),
    *_synonyms(),
    *_phrases(),
    *_settings(),
    *_plants(),
)


def _of_template(text: str, things: str, **regions) -> Prompt:
    return _prompt("template", text, things, **regions)


TEMPLATES: tuple[Prompt, ...] = (
    _of_template("A red house in a grassy field under a clear blue sky.", "red house", ground="grass", sky="clear"),
    _of_template(
        "A red house on the left of a grassy field under a cloudy sky.", "red house left", ground="grass", sky="cloudy"
    ),
    _of_template(
        "A red house on the left of a sandy beach under a cloudy sky.", "red house left", ground="sand", sky="cloudy"
    ),
    _of_template(
        "A red sailboat in the middle on a calm lake at sunset.", "red sailboat middle", ground="water", sky="sunset"
    ),
    _of_template(
        "A red house on the left of a grassy field under a clear blue sky and a yellow hot air balloon on the right.",
        "red house left,yellow balloon right",
        ground="grass",
        sky="clear",
    ),
)
"""The prompts of the bundled model's templates and blueprints."""
