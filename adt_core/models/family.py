"""What the rest of the code knows of a family of models."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from .checkpoint import Checkpoint, Entry
from .target import Prompter, PublishedSampling, Target


def model_type(config: dict) -> str:
    """The architecture that a config.json names, in lower case; "none" if it names none."""
    return str(config.get("model_type")).lower()


class Published(NamedTuple):
    """A published checkpoint, or several alike: a row of the table in docs/models.md, in Markdown.

    source: where it is on Hugging Face. files: what to put into ``models/ar_image``. pixels: per side of its images.
    memory: with weights in bfloat16 / int8.
    """

    model: str
    source: str
    files: str
    pixels: str
    memory: str


class Family(NamedTuple):
    """A family of models. A new one is a file in ``families`` and a line in ``load.FAMILIES``; nothing else lists them.

    name, title: for programs and for people.
    recognises: by the config.json ({} if there is none) and the names of tensors, which are () where models are listed.
    skeleton: the target that a checkpoint describes, not yet filled, without its prompter, on torch's default device.
    entries: where the target's parameters come from.
    prompter: what reads its prompts. Like ``skeleton`` it raises AdtError if something is missing or makes no sense.
    unneeded: how the names of tensors begin that drawing does not need.
    remedies: what to do if tensors are missing, by how their names begin.
    sampling: how its authors draw.
    single_files: glob patterns of weights files that are models without a config.json.
    search: words that find the loader node.
    """

    name: str
    title: str
    recognises: Callable[[dict, Collection[str]], bool]
    skeleton: Callable[[Checkpoint], Target]
    entries: Callable[[Target, Checkpoint], list[Entry]]
    prompter: Callable[[Target, Checkpoint], Prompter]
    unneeded: tuple[str, ...] = ()
    remedies: Mapping[str, str] = MappingProxyType({})
    sampling: PublishedSampling = PublishedSampling()
    single_files: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()
