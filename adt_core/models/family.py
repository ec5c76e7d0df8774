"""What the rest of the code knows of a family of models."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from .downloads import Download, Published
from .reading.checkpoint import Checkpoint, Entry
from .target import Prompter, PublishedSampling, Target


def model_type(config: dict) -> str:
    """The architecture that a config.json names, in lower case; "none" if it names none."""
    return str(config.get("model_type")).lower()


class Family(NamedTuple):
    """A family of models. A new one is a file in ``families`` and a line in ``load.FAMILIES``; nothing else lists them.

    name, title: for programs and for people.
    recognises: by the config.json ({} if there is none) and the names of tensors, which are () where models are listed.
    skeleton: the target that a checkpoint describes, not yet filled, without its prompter, on torch's default device.
    entries: where the target's parameters come from.
    prompter: what reads its prompts. Like ``skeleton`` it raises AdtError if something is missing or makes no sense.
    unneeded: how the names of tensors begin that drawing does not need.
    remedies: what to do if tensors are missing, and the download that it takes, by how their names begin.
    sampling: how its authors draw.
    single_files: glob patterns of weights files that are models without a config.json.
    beside: patterns for ``Checkpoint.beside`` of what its models need besides their own folder.
    trained: sides of the smallest and the largest square that its models were trained for, in sides of the usual one;
    other shapes have as many pixels. None if nothing is known, or only the usual size can be drawn.
    search: words that find the loader node.
    published: its models.
    """

    name: str
    title: str
    recognises: Callable[[dict, Collection[str]], bool]
    skeleton: Callable[[Checkpoint], Target]
    entries: Callable[[Target, Checkpoint], list[Entry]]
    prompter: Callable[[Target, Checkpoint], Prompter]
    unneeded: tuple[str, ...] = ()
    remedies: Mapping[str, tuple[str, Download]] = MappingProxyType({})
    sampling: PublishedSampling = PublishedSampling()
    single_files: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    trained: tuple[float, float] | None = None
    search: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()

    def orders(self, checkpoint: Checkpoint) -> dict[str, str]:
        """What to do if tensors of a checkpoint are missing, by how their names begin: the ends of sentences."""
        return {
            prefix: f"{advice}: run `{download.command(checkpoint.home)}`"
            for prefix, (advice, download) in self.remedies.items()
        }
