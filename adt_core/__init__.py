"""ADT-Tree: lossless tree speculation for visual autoregressive image models.

A drafter proposes a tree of the next tokens. The target model verifies the entire tree in one forward pass.

The names of the public API are imported on first use, so that `import adt_core` is fast:

- `Pipeline` loads a model and generates images from texts. Most programs need nothing else. The other names are its
  parts.
- `load_target` returns a `Target`: the model that generates images. Its method `encode_prompt` returns an
  `EncodedPrompt`. `load_drafter` returns a drafter for a target.
- `Pipeline.generate` returns a `Result` for each image, and `Pipeline.stream` yields a `Step` per round.
- `Pipeline.decoding` returns a `Decoding`. Iterating over it yields one `Round` per forward pass of the target, and its
  `Trace` records all rounds.
- `Recipe` contains all settings of an image, in the groups `Sampling`, `Drafting`, `Lantern` (relaxed acceptance of
  drafts) and `Loading`.
- `custom_generate` lets a model that transformers has loaded generate images with this engine.
- `__version__` is the version of the package.
- `AdtError` is raised for invalid inputs, and `PromptTooLongError` for a prompt with too many tokens.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import (
        AdtError,
        Decoding,
        Drafting,
        EncodedPrompt,
        Lantern,
        Loading,
        Pipeline,
        PromptTooLongError,
        Recipe,
        Result,
        Round,
        Sampling,
        Step,
        Target,
        Trace,
        __version__,
        custom_generate,
        load_drafter,
        load_target,
    )

__all__ = [
    "AdtError", "Decoding", "Drafting", "EncodedPrompt", "Lantern", "Loading", "Pipeline", "PromptTooLongError",
    "Recipe", "Result", "Round", "Sampling", "Step", "Target", "Trace", "__version__", "custom_generate",
    "load_drafter", "load_target",
]  # fmt: skip


def __getattr__(name: str):
    if name in __all__:
        from . import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
