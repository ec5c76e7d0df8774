"""Renderer for :class:`model_making.scenes.Scene`: 128 x 128 pixels, painted with Pillow at twice the size.

Each image has smooth regions (sky, snow, plaster) and textured regions (grass, bricks, water, rain). Smooth regions are
easy for a drafter, textured regions are hard.

The codec encodes each cell of 8 x 8 pixels as one token. Horizons, objects and repeated patterns are aligned with these
cells. If an object moves by one cell, its tokens are the same, one position further. A small model can therefore learn
the objects within an hour.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageDraw

from .objects import HEIGHTS, Colour, paint, shade
from .scenes import AIR_OBJECTS, COLOURS, PLACES, Scene, SceneItem

SIZE = 128
Light = tuple[float, float, float]
# Edge lengths of the supersampled image (_S) and of a codec cell (_CELL). All coordinates below are in supersampled
# pixels; two of them make one pixel of the final image.
_S = 2 * SIZE
_CELL = 16

_SKY_GRADIENTS = {  # top, middle, horizon
    "clear": ((72, 142, 222), (128, 186, 236), (206, 230, 244)),
    "cloudy": ((132, 148, 172), (168, 180, 196), (208, 214, 220)),
    "sunset": ((96, 66, 132), (226, 112, 92), (252, 196, 104)),
    "night": ((10, 14, 42), (20, 28, 68), (42, 54, 100)),
    "rain": ((86, 96, 112), (110, 120, 134), (146, 154, 164)),
}
_GROUND_GRADIENTS = {  # far, near
    "grass": ((138, 176, 92), (78, 136, 52)),
    "sand": ((240, 220, 174), (220, 190, 136)),
    "snow": ((228, 236, 246), (248, 250, 252)),
    "water": ((96, 158, 190), (28, 84, 136)),
    "cobblestone": ((150, 146, 146), (118, 114, 116)),
}
# Factors by which the light of each sky changes the ground's RGB. For objects, only half of the change is applied.
LIGHT = {
    "clear": (1.0, 1.0, 1.0),
    "cloudy": (0.93, 0.94, 0.97),
    "sunset": (1.0, 0.84, 0.76),
    "night": (0.45, 0.5, 0.68),
    "rain": (0.78, 0.82, 0.88),
}


def _mix(a: Colour, b: Colour, t: float) -> Colour:
    return tuple(int(round(x + (y - x) * t)) for x, y in zip(a, b))


def _lit(colour: Colour, light: Light) -> Colour:
    return tuple(min(255, int(c * f)) for c, f in zip(colour, light))


def _gradient(stops: tuple[Colour, ...], height: int) -> Image.Image:
    """Return a vertical gradient through the colours `stops`, `height` pixels high and as wide as the image."""
    at = np.linspace(0, 1, len(stops))
    rows = np.stack([np.interp(np.linspace(0, 1, max(height, 1)), at, [s[c] for s in stops]) for c in range(3)], -1)
    return Image.fromarray(np.broadcast_to(rows[:, None].round().astype(np.uint8), (max(height, 1), _S, 3)).copy())


def _sample_on_grid(low: float, high: float, rng: np.random.Generator) -> int:
    """Return a uniform sample between `low` and `high`, rounded to a multiple of the cell size."""
    return _CELL * round(rng.uniform(low, high) / _CELL)


def _wave(draw: ImageDraw.ImageDraw, y: float, height: float, rng: np.random.Generator, **style) -> None:
    """Draw a wavy line across the image. Its phase is one of eight, chosen at random."""
    phase = rng.integers(8)
    columns = range(0, _S + 8, 8)
    draw.line([(x, y + height * math.sin((x / 128 + phase / 8) * 2 * math.pi)) for x in columns], **style)


# ---- skies ---------------------------------------------------------------------------------


def _cloud(draw: ImageDraw.ImageDraw, x: float, y: float, size: float, colour: Colour) -> None:
    for dx, dy, r in ((-0.9, 0.15, 0.45), (-0.35, -0.12, 0.6), (0.3, -0.2, 0.68), (0.9, 0.12, 0.48)):
        r *= size
        draw.ellipse(
            (x + dx * size - r, y + dy * size - 0.62 * r, x + dx * size + r, y + dy * size + 0.62 * r), fill=colour
        )
    draw.rounded_rectangle((x - 1.3 * size, y, x + 1.3 * size, y + 0.42 * size), 0.2 * size, fill=colour)


def _paint_sky(draw: ImageDraw.ImageDraw, sky: str, horizon: int, rng: np.random.Generator) -> None:
    if sky in ("clear", "sunset", "night"):
        x = _sample_on_grid(0.15 * _S, 0.85 * _S, rng)
        y = horizon - 32 if sky == "sunset" else _sample_on_grid(26, 54, rng)
        r = {"clear": 17, "sunset": 26, "night": 17}[sky]
        disc = {"clear": (255, 244, 190), "sunset": (255, 236, 170), "night": (240, 238, 220)}[sky]
        draw.ellipse((x - r, y - r, x + r, y + r), fill=disc)
        if sky == "night":
            draw.ellipse((x - r + 9, y - r - 4, x + r + 9, y + r - 4), fill=(16, 22, 58))
            for _ in range(int(rng.integers(10, 16))):
                sx = _sample_on_grid(0, _S - 16, rng) + 8
                sy = _sample_on_grid(0, horizon - 56, rng) + 8
                sr = 2.2
                draw.ellipse((sx - sr, sy - sr, sx + sr, sy + sr), fill=(232, 232, 216))
    if sky in ("clear", "cloudy", "sunset"):
        count = {"clear": rng.integers(0, 3), "cloudy": rng.integers(4, 7), "sunset": rng.integers(1, 3)}[sky]
        tone = {"clear": (244, 248, 252), "cloudy": (222, 226, 232), "sunset": (240, 150, 120)}[sky]
        for _ in range(int(count)):
            _cloud(
                draw, _sample_on_grid(0, _S, rng), _sample_on_grid(16, horizon * 0.6, rng), rng.choice((20, 28)), tone
            )
    if sky == "rain":
        for _ in range(int(rng.integers(2, 5))):
            _cloud(draw, _sample_on_grid(0, _S, rng), _sample_on_grid(8, 40, rng), 32, (92, 100, 114))


def _rain(draw: ImageDraw.ImageDraw, rng: np.random.Generator) -> None:
    for y in range(0, _S, 32):
        for x in range(0, _S, 32):
            x0 = x + rng.choice((7, 23))
            y0 = y + rng.choice((0, 16))
            length = 16
            draw.line((x0, y0, x0 - 0.35 * length, y0 + length), fill=(158, 172, 188), width=2)


def _paint_backdrop(draw: ImageDraw.ImageDraw, scene: Scene, horizon: int, rng: np.random.Generator) -> None:
    light = LIGHT[scene.sky]
    if scene.backdrop == "mountains":
        for _ in range(int(rng.integers(2, 4))):
            x = _sample_on_grid(0, _S, rng)
            h = _sample_on_grid(46, 80, rng)
            w = 80
            rock = _lit((116, 124, 146), light)
            draw.polygon([(x - w, horizon), (x, horizon - h), (x + w, horizon)], fill=rock)
            draw.polygon([(x, horizon - h), (x + w, horizon), (x + 0.25 * w, horizon)], fill=shade(rock, 0.84))
            cap = 0.28
            draw.polygon(
                [(x - cap * w, horizon - h * (1 - cap)), (x, horizon - h), (x + cap * w, horizon - h * (1 - cap))],
                fill=_lit((238, 240, 246), light),
            )
    elif scene.backdrop == "hills":
        far = {"snow": (206, 216, 230), "sand": (214, 190, 140)}.get(scene.ground, (112, 150, 104))
        for tone, lift in ((1.1, 34), (0.95, 18)):
            x = _sample_on_grid(0, _S, rng)
            w = 128
            for centre in (x - 1.3 * w, x, x + 1.3 * w):
                draw.ellipse(
                    (centre - w, horizon - lift, centre + w, horizon + 2 * lift), fill=shade(_lit(far, light), tone)
                )
    elif scene.backdrop == "forest":
        for x in range(0, _S + 16, 16):
            h = rng.choice((32, 44))
            tone = shade(_lit((44, 84, 62), light), rng.choice((0.92, 1.12)))
            draw.polygon([(x - 13, horizon), (x, horizon - h), (x + 13, horizon)], fill=tone)


# ---- grounds -------------------------------------------------------------------------------


def _grass(draw: ImageDraw.ImageDraw, horizon: int, near: Colour, light: Light, rng: np.random.Generator) -> None:
    for y in range(horizon + 10, _S, 16):
        depth = (y - horizon) / (_S - horizon)
        for x in range(8, _S, 16):
            px = x + rng.choice((-4, 3))
            h = 5 + 11 * depth
            tone = shade(near, rng.choice([0.78, 0.88, 1.18]))
            draw.polygon([(px - 3, y + 4), (px + rng.choice((-3, 3)), y + 4 - h), (px + 3, y + 4)], fill=tone)
    for _ in range(int(rng.integers(0, 6))):
        x = _sample_on_grid(0, _S, rng) + 8
        y = _sample_on_grid(horizon + 30, _S - 16, rng) + 8
        draw.ellipse((x - 4, y - 4, x + 4, y + 4), fill=_lit((246, 236, 190), light))


def _sand(draw: ImageDraw.ImageDraw, horizon: int, near: Colour, light: Light, rng: np.random.Generator) -> None:
    draw.rectangle((0, horizon, _S, horizon + 14), fill=_lit((92, 164, 190), light))
    draw.line(
        [(x, horizon + 15 + 2 * math.sin(x / 19)) for x in range(0, _S + 8, 8)],
        fill=_lit((240, 244, 240), light),
        width=4,
    )
    for y in range(horizon + 24, _S, 16):
        _wave(draw, y, 3, rng, fill=shade(near, 0.91), width=4)


def _snow(draw: ImageDraw.ImageDraw, horizon: int, near: Colour, light: Light, rng: np.random.Generator) -> None:
    for y in range(horizon + 24, _S + 20, 32):
        x = _sample_on_grid(0, _S, rng)
        draw.ellipse((x - 120, y - 8, x + 120, y + 26), fill=_lit((218, 228, 242), light))
        draw.ellipse((x - 118, y - 3, x + 124, y + 30), fill=_lit((244, 248, 252), light))


def _water(draw: ImageDraw.ImageDraw, horizon: int, near: Colour, light: Light, rng: np.random.Generator) -> None:
    for y in range(horizon + 8, _S, 16):
        depth = (y - horizon) / (_S - horizon)
        for x in range(0, _S, 32):
            px = x + 8 * rng.integers(4)
            w = 9 + 7 * depth
            is_crest = rng.random() < 0.5
            tone = shade(near, 1.55 - 0.2 * depth) if is_crest else shade(near, 1.2)
            draw.arc((px - w, y - 4, px + w, y + 5), 200, 340, fill=tone, width=4)


def _cobblestone(draw: ImageDraw.ImageDraw, horizon: int, near: Colour, light: Light, rng: np.random.Generator) -> None:
    row = 0
    y = float(horizon + 2)
    while y < _S:
        h = 9 + 9 * (y - horizon) / (_S - horizon)
        for x in np.arange(-((row % 2) * 0.9 * h), _S, 1.8 * h):
            tone = _lit(_mix((164, 158, 154), (122, 118, 122), rng.choice((0.1, 0.5, 0.9))), light)
            draw.rounded_rectangle((x + 1.5, y + 1.5, x + 1.8 * h - 1.5, y + h - 1), 4, fill=tone)
        y += h
        row += 1


def _paint_ground(draw: ImageDraw.ImageDraw, scene: Scene, horizon: int, rng: np.random.Generator) -> None:
    light = LIGHT[scene.sky]
    painters = {"grass": _grass, "sand": _sand, "snow": _snow, "water": _water, "cobblestone": _cobblestone}
    painters[scene.ground](draw, horizon, _lit(_GROUND_GRADIENTS[scene.ground][1], light), light, rng)


# ---- images --------------------------------------------------------------------------------


def _place_item(draw: ImageDraw.ImageDraw, item: SceneItem, foot: float, light, rng: np.random.Generator) -> None:
    u = HEIGHTS[item.kind]
    x = _sample_on_grid(PLACES[item.place] * _S - 12, PLACES[item.place] * _S + 12, rng)
    y = _sample_on_grid(foot - 12, foot + 12, rng)
    half = tuple(0.5 + 0.5 * f for f in light)
    if item.kind in AIR_OBJECTS:
        y = _sample_on_grid(92, 116, rng)
    else:
        draw.ellipse(
            (x - 0.5 * u, y - 5, x + 0.56 * u, y + 7),
            fill=None if item.kind in ("sailboat", "rowboat") else _lit((96, 92, 88), half),
        )
    colour = _lit(COLOURS[item.colour], half) if item.colour else None
    paint(draw, item.kind, x, y, colour)


def _indoors(scene: Scene, rng: np.random.Generator) -> Image.Image:
    table = 160
    image = _gradient(((232, 222, 202), (220, 206, 182)), _S)
    draw = ImageDraw.Draw(image)
    if scene.wall == "brick":
        for row, y in enumerate(range(0, table, 16)):
            for x in range(-16 * (row % 2), _S, 32):
                tone = _mix((166, 84, 66), (142, 66, 54), rng.choice((0.1, 0.5, 0.9)))
                draw.rectangle((x + 2, y + 2, x + 29, y + 13), fill=tone)
    elif scene.wall == "striped":
        tone = [(196, 216, 206), (216, 204, 220), (212, 216, 190)][rng.integers(3)]
        for x in range(0, _S, 32):
            draw.rectangle((x, 0, x + 15, table), fill=tone)
    elif scene.wall == "tiled":
        for row, y in enumerate(range(0, table, 32)):
            for column, x in enumerate(range(0, _S, 32)):
                draw.rectangle(
                    (x + 1, y + 1, x + 30, y + 30), fill=(228, 236, 240) if (row + column) % 2 else (120, 158, 192)
                )
    image.paste(_gradient(((176, 124, 78), (138, 92, 56)), _S - table), (0, table))
    for y in range(table + 12, _S, 16):
        _wave(draw, y, 2.5, rng, fill=(126, 84, 52), width=3)
    draw.rectangle((0, table, _S, table + 4), fill=(192, 142, 94))
    for item in scene.items:
        _place_item(draw, item, 208, (1.0, 1.0, 1.0), rng)
    return image


def _outdoors(scene: Scene, rng: np.random.Generator) -> Image.Image:
    horizon = int(rng.choice((128, 144)))
    light = LIGHT[scene.sky]
    image = _gradient(_SKY_GRADIENTS[scene.sky], _S)
    image.paste(_gradient(_SKY_GRADIENTS[scene.sky], horizon), (0, 0))
    draw = ImageDraw.Draw(image)
    _paint_sky(draw, scene.sky, horizon, rng)
    _paint_backdrop(draw, scene, horizon, rng)
    far, near = (_lit(c, light) for c in _GROUND_GRADIENTS[scene.ground])
    image.paste(_gradient((far, near), _S - horizon), (0, horizon))
    _paint_ground(draw, scene, horizon, rng)
    for item in sorted(scene.items, key=lambda i: i.kind not in AIR_OBJECTS):
        _place_item(draw, item, 208, light, rng)
    if scene.sky == "rain":
        _rain(draw, rng)
    return image


def render(scene: Scene, rng: np.random.Generator) -> Image.Image:
    """Paint a scene as an RGB image of SIZE x SIZE pixels. `rng` varies the positions and details."""
    big = (_indoors if scene.indoors else _outdoors)(scene, rng)
    return big.resize((SIZE, SIZE), Image.Resampling.BOX)
