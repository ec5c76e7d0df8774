"""Paints a :class:`model_making.scenes.Scene` with Pillow: 128 x 128 pixels, drawn at twice the size.

Difficulty is uneven on purpose: smooth skies, snow and plaster beside grass, bricks, water and
rain, so that a drafter finds easy and hard regions inside every picture. Horizons, things and repeated
patterns lie on the codec's lattice of 8-pixel cells: the same thing a cell further on is the same codes a cell
further on, and a small model learns in an hour what it can draw.
"""

from __future__ import annotations

import colorsys
import math

import numpy as np
from PIL import Image, ImageDraw

from .scenes import AIR_OBJECTS, COLOURS, PLACES, Item, Scene

SIZE = 128
_S = 2 * SIZE  # supersampled edge
_CELL = 16  # edge of a codec cell, supersampled

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
_LIGHT = {  # multiplies the ground; objects get half of it
    "clear": (1.0, 1.0, 1.0),
    "cloudy": (0.93, 0.94, 0.97),
    "sunset": (1.0, 0.84, 0.76),
    "night": (0.45, 0.5, 0.68),
    "rain": (0.78, 0.82, 0.88),
}

Colour = tuple[int, int, int]


def _mix(a: Colour, b: Colour, t: float) -> Colour:
    return tuple(int(round(x + (y - x) * t)) for x, y in zip(a, b))


def _lit(colour: Colour, light: tuple[float, float, float]) -> Colour:
    return tuple(min(255, int(c * f)) for c, f in zip(colour, light))


def _shade(colour: Colour, factor: float) -> Colour:
    """Lighter (factor above 1) or darker, keeping the hue."""
    h, light, s = colorsys.rgb_to_hls(*(c / 255 for c in colour))
    return tuple(int(255 * c) for c in colorsys.hls_to_rgb(h, min(0.95, light * factor), s))


def _gradient(stops: tuple[Colour, ...], height: int) -> Image.Image:
    """A vertical gradient of the supersampled width."""
    at = np.linspace(0, 1, len(stops))
    rows = np.stack([np.interp(np.linspace(0, 1, max(height, 1)), at, [s[c] for s in stops]) for c in range(3)], -1)
    return Image.fromarray(np.broadcast_to(rows[:, None].round().astype(np.uint8), (max(height, 1), _S, 3)).copy())


def _on_lattice(low: float, high: float, rng: np.random.Generator) -> int:
    """The cell corner nearest to a uniform draw."""
    return _CELL * round(rng.uniform(low, high) / _CELL)


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
        x = _on_lattice(0.15 * _S, 0.85 * _S, rng)
        y = horizon - 32 if sky == "sunset" else _on_lattice(26, 54, rng)
        r = {"clear": 17, "sunset": 26, "night": 17}[sky]
        disc = {"clear": (255, 244, 190), "sunset": (255, 236, 170), "night": (240, 238, 220)}[sky]
        draw.ellipse((x - r, y - r, x + r, y + r), fill=disc)
        if sky == "night":
            draw.ellipse((x - r + 9, y - r - 4, x + r + 9, y + r - 4), fill=(16, 22, 58))
            for _ in range(int(rng.integers(10, 16))):
                sx, sy, sr = _on_lattice(0, _S - 16, rng) + 8, _on_lattice(0, horizon - 56, rng) + 8, 2.2
                draw.ellipse((sx - sr, sy - sr, sx + sr, sy + sr), fill=(232, 232, 216))
    if sky in ("clear", "cloudy", "sunset"):
        count = {"clear": rng.integers(0, 3), "cloudy": rng.integers(4, 7), "sunset": rng.integers(1, 3)}[sky]
        tone = {"clear": (244, 248, 252), "cloudy": (222, 226, 232), "sunset": (240, 150, 120)}[sky]
        for _ in range(int(count)):
            _cloud(draw, _on_lattice(0, _S, rng), _on_lattice(16, horizon * 0.6, rng), rng.choice((20, 28)), tone)
    if sky == "rain":
        for _ in range(int(rng.integers(2, 5))):
            _cloud(draw, _on_lattice(0, _S, rng), _on_lattice(8, 40, rng), 32, (92, 100, 114))


