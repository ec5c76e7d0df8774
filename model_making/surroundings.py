"""What is around the things in a picture: sky, ground and backdrop, or wall and table.

Sky, wall, ground and table are told by ``model_making.attributes``. The backdrop is that of the most similar of some
hundred landscapes without things, by the colours in three bands of rows down to the horizon. Where things stand in the
picture, it is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from .attributes import CALIBRATION_SEED, opponent_planes, regions, smooth
from .finding import Found
from .render import SIZE, render
from .scenes import AIR_OBJECTS, BACKDROPS, GROUNDS, SKIES, WALLS, Scene

_BANDS = ((30, 44), (44, 54), (54, 63))  # rows; the horizon is at 64 or 72
_SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of a band's pixels that are darker, redder or yellower
_HALF_WIDTH, _ABOVE = 28, 52  # of the box around a thing, from its foot
_BELOW = {True: 18, False: 2}  # a kite has a tail
_LEAST_PIXELS = 60  # of a band that things cover
_FARTHEST = 40.0  # most that one feature counts
_EXAMPLES = 4  # of each combination


def _features(rgb: np.ndarray, free: np.ndarray) -> np.ndarray:
    """[45]: per band, share and plane. rgb: of ``smooth``. free [SIZE, SIZE]: which pixels may be looked at."""
    planes, rows = opponent_planes(rgb), []
    for low, high in _BANDS:
        band, open_ = planes[:, low:high], free[low:high]
        pixels = band[:, open_] if open_.sum() > _LEAST_PIXELS else band.reshape(3, -1)
        rows.append(np.quantile(pixels, _SHARES, axis=1).ravel())
    return np.concatenate(rows)


@lru_cache(maxsize=1)
def _examples() -> tuple[np.ndarray, list[str]]:
    """Features [count, 45] of landscapes without things, and their backdrops."""
    rng, free = np.random.default_rng(CALIBRATION_SEED), np.ones((SIZE, SIZE), bool)
    features, names = [], []
    for sky in SKIES:
        for backdrop in BACKDROPS:
            for ground in np.repeat(GROUNDS, _EXAMPLES):
                scene = Scene((), ground=str(ground), sky=sky, backdrop=backdrop)
                features.append(_features(smooth(np.asarray(render(scene, rng))), free))
                names.append(backdrop)
    return np.array(features), names


def _backdrop(rgb: np.ndarray, things: Iterable[Found]) -> str:
    free = np.ones((SIZE, SIZE), bool)
    for thing in things:
        bottom, left = thing.y + _BELOW[thing.kind in AIR_OBJECTS], max(0, thing.x - _HALF_WIDTH)
        free[max(0, thing.y - _ABOVE) : bottom, left : thing.x + _HALF_WIDTH] = False
    features, names = _examples()
    distances = np.minimum(np.abs(features - _features(rgb, free)), _FARTHEST).mean(1)
    return names[int(distances.argmin())]


def surroundings(image: np.ndarray, things: Iterable[Found]) -> set[str]:
    """``sky:night``, ``ground:snow``, ``backdrop:hills``, ``wall:brick`` and ``table:wooden``: those that are seen.

    image: uint8 [SIZE, SIZE, 3]. things: the things in it, as ``model_making.finding.find`` tells them.
    """
    rgb = smooth(image)
    above, below = regions(rgb)
    seen = set()
    if above:
        seen.add(f"{'wall' if above in WALLS else 'sky'}:{above}")
    if below:
        seen.add("table:wooden" if below == "table" else f"ground:{below}")
    if above in SKIES:
        seen.add(f"backdrop:{_backdrop(rgb, things)}")
    return seen


def names_of(scene: Scene) -> set[str]:
    """The same of a scene."""
    if scene.indoors:
        return {f"wall:{scene.wall}", "table:wooden"}
    return {f"sky:{scene.sky}", f"ground:{scene.ground}", f"backdrop:{scene.backdrop}"}
