"""Digest of everything that determines the images of a pipeline, apart from their prompts and noise."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from .. import cache_folder
from ..errors import Check
from ..messages import message
from ..models.layers import Decoder
from ..models.streamed import named_tensors
from ..rules.script_noise import noise_device
from ..runtime import get_runtime
from ..settings import ORIGINAL_SCRIPT
from ..version import FORMAT
from .model_files import model_files
from .runner import Runner

DIGEST_BYTES = 16
"""Length of a digest. With 128 bits, nobody can find two contents with the same digest."""
CACHED_BYTES = 2**28
"""Smallest size of weights whose digest is stored. Smaller weights take less than a second."""
_log = logging.getLogger(__name__)


def digest(content: object) -> str:
    """Return the digest of a JSON value, 32 hexadecimal digits."""
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=DIGEST_BYTES).hexdigest()


def settings_key(pipeline: Runner, check: Check | None = None) -> str:
    """Return a digest of everything that determines a pipeline's images, except prompts, seeds and noise indices.

    Two pipelines with the same digest make the same image for a job. The digest includes the drafter and its settings
    only with LANTERN (relaxed acceptance). Without LANTERN, the drafter does not change the image.
    """
    target = pipeline.target
    recipe = pipeline.recipe
    network = pipeline.drafter.network if pipeline.drafter is not None else None
    files = [path for _, path in model_files(recipe.loading.model)]
    modules = {"decoder": target.decoder, "codec": target.codec, "text": target.text_encoder}

    @cache  # tells the user once, although each module may take many seconds
    def announce() -> None:
        (get_runtime().notify or _log.info)(message("weights.checking", name=target.name))

    weights = [
        weights_digest(part, module, files, check, announce) for part, module in modules.items() if module is not None
    ]
    drafter = None
    if network is not None and recipe.lantern is not None:
        paths = [path for _, path in model_files("", recipe.drafter or "jacobi")]
        drafter = weights_digest("drafter", network, paths, check, announce)
    content = recipe.as_loaded(target.loaded).image_settings(weights, target.grid, drafter)
    content |= {"kept": list(recipe.kept), "sources": list(recipe.sources)}
    if recipe.sampling.noise == ORIGINAL_SCRIPT:
        content["noise_device"] = noise_device(target.decoder.embedding.device)
    return digest({**content, "format": FORMAT})


def weights_digest(
    part: str,
    module: nn.Module,
    files: Iterable[Path],
    check: Check | None = None,
    announce: Callable[[], object] = bool,
) -> str:
    """Return a digest of all weights of a module.

    Large weights take many seconds, so their digest is stored in the cache folder. It is computed again if the path,
    size, modification time or inode number of one of the files changes, or the beginning of a tensor.

    Args:
        part: Name of the module in the model.
        files: Files from which the weights were loaded; empty if they are unknown.
        check: Cancellation callback, called for each tensor.
        announce: Called before large weights are read.
    """
    size = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    if size < CACHED_BYTES:
        return _tensors_digest(_named_tensors(module))
    states = [(file, file.stat()) for file in files]
    facts = sorted((str(file.absolute()), state.st_size, state.st_mtime_ns, state.st_ino) for file, state in states)
    first = _tensors_digest((name, tensor.flatten()[:64]) for name, tensor in _named_tensors(module))
    name = json.dumps([part, first, facts])
    stored = cache_folder.read("weights", name) if facts else None
    if isinstance(stored, dict) and isinstance(stored.get("digest"), str):
        return stored["digest"]
    announce()
    found = _tensors_digest(_named_tensors(module), check)
    if facts:
        cache_folder.write("weights", name, {"digest": found})
    return found


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    if isinstance(module, Decoder):
        return named_tensors(module)
    return chain(module.named_parameters(), module.named_buffers())


def _tensors_digest(tensors: Iterable[tuple[str, Tensor]], check: Check | None = None) -> str:
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name, tensor in tensors:
        if check is not None:
            check()
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.detach().to("cpu").contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()