def _rain(draw: ImageDraw.ImageDraw, rng: np.random.Generator) -> None:
    for y in range(0, _S, 32):
        for x in range(0, _S, 32):
            x0, y0, length = x + rng.choice((7, 23)), y + rng.choice((0, 16)), 16
            draw.line((x0, y0, x0 - 0.35 * length, y0 + length), fill=(158, 172, 188), width=2)


def _paint_backdrop(draw: ImageDraw.ImageDraw, scene: Scene, horizon: int, rng: np.random.Generator) -> None:
    light = _LIGHT[scene.sky]
    if scene.backdrop == "mountains":
        for _ in range(int(rng.integers(2, 4))):
            x, h, w = _on_lattice(0, _S, rng), _on_lattice(46, 80, rng), 80
            rock = _lit((116, 124, 146), light)
            draw.polygon([(x - w, horizon), (x, horizon - h), (x + w, horizon)], fill=rock)
            draw.polygon([(x, horizon - h), (x + w, horizon), (x + 0.25 * w, horizon)], fill=_shade(rock, 0.84))
            cap = 0.28
            draw.polygon(
                [(x - cap * w, horizon - h * (1 - cap)), (x, horizon - h), (x + cap * w, horizon - h * (1 - cap))],
                fill=_lit((238, 240, 246), light),
            )
    elif scene.backdrop == "hills":
        far = {"snow": (206, 216, 230), "sand": (214, 190, 140)}.get(scene.ground, (112, 150, 104))
        for shade, lift in ((1.1, 34), (0.95, 18)):
            x, w = _on_lattice(0, _S, rng), 128
            for centre in (x - 1.3 * w, x, x + 1.3 * w):
                draw.ellipse(
                    (centre - w, horizon - lift, centre + w, horizon + 2 * lift), fill=_shade(_lit(far, light), shade)
                )
    elif scene.backdrop == "forest":
        for x in range(0, _S + 16, 16):
            h, tone = rng.choice((32, 44)), _shade(_lit((44, 84, 62), light), rng.choice((0.92, 1.12)))
            draw.polygon([(x - 13, horizon), (x, horizon - h), (x + 13, horizon)], fill=tone)


# ---- grounds -------------------------------------------------------------------------------


def _paint_ground(draw: ImageDraw.ImageDraw, scene: Scene, horizon: int, rng: np.random.Generator) -> None:
    light = _LIGHT[scene.sky]
    near = _lit(_GROUND_GRADIENTS[scene.ground][1], light)
    if scene.ground == "grass":
        for y in range(horizon + 10, _S, 16):
            depth = (y - horizon) / (_S - horizon)
            for x in range(8, _S, 16):
                px, h, tone = x + rng.choice((-4, 3)), 5 + 11 * depth, _shade(near, rng.choice([0.78, 0.88, 1.18]))
                draw.polygon([(px - 3, y + 4), (px + rng.choice((-3, 3)), y + 4 - h), (px + 3, y + 4)], fill=tone)
        for _ in range(int(rng.integers(0, 6))):
            x, y = _on_lattice(0, _S, rng) + 8, _on_lattice(horizon + 30, _S - 16, rng) + 8
            draw.ellipse((x - 4, y - 4, x + 4, y + 4), fill=_lit((246, 236, 190), light))
    elif scene.ground == "sand":
        draw.rectangle((0, horizon, _S, horizon + 14), fill=_lit((92, 164, 190), light))
        draw.line(
            [(x, horizon + 15 + 2 * math.sin(x / 19)) for x in range(0, _S + 8, 8)],
            fill=_lit((240, 244, 240), light),
            width=4,
        )
        for y in range(horizon + 24, _S, 16):
            phase, tone = rng.integers(8), _shade(near, 0.91)
            draw.line(
                [(x, y + 3 * math.sin((x / 128 + phase / 8) * 2 * math.pi)) for x in range(0, _S + 8, 8)],
                fill=tone,
                width=4,
            )
    elif scene.ground == "snow":
        for y in range(horizon + 24, _S + 20, 32):
            x = _on_lattice(0, _S, rng)
            draw.ellipse((x - 120, y - 8, x + 120, y + 26), fill=_lit((218, 228, 242), light))
            draw.ellipse((x - 118, y - 3, x + 124, y + 30), fill=_lit((244, 248, 252), light))
    elif scene.ground == "water":
        for y in range(horizon + 8, _S, 16):
            depth = (y - horizon) / (_S - horizon)
            for x in range(0, _S, 32):
                px, w, up = x + 8 * rng.integers(4), 9 + 7 * depth, rng.random() < 0.5
                tone = _shade(near, 1.55 - 0.2 * depth) if up else _shade(near, 1.2)
                draw.arc((px - w, y - 4, px + w, y + 5), 200, 340, fill=tone, width=4)
    elif scene.ground == "cobblestone":
        row = 0
        y = float(horizon + 2)
        while y < _S:
            h = 9 + 9 * (y - horizon) / (_S - horizon)
            for x in np.arange(-((row % 2) * 0.9 * h), _S, 1.8 * h):
                tone = _lit(_mix((164, 158, 154), (122, 118, 122), rng.choice((0.1, 0.5, 0.9))), light)
                draw.rounded_rectangle((x + 1.5, y + 1.5, x + 1.8 * h - 1.5, y + h - 1), 4, fill=tone)
            y, row = y + h, row + 1


