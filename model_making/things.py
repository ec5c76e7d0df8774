"""The things of a scene. Each function draws one with its foot at (x, y), ``u`` pixels tall, in colour ``c``."""

from __future__ import annotations

import colorsys
import math

Colour = tuple[int, int, int]


def shade(colour: Colour, factor: float) -> Colour:
    """Lighter (factor above 1) or darker, keeping the hue."""
    h, light, s = colorsys.rgb_to_hls(*(c / 255 for c in colour))
    return tuple(int(255 * c) for c in colorsys.hls_to_rgb(h, min(0.95, light * factor), s))


def house(d, x, y, u, c, rng):
    w = 0.56 * u
    d.rectangle((x - w, y - 0.62 * u, x + w, y), fill=c)
    d.rectangle((x + 0.62 * w, y - 0.62 * u, x + w, y), fill=shade(c, 0.82))
    d.polygon([(x - 1.2 * w, y - 0.6 * u), (x, y - 1.08 * u), (x + 1.2 * w, y - 0.6 * u)], fill=(92, 66, 58))
    d.rectangle((x - 0.2 * w, y - 0.36 * u, x + 0.2 * w, y), fill=(70, 50, 44))
    for side in (-0.62, 0.44):
        d.rectangle((x + (side - 0.02) * w, y - 0.5 * u, x + (side + 0.32) * w, y - 0.27 * u), fill=(250, 236, 176))


def tent(d, x, y, u, c, rng):
    w = 0.72 * u
    d.polygon([(x - w, y), (x, y - 0.9 * u), (x + w, y)], fill=c)
    d.polygon([(x, y - 0.9 * u), (x + w, y), (x + 0.34 * w, y)], fill=shade(c, 0.76))
    d.polygon([(x - 0.24 * w, y), (x, y - 0.58 * u), (x + 0.24 * w, y)], fill=(64, 52, 56))


def ball(d, x, y, u, c, rng):
    r = 0.4 * u
    d.ellipse((x - r, y - 2 * r, x + r, y), fill=shade(c, 0.86))
    d.ellipse((x - 0.92 * r, y - 1.96 * r, x + 0.76 * r, y - 0.26 * r), fill=c)
    d.ellipse((x - 0.55 * r, y - 1.7 * r, x - 0.12 * r, y - 1.3 * r), fill=shade(c, 1.5))


def car(d, x, y, u, c, rng):
    w = 0.78 * u
    d.rounded_rectangle((x - w, y - 0.46 * u, x + w, y - 0.1 * u), 0.12 * u, fill=c)
    d.polygon(
        [
            (x - 0.62 * w, y - 0.44 * u),
            (x - 0.4 * w, y - 0.76 * u),
            (x + 0.36 * w, y - 0.76 * u),
            (x + 0.66 * w, y - 0.44 * u),
        ],
        fill=shade(c, 0.9),
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


def umbrella(d, x, y, u, c, rng):
    r = 0.6 * u
    d.line((x, y - 0.9 * u, x, y), fill=(120, 96, 80), width=5)
    d.pieslice((x - r, y - u, x + r, y - u + 2 * r * 0.92), 180, 360, fill=c)
    d.pieslice((x - 0.36 * r, y - u, x + 0.36 * r, y - u + 2 * r * 0.92), 180, 360, fill=shade(c, 1.28))


def flower(d, x, y, u, c, rng):
    d.line((x, y - 0.6 * u, x, y), fill=(58, 116, 54), width=6)
    d.ellipse((x, y - 0.34 * u, x + 0.3 * u, y - 0.18 * u), fill=(66, 130, 60))
    for k in range(6):
        a = k * math.pi / 3
        px, py, r = x + 0.23 * u * math.cos(a), y - 0.72 * u + 0.23 * u * math.sin(a), 0.17 * u
        d.ellipse((px - r, py - r, px + r, py + r), fill=c)
    d.ellipse((x - 0.13 * u, y - 0.85 * u, x + 0.13 * u, y - 0.59 * u), fill=(92, 62, 40))


def sailboat(d, x, y, u, c, rng):
    d.line((x, y - u, x, y - 0.2 * u), fill=(90, 70, 60), width=5)
    d.polygon([(x + 4, y - 0.98 * u), (x + 4, y - 0.28 * u), (x + 0.56 * u, y - 0.28 * u)], fill=c)
    d.polygon([(x - 4, y - 0.84 * u), (x - 4, y - 0.28 * u), (x - 0.4 * u, y - 0.28 * u)], fill=shade(c, 1.22))
    d.polygon(
        [
            (x - 0.55 * u, y - 0.2 * u),
            (x + 0.6 * u, y - 0.2 * u),
            (x + 0.4 * u, y + 0.03 * u),
            (x - 0.38 * u, y + 0.03 * u),
        ],
        fill=(112, 74, 52),
    )


def rowboat(d, x, y, u, c, rng):
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
        fill=shade(c, 1.25),
    )


def balloon(d, x, y, u, c, rng):
    r = 0.5 * u
    d.line((x - 0.42 * r, y - 0.4 * u, x - 0.2 * r, y - 0.16 * u), fill=(90, 70, 60), width=3)
    d.line((x + 0.42 * r, y - 0.4 * u, x + 0.2 * r, y - 0.16 * u), fill=(90, 70, 60), width=3)
    d.ellipse((x - r, y - 1.24 * u, x + r, y - 0.3 * u), fill=c)
    d.ellipse((x - 0.44 * r, y - 1.24 * u, x + 0.44 * r, y - 0.3 * u), fill=shade(c, 1.3))
    d.rectangle((x - 0.24 * r, y - 0.18 * u, x + 0.24 * r, y), fill=(126, 88, 56))


