"""Do the pictures of the bundled model show what its captions name? A metric for ``adt_core.app.benchmark``, in place of CLIP's.

    Benchmark(..., metrics={SCENES: scene_metric()})

adds the share of the captions' attributes that ``model_making.attributes`` finds in a method's pictures.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from adt_core.app.quality import PictureMetric, Scores
from model_making.attributes import check
from model_making.data import example

from .harness import HELD_OUT_SEED

FIRST, COUNT = 4000, 200  # the captions that come with the pack, adt_core/bundled/captions.json
SCENES = "attributes found"


def scene_metric(first: int = FIRST, count: int = COUNT) -> PictureMetric:
    """Attributes found and attributes asked for, of pictures whose prompts are held-out captions ``first`` .. ``first + count - 1``."""
    scenes = {caption: scene for _, caption, scene in (example(HELD_OUT_SEED, i) for i in range(first, first + count))}

    def metric(picture: Image.Image, prompt: str) -> Scores:
        found = check(np.asarray(picture), scenes[prompt])
        return {SCENES: (sum(found.values()), len(found))}

    return metric
