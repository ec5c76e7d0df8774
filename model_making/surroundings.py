"""What is around the things in a picture: sky, ground and backdrop, or wall and table.

Sky or wall, and ground or table, are the nearest prototypes of the colours at the top and at the bottom. Prototypes are
means over the generator's own renders, plain and degraded, of a seed kept for this. Skies and walls compete with each
other, so do grounds (under every light) and the table. A region far from all of them is none. The backdrop is that of
the most similar of some hundred landscapes without things, by the colours in three bands of rows down to the horizon;
where things stand in the picture, it is not looked at.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from PIL import Image, ImageFilter

from .finding import Found
from .render import SIZE, render
from .scenes import AIR_OBJECTS, BACKDROPS, GROUNDS, SKIES, WALLS, Scene, sample_scene

CALIBRATION_SEED = 777  # neither the training set's seed nor one that anything is measured on
_LEAST_SPREAD, _CLIP, _FARTHEST = 6.0, 36.0, 9.0  # of features; most of one, and mean of all squared deviations
_PER_CLASS = 8  # renders
_BANDS = ((30, 44), (44, 54), (54, 63))  # rows; the horizon is at 64 or 72
_SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of a band's pixels that are darker, redder or yellower
_HALF_WIDTH, _ABOVE = 28, 52  # of the box around a thing, from its foot
_BELOW = {True: 18, False: 2}  # a kite has a tail
_LEAST_PIXELS = 60  # of a band that things cover
_FARTHEST_SHARE = 40.0  # most that one feature of a band counts
_EXAMPLES = 4  # of each combination


def _planes(image: np.ndarray) -> np.ndarray:
    """[3, height, width], without single-pixel noise: brightness, red-green and yellow-blue. Distances in it follow
    what the eye tells apart."""
    r, g, b = np.moveaxis(np.asarray(Image.fromarray(image).filter(ImageFilter.BoxBlur(1)), np.float32), -1, 0)
    return np.stack([(r + g + b) / 3, r - g, (r + g) / 2 - b])


def degrade(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What a codec at half the resolution loses: fine detail, JPEG-like colour errors, some noise."""
    small = Image.fromarray(image).resize((SIZE // 2, SIZE // 2), Image.Resampling.BOX)
    buffer = io.BytesIO()
    small.resize((SIZE, SIZE), Image.Resampling.BILINEAR).save(buffer, "JPEG", quality=40)
    pixels = np.asarray(Image.open(buffer).convert("RGB"), np.float32)
    return np.clip(pixels + rng.normal(0, 8, pixels.shape), 0, 255).round().astype(np.uint8)


def _spread(region: np.ndarray) -> np.ndarray:
    return np.quantile(region.reshape(3, -1), (0.2, 0.5, 0.8), axis=1).ravel()


def _regions(planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the upper region (sky or wall) and of the lower one (ground or table, with the light above as context)."""
    top = _spread(planes[:, 2:32])
    upper = np.concatenate([top, np.median(planes[:, 32:52], (1, 2))])
    lower = np.concatenate([_spread(planes[:, 110:126]), np.median(planes[:, 84:110], (1, 2)), top[3:6]])
    return upper, lower


@lru_cache(maxsize=1)
def _prototypes() -> list[tuple[list, np.ndarray, np.ndarray]]:
    """Classes, means and spreads of the features: upper by sky or wall, lower by (ground, sky) or (table, wall)."""
    rng, seen = np.random.default_rng(CALIBRATION_SEED), defaultdict(list)
    wanted = {(g, s) for g in GROUNDS for s in SKIES} | {("table", w) for w in WALLS}
    while wanted:
        scene = sample_scene(rng)
        key = (scene.ground or "table", scene.sky or scene.wall)
        if key in wanted:
            image = np.asarray(render(scene, rng))
            seen[key] += [_regions(_planes(one)) for one in (image, degrade(image, rng))]
            if len(seen[key]) == 2 * _PER_CLASS:
                wanted.remove(key)
    upper, lower = defaultdict(list), {}
    for key, pairs in seen.items():
        upper[key[1]] += [u for u, _ in pairs]
        lower[key] = [v for _, v in pairs]
    means = ([np.mean(rows, 0) for rows in group.values()] for group in (upper, lower))
    spreads = ([np.hypot(np.std(rows, 0), _LEAST_SPREAD) for rows in group.values()] for group in (upper, lower))
    return [(list(group), np.array(m), np.array(s)) for group, m, s in zip((upper, lower), means, spreads)]


def _nearest(features: np.ndarray, prototypes: tuple[list, np.ndarray, np.ndarray]):
    """The class whose prototype is closest in units of its own spread; None if none is close."""
    keys, means, spreads = prototypes
    squares = np.minimum(((features - means) / spreads) ** 2, _CLIP).mean(1)  # clipped: an item may cover a part
    best = int(np.argmin(0.5 * squares + np.log(spreads).mean(1)))
    return keys[best] if squares[best] < _FARTHEST else None


def _bands(planes: np.ndarray, free: np.ndarray) -> np.ndarray:
    """[45]: per band, share and plane. free [SIZE, SIZE]: which pixels may be looked at."""
    rows = []
    for low, high in _BANDS:
        band, open_ = planes[:, low:high], free[low:high]
        pixels = band[:, open_] if open_.sum() > _LEAST_PIXELS else band.reshape(3, -1)
        rows.append(np.quantile(pixels, _SHARES, axis=1).ravel())
    return np.concatenate(rows)


@lru_cache(maxsize=1)
def _landscapes() -> tuple[np.ndarray, list[str]]:
    """Features [count, 45] of landscapes without things, and their backdrops."""
    rng, free = np.random.default_rng(CALIBRATION_SEED), np.ones((SIZE, SIZE), bool)
    features, names = [], []
    for sky in SKIES:
        for backdrop in BACKDROPS:
            for ground in np.repeat(GROUNDS, _EXAMPLES):
                scene = Scene((), ground=str(ground), sky=sky, backdrop=backdrop)
                features.append(_bands(_planes(np.asarray(render(scene, rng))), free))
                names.append(backdrop)
    return np.array(features), names


def _backdrop(planes: np.ndarray, things: Iterable[Found]) -> str:
    free = np.ones((SIZE, SIZE), bool)
    for thing in things:
        bottom, left = thing.y + _BELOW[thing.kind in AIR_OBJECTS], max(0, thing.x - _HALF_WIDTH)
        free[max(0, thing.y - _ABOVE) : bottom, left : thing.x + _HALF_WIDTH] = False
    features, names = _landscapes()
    distances = np.minimum(np.abs(features - _bands(planes, free)), _FARTHEST_SHARE).mean(1)
    return names[int(distances.argmin())]


def surroundings(image: np.ndarray, things: Iterable[Found]) -> set[str]:
    """``sky:night``, ``ground:snow``, ``backdrop:hills``, ``wall:brick`` and ``table:wooden``: those that are seen.

    image: uint8 [SIZE, SIZE, 3]. things: the things in it, as ``model_making.finding.find`` tells them.
    """
    planes = _planes(image)
    above, below = (_nearest(features, known) for features, known in zip(_regions(planes), _prototypes()))
    seen = set()
    if above:
        seen.add(f"{'wall' if above in WALLS else 'sky'}:{above}")
    if below:
        seen.add("table:wooden" if below[0] == "table" else f"ground:{below[0]}")
    if above in SKIES:
        seen.add(f"backdrop:{_backdrop(planes, things)}")
    return seen
