"""Description of a model family: models that share an architecture and a checkpoint layout, such as Janus-Pro."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from ..messages import message
from .reading.checkpoint import Checkpoint
from .reading.entries import Entry
from .repositories import Download, Published
from .target import Prompter, PublishedSampling, Target


def model_type(config: dict) -> str:
    """Return the ``model_type`` of a config.json in lower case; "none" if the field is missing."""
    return str(config.get("model_type")).lower()


class Family(NamedTuple):
    """Model family: functions that load its models, and information about them.

    To add a family, write a file in ``families`` and add a line to ``load.FAMILIES``.

    Attributes:
        name: Identifier, such as "janus".
        title: Name to show to users, such as "Janus-Pro".
        recognises: Function that returns whether a checkpoint belongs to the family. Its arguments are the fields of
            the config.json ({} if there is none) and the names of the tensors. The names are () when the loader node
            lists models, because the node does not open weights files for the list.
        skeleton: Function that builds the target of a checkpoint: modules with the right shapes, without weights and
            without a prompter, on torch's default device. It raises AdtError if the checkpoint lacks something or has
            an unsupported value.
        entries: Function that returns an :class:`.reading.entries.Entry` for each parameter of the target: the names
            and shapes of the checkpoint's tensors from which the parameter is made.
        prompter: Function that returns the target's prompter. It raises AdtError in the same cases as ``skeleton``.
        unneeded: Prefixes of the names of tensors that image generation does not need.
        remedies: What to do if tensors are missing. Keys are prefixes of the tensors' names. Values are the key of an
            advice and the download that contains the tensors.
        sampling: Sampling settings that the authors of the models publish.
        single_files: Glob patterns of weights files that are complete models without a config.json.
        companions: Files that a model needs in addition to its own files, as glob patterns for
            ``Checkpoint.find_companion``.
        trained: Range of image sizes in the training data: the side of the smallest square image and of the largest
            one, each divided by the default side. Images of other shapes have about as many pixels as a square in this
            range. None if the range is unknown, or if the model supports only its default size.
        search: Words that users can type into ComfyUI's node search to find the loader node.
        published: Published models of the family.
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
        """Return what to do if tensors of a checkpoint are missing.

        Returns:
            Advice with a download command, as the end of an error message. Keys are prefixes of the tensors' names.
        """
        return {
            prefix: message(advice, command=download.command(checkpoint.home))
            for prefix, (advice, download) in self.remedies.items()
        }
