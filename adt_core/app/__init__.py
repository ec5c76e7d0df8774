"""Application layer: the commands of the command line, and the parts that commands and ComfyUI nodes share.

Terms in this package:

- Target: the model that generates the images.
- Drafter: a small network, or a rule such as "jacobi", that proposes tokens. The proposed tokens are called drafts.
- Codes: image tokens, as indices into the codebook of the target's image decoder (codec).
- Round: one draft step followed by one forward pass of the target, which verifies the drafts.
- Plain decoding: decoding without drafts, one token per forward pass ("plain round").
- Tau: mean number of tokens per forward pass of the target.
- Recipe: all settings that determine an image, except its prompt.
- LANTERN: relaxed acceptance of drafts. It is faster, but changes the image.

Names for nodes and other programs, which are imported on first use:

- Lists of prompts: `BUNDLED_CAPTIONS`, `EXAMPLE_CAPTIONS` and `CAPTIONS` are included captions and the choices for
  files with several captions per image. `PROMPT_FILES` and `SETTING_COLUMNS` say which files and columns are read.
  `read_all` and `parse_lines` read prompts. `select`, `sample` and `non_blank` return some of them, and `blank_note`,
  `file_stems`, `remarks` and `domain_warning` describe them.
- Images to continue: `open_rgb`, `prefix_length`, `DEFAULT_KEEP`.
- Downloads: `find_parts` returns each `DownloadPart` of a published model, and `download_parts` downloads them and
  reports a `DownloadProgress`. `download_terms` and `kept_message` are texts for the user. `is_complete` checks files.
- Diagnostics of a model: `prepare_diagnosis`, then `diagnose`.
- Arguments of benchmarks and trainings: `QualityArgs`, `TrainingArgs`, `TrainingDataArgs`, `TrainingOutputArgs`.
- Tables: `to_csv`, and `write_manifest` for a list of images.
"""

from typing import TYPE_CHECKING

__all__ = [
    "BUNDLED_CAPTIONS", "CAPTIONS", "DEFAULT_KEEP", "DownloadPart", "DownloadProgress", "EXAMPLE_CAPTIONS",
    "PROMPT_FILES", "QualityArgs", "SETTING_COLUMNS", "TrainingArgs", "TrainingDataArgs", "TrainingOutputArgs",
    "blank_note", "diagnose", "domain_warning", "download_parts", "download_terms", "file_stems", "find_parts",
    "is_complete", "kept_message", "non_blank", "open_rgb", "parse_lines", "prefix_length", "prepare_diagnosis",
    "read_all", "remarks", "sample", "select", "to_csv", "write_manifest",
]  # fmt: skip

if TYPE_CHECKING:
    from .api import *
else:

    def __getattr__(name: str):
        if name in __all__:
            from . import api

            return getattr(api, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
