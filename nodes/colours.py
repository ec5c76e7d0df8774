"""Colour scale of acceptance maps, identical to js/colours.js.

The scale is a curve through the OKLab colour space (B. Ottosson, "A perceptual color space for image processing",
2020), from dark blue through green to light yellow. Neighbouring colours have equal distances, so equal differences
between values look equal. Lightness increases along the scale. So readers with any kind of colour blindness, or with a
black-and-white print, can still distinguish low values from high values.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

# Control points [L, a, b] of a quadratic Bezier curve in OKLab.
_CURVE = np.array([[0.30, 0.02, -0.13], [0.60, -0.16, -0.02], [0.93, -0.03, 0.15]])
_TO_LMS = np.array(
    [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.2914855480]]
)
_TO_RGB = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


@lru_cache(maxsize=1)
def scale() -> np.ndarray:
    """Return the scale as [256, 3] uint8 sRGB, dark to light."""
    t = np.linspace(0, 1, 2049)[:, None]
    curve = (1 - t) ** 2 * _CURVE[0] + 2 * t * (1 - t) * _CURVE[1] + t**2 * _CURVE[2]
    length = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(curve, axis=0), axis=1))])
    even = np.stack([np.interp(np.linspace(0, length[-1], 256), length, channel) for channel in curve.T], 1)
    linear = ((even @ _TO_LMS.T) ** 3 @ _TO_RGB.T).clip(0, 1)
    srgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.floor(srgb * 255 + 0.5).astype(np.uint8)