# ---- things --------------------------------------------------------------------------------
# Each draws with its foot at (x, y), `u` units tall overall, in colour c.


def _house(d, x, y, u, c, rng):
    w = 0.56 * u
    d.rectangle((x - w, y - 0.62 * u, x + w, y), fill=c)
    d.rectangle((x + 0.62 * w, y - 0.62 * u, x + w, y), fill=_shade(c, 0.82))
    d.polygon([(x - 1.2 * w, y - 0.6 * u), (x, y - 1.08 * u), (x + 1.2 * w, y - 0.6 * u)], fill=(92, 66, 58))
    d.rectangle((x - 0.2 * w, y - 0.36 * u, x + 0.2 * w, y), fill=(70, 50, 44))
    for side in (-0.62, 0.44):
        d.rectangle((x + (side - 0.02) * w, y - 0.5 * u, x + (side + 0.32) * w, y - 0.27 * u), fill=(250, 236, 176))


def _tent(d, x, y, u, c, rng):
    w = 0.72 * u
    d.polygon([(x - w, y), (x, y - 0.9 * u), (x + w, y)], fill=c)
    d.polygon([(x, y - 0.9 * u), (x + w, y), (x + 0.34 * w, y)], fill=_shade(c, 0.76))
    d.polygon([(x - 0.24 * w, y), (x, y - 0.58 * u), (x + 0.24 * w, y)], fill=(64, 52, 56))


def _ball(d, x, y, u, c, rng):
    r = 0.4 * u
    d.ellipse((x - r, y - 2 * r, x + r, y), fill=_shade(c, 0.86))
    d.ellipse((x - 0.92 * r, y - 1.96 * r, x + 0.76 * r, y - 0.26 * r), fill=c)
    d.ellipse((x - 0.55 * r, y - 1.7 * r, x - 0.12 * r, y - 1.3 * r), fill=_shade(c, 1.5))


def _car(d, x, y, u, c, rng):
    w = 0.78 * u
    d.rounded_rectangle((x - w, y - 0.46 * u, x + w, y - 0.1 * u), 0.12 * u, fill=c)
    d.polygon(
        [
            (x - 0.62 * w, y - 0.44 * u),
            (x - 0.4 * w, y - 0.76 * u),
            (x + 0.36 * w, y - 0.76 * u),
            (x + 0.66 * w, y - 0.44 * u),
        ],
        fill=_shade(c, 0.9),
    )
    d.polygon(
        [
            (x - 0.46 * w, y - 0.46 * u),
            (x - 0.32 * w, y - 0.68 * u),
            (x - 0.04 * w, y - 0.68 * u),
            (x - 0.04 * w, y - 0.46 * u),
        ],
        fill=(206, 228, 240),
    )
    d.polygon(
        [
            (x + 0.08 * w, y - 0.46 * u),
            (x + 0.08 * w, y - 0.68 * u),
            (x + 0.3 * w, y - 0.68 * u),
            (x + 0.5 * w, y - 0.46 * u),
        ],
        fill=(206, 228, 240),
    )
    for side in (-0.55, 0.55):
        d.ellipse((x + side * w - 0.16 * u, y - 0.3 * u, x + side * w + 0.16 * u, y + 0.02 * u), fill=(38, 36, 42))
        d.ellipse((x + side * w - 0.07 * u, y - 0.21 * u, x + side * w + 0.07 * u, y - 0.07 * u), fill=(186, 186, 190))


