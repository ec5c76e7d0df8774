"""Objects of the public API, which `adt_core` imports from here on first use."""

from .app.pipeline import Pipeline
from .drafters import load_drafter
from .engine.decoding import Decoding
from .errors import AdtError, PromptTooLongError
from .models.load import load_target
from .models.target import EncodedPrompt, Target
from .policies import Drafting
from .settings import Lantern, Sampling
from .trace import Round, Trace

__all__ = [
    "AdtError",
    "Decoding",
    "Drafting",
    "EncodedPrompt",
    "Lantern",
    "Pipeline",
    "PromptTooLongError",
    "Round",
    "Sampling",
    "Target",
    "Trace",
    "load_drafter",
    "load_target",
]
