"""A LATENT as what an image starts from: the first tokens of each of its images are kept."""

import torch
from torch import Tensor

from ..adt_core.app.continuation import kept_tokens
from ..adt_core.errors import AdtError
from .sockets import LoadedModel


def read_latent(
    latent: dict, model: LoadedModel, keep: float, keep_left: float, copies: int
) -> tuple[Tensor, list[int]]:
    """What is kept of the images of a LATENT, each of them ``copies`` times: codes [B, P], and the index of every image's noise.

    An image that was taken out of a batch (``batch_index``) keeps the noise that it had there. Raises AdtError for a LATENT that isn't of this
    model and size, or asks for what raster order can't do.
    """
    samples, codebook = latent["samples"], model.target.codec.codebook
    if samples.ndim != 4 or samples.shape[1] != codebook.shape[1]:
        raise AdtError(
            f"latent_image: this LATENT has the shape {list(samples.shape)}, but the model's codebook vectors have {codebook.shape[1]} channels "
            f"([batch, {codebook.shape[1]}, rows, columns]); make it with VAE Encode and this model's VAE, or with an ADT-Tree Sampler."
        )
    rows, columns = model.target.grid
    if tuple(samples.shape[2:]) != (rows, columns):
        side = model.target.downsample
        raise AdtError(
            f"latent_image: this LATENT has {samples.shape[2]} rows and {samples.shape[3]} columns of tokens, but the model draws {rows} by {columns}; "
            f"scale the image to {columns * side} by {rows * side} pixels before VAE Encode."
        )
    if latent.get("noise_mask") is not None:
        raise AdtError(
            "latent_image: it carries a noise mask, but this kind of model draws row by row and can't fill in a masked place; "
            "take the mask away, and say with keep and keep_left where the new part begins."
        )
    count = kept_tokens((rows, columns), keep, keep_left)
    codes = torch.cat([model.target.codec.nearest(one).flatten(1)[:, :count].cpu() for one in samples.split(1)])
    indices = latent.get("batch_index") or list(range(len(samples)))
    step = max(indices) + 1
    return codes.repeat(copies, 1), [index + copy * step for copy in range(copies) for index in indices]
