"""ADT-Tree: lossless tree speculation for visual autoregressive image models.

The public API is imported on first use, so that `import adt_core` is cheap:

- `load_target` returns a `Target`, whose `encode_prompt` returns an `EncodedPrompt`.
- `load_drafter` returns a drafter for a target.
- `Decoding` generates images from these, with `Sampling`, `Drafting` and optionally `Lantern` settings. Iterating over
  it yields one `Round` at a time; its `Trace` records all rounds.
- `AdtError` is raised for invalid inputs, `PromptTooLongError` for a prompt with too many tokens.
"""

from importlib import import_module

_HOME = {
    "AdtError": "errors",
    "PromptTooLongError": "errors",
    "Sampling": "rules.settings",
    "Drafting": "policies",
    "Lantern": "rules.settings",
    "Decoding": "engine.decoding",
    "Trace": "rules.trace",
    "Round": "rules.trace",
    "load_target": "app.checkpoints",
    "Target": "models.target",
    "EncodedPrompt": "models.target",
    "load_drafter": "app.checkpoints",
}
__all__ = [*_HOME]
_RENAMED = {"Prompt": "EncodedPrompt"}
"""Names of version 0.1 that still work."""


def __getattr__(name: str):
    name = _RENAMED.get(name, name)
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
