"""A run: its recipe, its jobs, the loop that decodes them, the store of its images, and races between methods.

Names for nodes and other programs, which are imported on first use:

- `resolve_recipe` makes a recipe from what the user has set, for a `Hardware`. `choose_dtype` and `has_bfloat16` are
  its rules for the dtype.
- `Job` is one image of a run, and `JobList` a list of them, which is made from `PromptEntry` objects. `fit_jobs` and
  `fit_prompt` treat prompts that are too long as one of `INVALID_MODES` says, such as `RAISE` and `TRUNCATE`.
- A run yields `Progress`; a `Resident` loads the weights for it. `Previews` are decoded when `PreviewSchedule` says so.
- `PngStore` is a folder of images with an `Identity`. `existing_images`, `file_name` and `named_folder` follow the rule
  for names, and `digest` hashes settings. `read_pixels`, `text_chunks` and `is_keyword` read PNGs. `IMAGE_STATS` are
  the statistics of an image.
- `generated_cells` and `upper_part_kept` make masks of kept tokens.
- `default_drafter`, `is_target_config` and `is_target_file` find checkpoints.

The module `race` (methods in turns) is public.
"""

from typing import TYPE_CHECKING

__all__ = [
    "Hardware", "IMAGE_STATS", "INVALID_MODES", "Identity", "Job", "JobList", "PngStore", "PreviewSchedule",
    "Previews", "Progress", "PromptEntry", "RAISE", "Resident", "TRUNCATE", "choose_dtype", "default_drafter",
    "digest", "existing_images", "file_name", "fit_jobs", "fit_prompt", "generated_cells", "has_bfloat16",
    "is_keyword", "is_target_config", "is_target_file", "named_folder", "read_pixels", "resolve_recipe",
    "text_chunks", "upper_part_kept",
]  # fmt: skip

if TYPE_CHECKING:
    from .api import *
else:

    def __getattr__(name: str):
        if name in __all__:
            from . import api

            return getattr(api, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
