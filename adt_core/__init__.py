"""ADT-Tree: lossless tree speculation for visual autoregressive image models.

Public API, imported on first use so that importing the package is cheap. ``load_target`` returns a ``Target``, whose
``encode_prompt`` returns an ``EncodedPrompt``; ``load_drafter`` returns a drafter. A ``Decoding`` of these, with
``Sampling``, ``Drafting`` and optionally ``Lantern``, generates images: iterating it yields one ``Round`` at a time, and
it records them in a ``Trace``. A wrong input raises ``AdtError``.
"""

from importlib import import_module

_HOME = {
    "AdtError": "errors",
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


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
