"""Objects of the public API, which `adt_core` imports from here on first use."""

from .drafters import load_drafter
from .engine.decoding import Decoding
from .errors import AdtError, PromptTooLongError
from .models.load import load_target
from .models.target import EncodedPrompt, Target
from .policies import Drafting
from .recipe import Loading, Recipe
from .run.custom_generate import custom_generate
from .run.pipeline import Pipeline, Step
from .run.runner import Result
from .settings import Lantern, Sampling
from .trace import Round, Trace
from .version import VERSION as __version__
