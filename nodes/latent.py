"""A LATENT as what an image starts from: the first tokens of each of its images are kept."""

import torch
from torch import Tensor

from ..adt_core.app.continuation import prefix_length
from ..adt_core.errors import AdtError
from .runtime import loaded
from .sockets import LoadedModel


def read_latent(
    latent: dict, model: LoadedModel, keep: float, keep_left: float, copies: int
) -> tuple[Tensor, list[int]]:
    """What is kept of the images of a LATENT, each of them ``copies`` times.

    Returns the codes [B * copies, P], and for each image the index of its noise. An image that was taken out of a batch
    (``batch_index``) keeps the noise that it had there. Raises AdtError for a LATENT of another model or another size,
    and for a noise mask, which an order row by row can't follow.
    """
    _check(latent, model)
    samples, codec = latent["samples"], model.target.codec
    count = prefix_length(model.target.grid, keep, keep_left)
    with loaded([model.codec]):
        codes = torch.cat([codec.nearest(vectors).flatten(1)[:, :count].cpu() for vectors in samples.split(1)])
    indices = latent.get("batch_index") or list(range(len(samples)))
    step = max(indices) + 1
    return codes.repeat(copies, 1), [index + copy * step for copy in range(copies) for index in indices]


def _check(latent: dict, model: LoadedModel) -> None:
    samples, channels = latent.get("samples"), model.target.codec.codebook.shape[1]
    if not isinstance(samples, Tensor):
        raise AdtError("latent_image: it holds no samples; make it with VAE Encode, or with an ADT-Tree Sampler.")
    if samples.ndim != 4 or samples.shape[1] != channels:
        raise AdtError(
            f"latent_image: this LATENT has the shape {list(samples.shape)}, but the model's codebook vectors have "
            f"{channels} channels ([batch, {channels}, rows, columns]); make it with VAE Encode and this model's VAE, "
            "or with an ADT-Tree Sampler."
        )
    rows, columns = model.target.grid
    if tuple(samples.shape[2:]) != (rows, columns):
        side = model.target.downsample
        raise AdtError(
            f"latent_image: this LATENT has {samples.shape[2]} rows and {samples.shape[3]} columns of tokens, but the "
            f"model draws {rows} by {columns}; scale the image to {columns * side} by {rows * side} pixels before "
            "VAE Encode."
        )
    if latent.get("noise_mask") is not None:
        raise AdtError(
            "latent_image: it carries a noise mask, but this kind of model draws row by row and can't fill in a masked "
            "place; take the mask away, and say with keep and keep_left where the new part begins."
        )