def _umbrella(d, x, y, u, c, rng):
    r = 0.6 * u
    d.line((x, y - 0.9 * u, x, y), fill=(120, 96, 80), width=5)
    d.pieslice((x - r, y - u, x + r, y - u + 2 * r * 0.92), 180, 360, fill=c)
    d.pieslice((x - 0.36 * r, y - u, x + 0.36 * r, y - u + 2 * r * 0.92), 180, 360, fill=_shade(c, 1.28))


def _flower(d, x, y, u, c, rng):
    d.line((x, y - 0.6 * u, x, y), fill=(58, 116, 54), width=6)
    d.ellipse((x, y - 0.34 * u, x + 0.3 * u, y - 0.18 * u), fill=(66, 130, 60))
    for k in range(6):
        a = k * math.pi / 3
        px, py, r = x + 0.23 * u * math.cos(a), y - 0.72 * u + 0.23 * u * math.sin(a), 0.17 * u
        d.ellipse((px - r, py - r, px + r, py + r), fill=c)
    d.ellipse((x - 0.13 * u, y - 0.85 * u, x + 0.13 * u, y - 0.59 * u), fill=(92, 62, 40))


def _sailboat(d, x, y, u, c, rng):
    d.line((x, y - u, x, y - 0.2 * u), fill=(90, 70, 60), width=5)
    d.polygon([(x + 4, y - 0.98 * u), (x + 4, y - 0.28 * u), (x + 0.56 * u, y - 0.28 * u)], fill=c)
    d.polygon([(x - 4, y - 0.84 * u), (x - 4, y - 0.28 * u), (x - 0.4 * u, y - 0.28 * u)], fill=_shade(c, 1.22))
    d.polygon(
        [
            (x - 0.55 * u, y - 0.2 * u),
            (x + 0.6 * u, y - 0.2 * u),
            (x + 0.4 * u, y + 0.03 * u),
            (x - 0.38 * u, y + 0.03 * u),
        ],
        fill=(112, 74, 52),
    )


def _rowboat(d, x, y, u, c, rng):
    d.line((x - 0.3 * u, y - 0.42 * u, x - 0.72 * u, y + 0.08 * u), fill=(120, 92, 66), width=5)
    d.polygon(
        [
            (x - 0.8 * u, y - 0.32 * u),
            (x + 0.8 * u, y - 0.32 * u),
            (x + 0.55 * u, y + 0.06 * u),
            (x - 0.55 * u, y + 0.06 * u),
        ],
        fill=c,
    )
    d.polygon(
        [
            (x - 0.8 * u, y - 0.32 * u),
            (x + 0.8 * u, y - 0.32 * u),
            (x + 0.72 * u, y - 0.2 * u),
            (x - 0.72 * u, y - 0.2 * u),
        ],
        fill=_shade(c, 1.25),
    )


def _balloon(d, x, y, u, c, rng):
    r = 0.5 * u
    d.line((x - 0.42 * r, y - 0.4 * u, x - 0.2 * r, y - 0.16 * u), fill=(90, 70, 60), width=3)
    d.line((x + 0.42 * r, y - 0.4 * u, x + 0.2 * r, y - 0.16 * u), fill=(90, 70, 60), width=3)
    d.ellipse((x - r, y - 1.24 * u, x + r, y - 0.3 * u), fill=c)
    d.ellipse((x - 0.44 * r, y - 1.24 * u, x + 0.44 * r, y - 0.3 * u), fill=_shade(c, 1.3))
    d.rectangle((x - 0.24 * r, y - 0.18 * u, x + 0.24 * r, y), fill=(126, 88, 56))


def _kite(d, x, y, u, c, rng):
    top, mid, w = y - u, y - 0.58 * u, 0.42 * u
    d.line(
        [(x, y - 0.1 * u), (x + 0.14 * u, y + 0.08 * u), (x - 0.1 * u, y + 0.26 * u), (x + 0.08 * u, y + 0.44 * u)],
        fill=(236, 236, 230),
        width=4,
    )
    d.polygon([(x, top), (x + w, mid), (x, y - 0.06 * u), (x - w, mid)], fill=c)
    d.polygon([(x, top), (x + w, mid), (x, mid)], fill=_shade(c, 1.3))
    d.polygon([(x, y - 0.06 * u), (x - w, mid), (x, mid)], fill=_shade(c, 0.78))


