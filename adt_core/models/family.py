"""Description of a family of models."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from .downloads import Download, Published
from .reading.checkpoint import Checkpoint
from .reading.entries import Entry
from .target import Prompter, PublishedSampling, Target


def model_type(config: dict) -> str:
    """Return the model_type of a config.json in lower case; "none" if there is none."""
    return str(config.get("model_type")).lower()


class Family(NamedTuple):
    """Family of models. A new one is a file in ``families`` and a line in ``load.FAMILIES``.

    Attributes:
        name: Identifier.
        title: Name for people.
        recognises: Returns whether a checkpoint belongs to the family, from its config.json ({} if there is none) and
            the names of its tensors (() where models are listed without being opened).
        skeleton: Returns the empty target that a checkpoint describes, without its prompter, on torch's default device.
            Raises AdtError if something is missing or has an unsupported value.
        entries: Returns the sources of the target's parameters.
        prompter: Returns the target's prompter. Raises AdtError like ``skeleton``.
        unneeded: Prefixes of tensors that are not needed to generate images.
        remedies: Prefix of missing tensors -> advice and the download that contains them.
        sampling: Sampling settings that its authors publish.
        single_files: Glob patterns of weights files that are models without a config.json.
        companions: Patterns for ``Checkpoint.find_companion`` of the files that its models need in addition to their
            folder.
        trained: Sides of the smallest and the largest square that its models were trained for, relative to the default
            size; other shapes have as many pixels. None if this is unknown, or only the default size is supported.
        search: Words that find the loader node.
        published: Its published models.
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
    companions: tuple[str, ...] = ()
    trained: tuple[float, float] | None = None
    search: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()

    def missing_remedies(self, checkpoint: Checkpoint) -> dict[str, str]:
        """Return what to do if tensors of a checkpoint are missing, by their prefix, as the end of a sentence."""
        return {
            prefix: f"{advice}: run `{download.command(checkpoint.home)}`"
            for prefix, (advice, download) in self.remedies.items()
        }
