"""Reader of a LATENT of which a part is kept. The other tokens are generated again."""

import torch
from torch import Tensor

from ..adt_core import AdtError, Target
from ..adt_core.app import prefix_length
from ..adt_core.errors import shown
from ..adt_core.messages import message
from ..adt_core.run import generated_cells, upper_part_kept
from .sockets import LoadedModel
from .weights import loaded


def read_latent(
    latent: dict, model: LoadedModel, target: Target, keep: float, keep_left: float, copies: int
) -> tuple[Tensor, list[int]]:
    """Return the kept tokens of a LATENT's images, and the noise index of each new image.

    The noise index of an image is its index in the batch. It selects the noise of the image, so the images of a batch
    differ. Example: with 2 images in the LATENT and 2 copies, the noise indices are [0, 1, 2, 3].

    If a node took an image out of a batch, the LATENT has a `batch_index`. The first copy of the image then has the
    noise index that the image had in that batch. For each further copy, the largest index + 1 is added. Example: with
    `batch_index` [3] and 2 copies, the noise indices are [3, 7].

    Args:
        target: Target model that generates the new images. Its prompts include the source images.
        keep: Share of the rows to keep, 0 to 1. A noise mask in the LATENT replaces `keep` and `keep_left`.
        keep_left: In the first row below the kept rows, the share of tokens to keep, from the left, 0 to 1.
        copies: Number of new images per image of the LATENT.

    Returns:
        Codes [B * copies, cells] that are kept, -1 for cells to generate, and noise indices [B * copies].

    Raises:
        AdtError: If the LATENT is empty (all zeros), if it has the channels or the size of another model, or if its
            noise mask is not valid.
    """
    samples = latent.get("samples")
    if isinstance(samples, Tensor) and not samples.any():
        raise AdtError("latent.empty")
    codes = read_codes(latent, model, "latent_image")
    _check(latent, codes, target)
    kept = target.kept(codes, _generated(latent, len(codes), target, keep, keep_left))
    indices = _batch_index(latent, len(codes))
    step = max(indices) + 1
    return kept.repeat(copies, 1), [index + copy * step for copy in range(copies) for index in indices]


def empty_mask_note(latent: dict, kept: Tensor) -> str:
    """Return a sentence for the user if the LATENT's noise mask generates no token of `kept`, or ""."""
    return message("mask.empty") if latent.get("noise_mask") is not None and (kept >= 0).all() else ""


def _batch_index(latent: dict, count: int) -> list[int]:
    """Return the index of each image in its batch. Raise AdtError if `batch_index` is not a whole number per image."""
    given = latent.get("batch_index")
    values = given.tolist() if given is not None and hasattr(given, "tolist") else given
    if values is None or values == []:
        return list(range(count))
    is_valid = isinstance(values, list | tuple) and all(type(v) is int and 0 <= v < 2**31 for v in values)
    if not is_valid or len(values) != count:
        raise AdtError("latent.batch_index", values=shown(values), count=count)
    return list(values)


def read_codes(latent: dict, model: LoadedModel, name: str) -> Tensor:
    """Return the codes [B, rows, columns] of a LATENT's images on the CPU: the indices of the nearest codebook vectors.

    Raises:
        AdtError: If another model made the LATENT.
    """
    samples = latent.get("samples")
    codec = model.target.codec
    channels = codec.codebook.shape[1]
    if not isinstance(samples, Tensor):
        raise AdtError("latent.no_samples", input=name)
    if samples.ndim != 4 or samples.shape[1] != channels:
        raise AdtError("latent.shape", input=name, shape=list(samples.shape), channels=channels)
    with loaded([model.codec]):
        return torch.cat([codec.nearest(vectors).cpu() for vectors in samples.split(1)])


def _generated(latent: dict, images: int, target: Target, keep: float, keep_left: float) -> Tensor:
    """Return which cells are generated, bool [images or 1, rows, columns]: cells of the noise mask, or the lower part.

    If there are fewer masks than images, the masks are repeated, as in ComfyUI's samplers.
    """
    mask = latent.get("noise_mask")
    if mask is None:
        return upper_part_kept(target.grid, prefix_length(target.grid, keep, keep_left))
    if not isinstance(mask, Tensor):
        raise AdtError("latent.no_mask")
    generated = generated_cells(mask, target.grid, "latent_image")
    return generated[torch.arange(images) % len(generated)]


def _check(latent: dict, codes: Tensor, target: Target) -> None:
    """Raise AdtError if the LATENT does not have the size of the target's images."""
    rows, columns = target.grid
    if tuple(codes.shape[1:]) != (rows, columns):
        side = target.downsample
        sizes = {"rows": rows, "columns": columns, "width": columns * side, "height": rows * side}
        raise AdtError("latent.size", token_rows=codes.shape[1], token_columns=codes.shape[2], **sizes)