def _tree(d, x, y, u, c, rng):
    d.rectangle((x - 0.08 * u, y - 0.4 * u, x + 0.08 * u, y), fill=(98, 70, 48))
    for dx, dy, r, f in ((-0.22, 0.62, 0.3, 0.84), (0.24, 0.64, 0.3, 0.92), (0, 0.86, 0.34, 1.06)):
        d.ellipse(
            (x + (dx - r) * u, y - (dy + r) * u, x + (dx + r) * u, y - (dy - r) * u), fill=_shade((56, 112, 50), f)
        )


def _pine(d, x, y, u, c, rng):
    d.rectangle((x - 0.06 * u, y - 0.2 * u, x + 0.06 * u, y), fill=(92, 66, 48))
    for low, w, f in ((0.12, 0.44, 0.86), (0.42, 0.36, 1.0), (0.7, 0.27, 1.14)):
        d.polygon(
            [(x - w * u, y - low * u), (x, y - (low + 0.52) * u), (x + w * u, y - low * u)],
            fill=_shade((40, 96, 62), f),
        )


def _mug(d, x, y, u, c, rng):
    w = 0.34 * u
    d.ellipse((x + 0.6 * w, y - 0.58 * u, x + 1.8 * w, y - 0.14 * u), outline=_shade(c, 0.84), width=9)
    d.rounded_rectangle((x - w, y - 0.72 * u, x + w, y), 0.08 * u, fill=c)
    d.rectangle((x + 0.5 * w, y - 0.66 * u, x + w, y - 0.06 * u), fill=_shade(c, 0.84))
    d.ellipse((x - w, y - 0.8 * u, x + w, y - 0.64 * u), fill=_shade(c, 1.3))


def _vase(d, x, y, u, c, rng):
    for dx, tone in ((-0.3, (250, 240, 236)), (0.02, (244, 186, 196)), (0.32, (250, 240, 236))):
        d.line((x, y - 0.6 * u, x + dx * u, y - 0.98 * u), fill=(70, 122, 62), width=5)
        px, py, r = x + dx * u, y - (1.06 if dx == 0.02 else 0.98) * u, 0.15 * u
        d.ellipse((px - r, py - r, px + r, py + r), fill=tone)
        d.ellipse((px - 0.35 * r, py - 0.35 * r, px + 0.35 * r, py + 0.35 * r), fill=(236, 196, 90))
    d.ellipse((x - 0.28 * u, y - 0.5 * u, x + 0.28 * u, y + 0.02 * u), fill=c)
    d.polygon(
        [
            (x - 0.12 * u, y - 0.68 * u),
            (x + 0.12 * u, y - 0.68 * u),
            (x + 0.18 * u, y - 0.4 * u),
            (x - 0.18 * u, y - 0.4 * u),
        ],
        fill=c,
    )
    d.ellipse((x - 0.18 * u, y - 0.4 * u, x - 0.04 * u, y - 0.2 * u), fill=_shade(c, 1.35))


def _teapot(d, x, y, u, c, rng):
    d.ellipse((x - 0.76 * u, y - 0.56 * u, x - 0.3 * u, y - 0.14 * u), outline=_shade(c, 0.84), width=8)
    d.polygon(
        [
            (x + 0.3 * u, y - 0.14 * u),
            (x + 0.78 * u, y - 0.6 * u),
            (x + 0.62 * u, y - 0.6 * u),
            (x + 0.3 * u, y - 0.36 * u),
        ],
        fill=_shade(c, 0.86),
    )
    d.ellipse((x - 0.5 * u, y - 0.66 * u, x + 0.5 * u, y + 0.02 * u), fill=c)
    d.ellipse((x - 0.26 * u, y - 0.74 * u, x + 0.26 * u, y - 0.54 * u), fill=_shade(c, 1.25))
    d.ellipse((x - 0.07 * u, y - 0.84 * u, x + 0.07 * u, y - 0.7 * u), fill=_shade(c, 0.8))


