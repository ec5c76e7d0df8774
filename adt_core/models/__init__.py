"""Target models: transformer decoder, KV cache, image codecs, model families, and loading of checkpoints.

Names for nodes and other programs, which are imported on first use:

- `FAMILIES` are the supported families. `Published` is a published model: `published` returns all, `find_published` one
  by its name, and `published_at` the one that a checkpoint contains. `name_of` and `home_of` return the name of a
  checkpoint and the folder that contains it. `STAGE` is the folder of the first of two stages.
- `PublishedSampling` are sampling settings, and `BUNDLED_SAMPLING` those of the bundled model.
- `Decoder` is the transformer of a target. `image_bytes` and `beside_bytes` estimate memory, and `check_device` checks
  whether a device supports quantised weights.

The modules `streamed` (weights that do not fit on the device) and `glm_pixels` (second stage of GLM-Image) are public.
"""

from typing import TYPE_CHECKING

__all__ = [
    "BUNDLED_SAMPLING", "Decoder", "FAMILIES", "Published", "PublishedSampling", "STAGE", "beside_bytes",
    "check_device", "find_published", "home_of", "image_bytes", "name_of", "published", "published_at",
]  # fmt: skip

if TYPE_CHECKING:
    from .api import *
else:

    def __getattr__(name: str):
        if name in __all__:
            from . import api

            return getattr(api, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
