"""Configuration and tensor names of VQGAN codecs in checkpoints.

:mod:`..vq` explains codes and levels. In tensor names, ``up.0``, ``up.1`` and so on are the levels of the decoder. In
some checkpoints, ``up.0`` is the finest level; in others, it is the coarsest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ...errors import AdtError
from ...untrusted import SWITCH
from ..vq import NORM_GROUPS, VQConfig, VQModel
from .checkpoint import Checkpoint
from .entries import Entry, module_entries
from .fields import ConfigSource, read, size, sizes

_MOST_CHANNELS = 2**14
VQ16_NAMES = {
    ".down.": ".conv_blocks.",
    ".up.": ".conv_blocks.",
    ".block.": ".res.",
    "mid.block_1.": "mid.0.",
    "mid.attn_1.": "mid.1.",
    "mid.block_2.": "mid.2.",
}
"""Parts of tensor names: name in :class:`..vq.VQModel` -> name in the VQ-16 of LlamaGen's authors.
:func:`coarsest_first` must renumber the levels of the decoder first."""


def check_channels(image_channels: int, widths: Iterable[int], source: ConfigSource) -> None:
    """Raise an AdtError if images do not have 3 channels, or if a level has a wrong number of channels.

    The channels of a level are a multiple of :data:`..vq.NORM_GROUPS`, and at most `_MOST_CHANNELS`.
    """
    if image_channels != 3:
        raise AdtError("codec.image_channels", source=source, image_channels=image_channels)
    wrong = next((width for width in widths if width % NORM_GROUPS or width > _MOST_CHANNELS), None)
    if wrong is not None:
        raise AdtError(
            "codec.channels", source=source, count=wrong, norm_groups=NORM_GROUPS, most_channels=_MOST_CHANNELS
        )


def vq_config(fields: dict, source: ConfigSource) -> VQConfig:
    """Return the shape of a codec from a ``vq_config``. Missing fields have the defaults of :class:`..vq.VQConfig`.

    Raises:
        AdtError: If a field has an unsupported value.
    """
    names = "embed_dim num_embeddings latent_channels resolution in_channels base_channels num_res_blocks".split()
    config = VQConfig(
        **{name: size(fields, name, source, getattr(VQConfig, name)) for name in names},
        channel_multiplier=sizes(fields, "channel_multiplier", source, VQConfig.channel_multiplier),
        attention=read(fields, "attention", SWITCH, source, VQConfig.attention),
        normalised=read(fields, "normalised", SWITCH, source, VQConfig.normalised),
    )
    check_channels(config.in_channels, config.widths, source)
    return config


def codec_shape(checkpoint: Checkpoint, prefix: str, blocks: str) -> dict[str, Any]:
    """Return the fields of a :class:`..vq.VQConfig` that follow from the shapes of a codec's tensors.

    Args:
        blocks: Pattern for the names of the encoder's residual blocks, such as "down.{}.block.{}". The numbers of level
            and block replace the braces.
    """
    convolution = f"{prefix}encoder.{blocks}.conv1.weight"
    level = convolution.format("{}", 0)
    block = convolution.format(0, "{}")
    base = checkpoint.sizes(f"{prefix}encoder.conv_in.weight")[0]
    width, latent, *_ = checkpoint.sizes(f"{prefix}quant_conv.weight", 2)
    widths = [checkpoint.sizes(level.format(i))[0] for i in range(checkpoint.count(level))]
    if not min(base, width, latent, *widths):
        raise AdtError("codec.shapes", path=checkpoint.path)
    return {
        "embed_dim": width,
        "latent_channels": latent,
        "base_channels": base,
        "channel_multiplier": tuple(level_width // base for level_width in widths),
        "num_res_blocks": checkpoint.count(block),
    }


def codec_config(checkpoint: Checkpoint, prefix: str, default: VQConfig) -> VQConfig:
    """Return the shape of a codec from its tensors, for a codec without a configuration file.

    Args:
        default: Shape of the published codec. It is returned if the checkpoint has no codec; otherwise its values are
            used for fields that the tensors don't determine.
    """
    if f"{prefix}encoder.conv_in.weight" not in checkpoint.names:
        return default
    codes, width = checkpoint.sizes(f"{prefix}quantize.embedding.weight", 2)[:2]
    found = replace(default, num_embeddings=codes, **codec_shape(checkpoint, prefix, "down.{}.block.{}"))
    if not codes or width != found.embed_dim or found.downsample > found.resolution:
        raise AdtError("codec.shapes", path=checkpoint.path)
    check_channels(found.in_channels, [found.base_channels, *found.widths], checkpoint.path)
    return found


def coarsest_first(name: str, config: VQConfig) -> str:
    """Return a parameter's name in checkpoints where ``up.0`` is the coarsest level (LlamaGen, transformers' Janus).

    In :class:`..vq.VQModel` and in Chameleon's checkpoints, ``up.0`` is the finest level. For example, with 5 levels,
    ``decoder.up.0.block.1`` becomes ``decoder.up.4.block.1``.
    """
    parts = name.split(".")
    if parts[:2] == ["decoder", "up"]:
        parts[2] = str(len(config.channel_multiplier) - 1 - int(parts[2]))
    return ".".join(parts)


def vq_entries(codec: VQModel, prefix: str) -> list[Entry]:
    """Return the entries of a codec in checkpoints where ``up.0`` is the coarsest level."""
    return module_entries(codec, prefix, lambda name: coarsest_first(name, codec.config))