def _lamp(d, x, y, u, c, rng):
    d.rectangle((x - 0.05 * u, y - 0.56 * u, x + 0.05 * u, y), fill=(110, 84, 60))
    d.ellipse((x - 0.26 * u, y - 0.12 * u, x + 0.26 * u, y + 0.02 * u), fill=(110, 84, 60))
    d.polygon(
        [
            (x - 0.26 * u, y - 1.06 * u),
            (x + 0.26 * u, y - 1.06 * u),
            (x + 0.5 * u, y - 0.5 * u),
            (x - 0.5 * u, y - 0.5 * u),
        ],
        fill=c,
    )
    d.polygon(
        [
            (x - 0.26 * u, y - 1.06 * u),
            (x - 0.06 * u, y - 1.06 * u),
            (x - 0.12 * u, y - 0.5 * u),
            (x - 0.5 * u, y - 0.5 * u),
        ],
        fill=_shade(c, 1.25),
    )


def _bowl(d, x, y, u, c, rng):
    for dx, tone in ((-0.26, (206, 62, 52)), (0.26, (240, 170, 60)), (0.0, (134, 176, 70))):
        px, py, r = x + dx * u, y - 0.52 * u, 0.2 * u
        d.ellipse((px - r, py - r, px + r, py + r), fill=tone)
    d.pieslice((x - 0.6 * u, y - 1.0 * u, x + 0.6 * u, y + 0.06 * u), 0, 180, fill=c)
    d.rectangle((x - 0.6 * u, y - 0.5 * u, x + 0.6 * u, y - 0.42 * u), fill=_shade(c, 1.25))


_PAINTERS = {
    name[1:]: function
    for name, function in list(globals().items())
    if name[1:]
    in {
        "house",
        "tent",
        "ball",
        "car",
        "umbrella",
        "flower",
        "sailboat",
        "rowboat",
        "balloon",
        "kite",
        "tree",
        "pine",
        "mug",
        "vase",
        "teapot",
        "lamp",
        "bowl",
    }
}
_HEIGHTS = {
    "house": 84,
    "tent": 80,
    "ball": 72,
    "car": 64,
    "umbrella": 92,
    "flower": 84,
    "sailboat": 96,
    "rowboat": 60,
    "balloon": 74,
    "kite": 66,
    "tree": 84,
    "pine": 90,
    "mug": 72,
    "vase": 82,
    "teapot": 68,
    "lamp": 92,
    "bowl": 70,
}


def _place_item(draw: ImageDraw.ImageDraw, item: Item, foot: float, light, rng: np.random.Generator) -> None:
    u = _HEIGHTS[item.kind]
    x = _on_lattice(PLACES[item.place] * _S - 12, PLACES[item.place] * _S + 12, rng)
    y = _on_lattice(foot - 12, foot + 12, rng)
    half = tuple(0.5 + 0.5 * f for f in light)
    if item.kind in AIR_OBJECTS:
        y = _on_lattice(92, 116, rng)
    else:
        draw.ellipse(
            (x - 0.5 * u, y - 5, x + 0.56 * u, y + 7),
            fill=None if item.kind in ("sailboat", "rowboat") else _lit((96, 92, 88), half),
        )
    colour = _lit(COLOURS[item.colour], half) if item.colour else None
    _PAINTERS[item.kind](draw, x, y, u, colour, rng)


# ---- pictures ------------------------------------------------------------------------------


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
        phase = rng.integers(8)
        draw.line(
            [(x, y + 2.5 * math.sin((x / 128 + phase / 8) * 2 * math.pi)) for x in range(0, _S + 8, 8)],
            fill=(126, 84, 52),
            width=3,
        )
    draw.rectangle((0, table, _S, table + 4), fill=(192, 142, 94))
    for item in scene.items:
        _place_item(draw, item, 208, (1.0, 1.0, 1.0), rng)
    return image


def _outdoors(scene: Scene, rng: np.random.Generator) -> Image.Image:
    horizon = int(rng.choice((128, 144)))
    light = _LIGHT[scene.sky]
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
    """Paint a scene: an RGB image of SIZE x SIZE pixels."""
    big = (_indoors if scene.indoors else _outdoors)(scene, rng)
    return big.resize((SIZE, SIZE), Image.Resampling.BOX)
