"""ADT-Tree: lossless tree speculation for visual autoregressive image models.

Public API, loaded on first use so that importing the package costs nothing. ``load_target`` gives a ``Target``, whose
``encode_prompt`` gives an ``EncodedPrompt``; ``load_drafter`` gives a drafter. Images are made by a ``Decoding`` of these, with
``Sampling``, ``Drafting`` and perhaps ``Lantern``: iterated, it yields a ``Round`` at a time, and it keeps a ``Trace``
of them. An ``AdtError`` says what is wrong with an input.
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