def kite(d, x, y, u, c, rng):
    top, mid, w = y - u, y - 0.58 * u, 0.42 * u
    d.line(
        [(x, y - 0.1 * u), (x + 0.14 * u, y + 0.08 * u), (x - 0.1 * u, y + 0.26 * u), (x + 0.08 * u, y + 0.44 * u)],
        fill=(236, 236, 230),
        width=4,
    )
    d.polygon([(x, top), (x + w, mid), (x, y - 0.06 * u), (x - w, mid)], fill=c)
    d.polygon([(x, top), (x + w, mid), (x, mid)], fill=shade(c, 1.3))
    d.polygon([(x, y - 0.06 * u), (x - w, mid), (x, mid)], fill=shade(c, 0.78))


def tree(d, x, y, u, c, rng):
    d.rectangle((x - 0.08 * u, y - 0.4 * u, x + 0.08 * u, y), fill=(98, 70, 48))
    for dx, dy, r, f in ((-0.22, 0.62, 0.3, 0.84), (0.24, 0.64, 0.3, 0.92), (0, 0.86, 0.34, 1.06)):
        d.ellipse(
            (x + (dx - r) * u, y - (dy + r) * u, x + (dx + r) * u, y - (dy - r) * u), fill=shade((56, 112, 50), f)
        )


def pine(d, x, y, u, c, rng):
    d.rectangle((x - 0.06 * u, y - 0.2 * u, x + 0.06 * u, y), fill=(92, 66, 48))
    for low, w, f in ((0.12, 0.44, 0.86), (0.42, 0.36, 1.0), (0.7, 0.27, 1.14)):
        d.polygon(
            [(x - w * u, y - low * u), (x, y - (low + 0.52) * u), (x + w * u, y - low * u)],
            fill=shade((40, 96, 62), f),
        )


def mug(d, x, y, u, c, rng):
    w = 0.34 * u
    d.ellipse((x + 0.6 * w, y - 0.58 * u, x + 1.8 * w, y - 0.14 * u), outline=shade(c, 0.84), width=9)
    d.rounded_rectangle((x - w, y - 0.72 * u, x + w, y), 0.08 * u, fill=c)
    d.rectangle((x + 0.5 * w, y - 0.66 * u, x + w, y - 0.06 * u), fill=shade(c, 0.84))
    d.ellipse((x - w, y - 0.8 * u, x + w, y - 0.64 * u), fill=shade(c, 1.3))


def vase(d, x, y, u, c, rng):
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
    d.ellipse((x - 0.18 * u, y - 0.4 * u, x - 0.04 * u, y - 0.2 * u), fill=shade(c, 1.35))


def teapot(d, x, y, u, c, rng):
    d.ellipse((x - 0.76 * u, y - 0.56 * u, x - 0.3 * u, y - 0.14 * u), outline=shade(c, 0.84), width=8)
    d.polygon(
        [
            (x + 0.3 * u, y - 0.14 * u),
            (x + 0.78 * u, y - 0.6 * u),
            (x + 0.62 * u, y - 0.6 * u),
            (x + 0.3 * u, y - 0.36 * u),
        ],
        fill=shade(c, 0.86),
    )
    d.ellipse((x - 0.5 * u, y - 0.66 * u, x + 0.5 * u, y + 0.02 * u), fill=c)
    d.ellipse((x - 0.26 * u, y - 0.74 * u, x + 0.26 * u, y - 0.54 * u), fill=shade(c, 1.25))
    d.ellipse((x - 0.07 * u, y - 0.84 * u, x + 0.07 * u, y - 0.7 * u), fill=shade(c, 0.8))


def lamp(d, x, y, u, c, rng):
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
        fill=shade(c, 1.25),
    )


def bowl(d, x, y, u, c, rng):
    for dx, tone in ((-0.26, (206, 62, 52)), (0.26, (240, 170, 60)), (0.0, (134, 176, 70))):
        px, py, r = x + dx * u, y - 0.52 * u, 0.2 * u
        d.ellipse((px - r, py - r, px + r, py + r), fill=tone)
    d.pieslice((x - 0.6 * u, y - 1.0 * u, x + 0.6 * u, y + 0.06 * u), 0, 180, fill=c)
    d.rectangle((x - 0.6 * u, y - 0.5 * u, x + 0.6 * u, y - 0.42 * u), fill=shade(c, 1.25))


THINGS = {
    "house": (house, 84),
    "tent": (tent, 80),
    "ball": (ball, 72),
    "car": (car, 64),
    "umbrella": (umbrella, 92),
    "flower": (flower, 84),
    "sailboat": (sailboat, 96),
    "rowboat": (rowboat, 60),
    "balloon": (balloon, 74),
    "kite": (kite, 66),
    "tree": (tree, 84),
    "pine": (pine, 90),
    "mug": (mug, 72),
    "vase": (vase, 82),
    "teapot": (teapot, 68),
    "lamp": (lamp, 92),
    "bowl": (bowl, 70),
}
"""By the name of a kind: what draws it, and how tall it is."""
