"""Classifier for an image's background: sky, ground and backdrop, or wall and table.

The image is divided into an upper region (sky or wall) and a lower region (ground or table). Each region gets the class
of the prototype with the most similar colour statistics. If no prototype is similar enough, the region gets no class.
A prototype is the mean colour statistics of rendered images and of degraded copies of these images. The seed of these
images is used only for calibration.

The backdrop is found by comparing the image with rendered landscapes without objects. The comparison uses colour
quantiles in three bands of rows above the horizon, without the pixels of detected objects. The image gets the backdrop
of the most similar landscape.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFilter

from .detector import Detection
from .render import SIZE, render
from .scenes import AIR_OBJECTS, BACKDROPS, GROUNDS, SKIES, WALLS, Scene, sample_scene

# This seed is used only here, not for training data and not for evaluation.
CALIBRATION_SEED = 777
# Number of rendered images per prototype, and number of landscapes per combination of sky, ground and backdrop.
_RENDERS_PER_CLASS = 8
_LANDSCAPES_PER_CLASS = 4
# Each feature's distance from a prototype's mean is divided by sqrt(standard deviation ** 2 + _MIN_SPREAD ** 2). The
# square of this quotient is clipped to _MAX_FEATURE_DISTANCE. If the mean of the clipped squares over all features is
# _MAX_DISTANCE or more, the region gets no class.
_MIN_SPREAD = 6.0
_MAX_FEATURE_DISTANCE = 36.0
_MAX_DISTANCE = 9.0
# First and last row (exclusive) of the bands that show the backdrop. The horizon is at row 64 or 72.
_BANDS = ((30, 44), (44, 54), (54, 63))
_QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
_MAX_QUANTILE_DISTANCE = 40.0
# If objects leave at most this number of free pixels in a band, all pixels of the band are used.
_MIN_FREE_PIXELS = 60
# Box around an object, in pixels from the object's foot (the point (x, y) of a detection). The key of _BOX_BELOW is
# whether the object is in the air. Boxes in the air extend further down, because the tail of a kite hangs below its
# foot.
_BOX_HALF_WIDTH = 28
_BOX_ABOVE = 52
_BOX_BELOW = {True: 18, False: 2}


class _Prototypes(NamedTuple):
    """Nearest-prototype classifier: class names, means [classes, features] and spreads [classes, features]."""

    classes: list
    means: np.ndarray
    spreads: np.ndarray


def _colour_planes(image: np.ndarray) -> np.ndarray:
    """Blur an image and convert it to the three planes brightness, red-green and yellow-blue.

    The blur removes noise of single pixels. Distances in these planes correspond better to perceived differences than
    RGB distances.

    Args:
        image: [height, width, 3] uint8.

    Returns:
        [3, height, width] float32.
    """
    r, g, b = np.moveaxis(np.asarray(Image.fromarray(image).filter(ImageFilter.BoxBlur(1)), np.float32), -1, 0)
    return np.stack([(r + g + b) / 3, r - g, (r + g) / 2 - b])


def degrade(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Degrade an image about as much as a weak codec does: half the resolution, JPEG artefacts and noise.

    Args:
        image: [SIZE, SIZE, 3] uint8.

    Returns:
        [SIZE, SIZE, 3] uint8.
    """
    small = Image.fromarray(image).resize((SIZE // 2, SIZE // 2), Image.Resampling.BOX)
    buffer = io.BytesIO()
    small.resize((SIZE, SIZE), Image.Resampling.BILINEAR).save(buffer, "JPEG", quality=40)
    pixels = np.asarray(Image.open(buffer).convert("RGB"), np.float32)
    return np.clip(pixels + rng.normal(0, 8, pixels.shape), 0, 255).round().astype(np.uint8)


def _plane_quantiles(region: np.ndarray) -> np.ndarray:
    return np.quantile(region.reshape(3, -1), (0.2, 0.5, 0.8), axis=1).ravel()


def _region_features(planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of the upper region and of the lower region.

    The lower features include the colours at the top of the image, because the light of the sky changes the ground.
    """
    top = _plane_quantiles(planes[:, 2:32])
    upper = np.concatenate([top, np.median(planes[:, 32:52], (1, 2))])
    lower = np.concatenate([_plane_quantiles(planes[:, 110:126]), np.median(planes[:, 84:110], (1, 2)), top[3:6]])
    return upper, lower


def _fit(features: dict) -> _Prototypes:
    """Return prototypes with the mean and the spread of the feature vectors of each class."""
    means = [np.mean(rows, 0) for rows in features.values()]
    spreads = [np.hypot(np.std(rows, 0), _MIN_SPREAD) for rows in features.values()]
    return _Prototypes(list(features), np.array(means), np.array(spreads))


@lru_cache(maxsize=1)
def _region_prototypes() -> tuple[_Prototypes, _Prototypes]:
    """Return the prototypes for the upper region and the prototypes for the lower region.

    Classes of the upper region are skies and walls. Classes of the lower region are (ground, sky) and ("table", wall).
    """
    rng = np.random.default_rng(CALIBRATION_SEED)
    features = defaultdict(list)
    missing = {(g, s) for g in GROUNDS for s in SKIES} | {("table", w) for w in WALLS}
    while missing:
        scene = sample_scene(rng)
        key = (scene.ground or "table", scene.sky or scene.wall)
        if key in missing:
            image = np.asarray(render(scene, rng))
            features[key] += [_region_features(_colour_planes(one)) for one in (image, degrade(image, rng))]
            if len(features[key]) == 2 * _RENDERS_PER_CLASS:
                missing.remove(key)
    upper = defaultdict(list)
    lower = {}
    for key, pairs in features.items():
        upper[key[1]] += [u for u, _ in pairs]
        lower[key] = [v for _, v in pairs]
    return _fit(upper), _fit(lower)


def _classify(features: np.ndarray, prototypes: _Prototypes):
    """Return the class with the highest Gaussian likelihood, or None if its distance is too large."""
    standardised = (features - prototypes.means) / prototypes.spreads
    # An object may cover a part of the region, so the distance of each feature is clipped.
    distances = np.minimum(standardised**2, _MAX_FEATURE_DISTANCE).mean(1)
    best = int(np.argmin(0.5 * distances + np.log(prototypes.spreads).mean(1)))
    return prototypes.classes[best] if distances[best] < _MAX_DISTANCE else None


def _band_features(planes: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Return the quantiles of each band and plane.

    Args:
        planes: [3, SIZE, SIZE] from :func:`_colour_planes`.
        free: [SIZE, SIZE] bool, False for pixels of objects.

    Returns:
        [45]: 3 bands, 5 quantiles, 3 planes.
    """
    rows = []
    for low, high in _BANDS:
        band = planes[:, low:high]
        band_free = free[low:high]
        pixels = band[:, band_free] if band_free.sum() > _MIN_FREE_PIXELS else band.reshape(3, -1)
        rows.append(np.quantile(pixels, _QUANTILES, axis=1).ravel())
    return np.concatenate(rows)


@lru_cache(maxsize=1)
def _landscapes() -> tuple[np.ndarray, list[str]]:
    """Return the features [count, 45] of landscapes without objects, and their backdrops."""
    rng = np.random.default_rng(CALIBRATION_SEED)
    free = np.ones((SIZE, SIZE), bool)
    features = []
    backdrops = []
    for sky in SKIES:
        for backdrop in BACKDROPS:
            for ground in np.repeat(GROUNDS, _LANDSCAPES_PER_CLASS):
                scene = Scene((), ground=str(ground), sky=sky, backdrop=backdrop)
                features.append(_band_features(_colour_planes(np.asarray(render(scene, rng))), free))
                backdrops.append(backdrop)
    return np.array(features), backdrops


def _classify_backdrop(planes: np.ndarray, detections: Iterable[Detection]) -> str:
    free = np.ones((SIZE, SIZE), bool)
    for detection in detections:
        top = max(0, detection.y - _BOX_ABOVE)
        bottom = detection.y + _BOX_BELOW[detection.kind in AIR_OBJECTS]
        left = max(0, detection.x - _BOX_HALF_WIDTH)
        free[top:bottom, left : detection.x + _BOX_HALF_WIDTH] = False
    features, backdrops = _landscapes()
    distances = np.minimum(np.abs(features - _band_features(planes, free)), _MAX_QUANTILE_DISTANCE).mean(1)
    return backdrops[int(distances.argmin())]


def classify_background(image: np.ndarray, detections: Iterable[Detection]) -> set[str]:
    """Classify the background of an image.

    Args:
        image: [SIZE, SIZE, 3] uint8.
        detections: Objects in the image, from :func:`model_making.detector.detect_objects`.

    Returns:
        Labels of the recognised regions, such as ``sky:night``, ``ground:snow``, ``backdrop:hills``, ``wall:brick`` and
        ``table:wooden``.
    """
    planes = _colour_planes(image)
    upper_features, lower_features = _region_features(planes)
    upper_prototypes, lower_prototypes = _region_prototypes()
    upper = _classify(upper_features, upper_prototypes)
    lower = _classify(lower_features, lower_prototypes)
    labels = set()
    if upper:
        labels.add(f"{'wall' if upper in WALLS else 'sky'}:{upper}")
    if lower:
        labels.add("table:wooden" if lower[0] == "table" else f"ground:{lower[0]}")
    if upper in SKIES:
        labels.add(f"backdrop:{_classify_backdrop(planes, detections)}")
    return labels
