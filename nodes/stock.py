"""The CLIP and VAE objects that ComfyUI's own nodes call.

``CLIP Text Encode`` turns text into a CONDITIONING that only our samplers can read. ``VAE Decode`` and ``VAE Encode``,
tiled or not, go through the model's image tokeniser. A LATENT carries codebook vectors [B, C, h, w] in float32, so that
stock latent nodes can crop, flip or mix it. When it is decoded, every vector becomes the nearest code again.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import comfy.model_management as mm
import torch
from comfy.model_patcher import ModelPatcher
from PIL import Image
from torch import Tensor

from ..adt_core.errors import AdtError
from .decoration import decorating
from .marks import note
from .runtime import check_cancelled, loaded, tell
from .sockets import LoadedModel

_PROMPT = "adt_tree_prompt"
_SOURCES = "reference_latents"  # what the stock node ReferenceLatent sets
_NOT_OURS = "connect a CLIP Text Encode node whose CLIP comes from an ADT-Tree Model Loader."


@dataclass(frozen=True)
class Prompt:
    """A prompt as our CLIP hands it on. The samplers use the text: each model reads it with its own tokenizer."""

    text: str
    ids: tuple[int, ...]

    def __getitem__(self, stream):
        raise AdtError(
            f"CLIP: an ADT-Tree prompt has no '{stream}' stream of tokens; use the plain CLIP Text Encode (Prompt) "
            "node."
        )


class PromptTensor(torch.Tensor):
    """Token ids as the tensor of a CONDITIONING: it can be looked at and copied, but no sums can be done with it.

    So other samplers, and nodes that blend embeddings, fail with a sentence that helps.
    """

    _ALLOWED = {"__get__", "__repr__", "numel", "element_size", "size", "dim", "clone", "detach", "to", "cpu", "tolist"}

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func.__name__ not in cls._ALLOWED:
            raise AdtError(
                "This CONDITIONING comes from an ADT-Tree Model Loader's CLIP and holds text, not an embedding: "
                "connect it straight to an ADT-Tree Sampler (leave its negative empty rather than zeroing one), and "
                "use the CLIP of their own checkpoint for other samplers."
            )
        return super().__torch_function__(func, types, args, kwargs or {})


class _Stock:
    """Says which stock nodes an object is for, when another node asks for an attribute that it does not have."""

    kind = use = ""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"The {self.kind} of an ADT-Tree Model Loader has no '{name}': it works with {self.use}.")


def encode(model: LoadedModel, text: str) -> Any:
    """The conditional row of a text, with the model's text encoder, if it has one, on its device.

    Raises AdtError for an empty text, and for one that is too long.
    """
    with text_encoder(model):
        return model.target.encode_prompt(text)


def text_encoder(model: LoadedModel) -> AbstractContextManager:
    """The model's text encoder, if it has one, on its device."""
    return loaded([model.text]) if model.text is not None else nullcontext()


class TextEncoder(_Stock):
    """What ``CLIP Text Encode`` needs of a CLIP. It has no weights in most families: the model reads the tokens."""

    kind, use = "CLIP", "the CLIP Text Encode (Prompt) node"

    def __init__(self, model: LoadedModel):
        self.model = model

    def tokenize(self, text: str, *_, **__) -> Prompt:
        """Check the length of a prompt. An empty text is allowed: it stands for the row that guidance compares with."""
        row = encode(self.model, text) if text.strip() else None
        if row is not None and row.note:
            tell(row.note)
        return Prompt(text, tuple(row or (0,)))

    def encode_from_tokens_scheduled(self, tokens: Prompt, *_, **__) -> list:
        """``[[tensor [1, n, 1], dict]]``, as every CONDITIONING is. The prompt itself is in the dict."""
        tensor = torch.tensor(tokens.ids, dtype=torch.float32).reshape(1, -1, 1)
        return [[tensor.as_subclass(PromptTensor), {_PROMPT: tokens}]]


def read_prompt(conditioning: list, name: str) -> Prompt:
    """The prompt in one of our CONDITIONINGs. name: of the input, for the AdtError if it is not exactly one of ours."""
    if not _are_pairs(conditioning) or not isinstance(conditioning[0][1].get(_PROMPT), Prompt):
        raise AdtError(f"{name}: this CONDITIONING was made for another kind of model; {_NOT_OURS}")
    if len(conditioning) > 1:
        raise AdtError(
            f"{name}: {len(conditioning)} prompts are combined, but an image is made from one text; {_NOT_OURS}"
        )
    changes = sorted(set(conditioning[0][1]) - {_PROMPT, _SOURCES})
    if changes:
        raise AdtError(
            f"{name}: a node between CLIP Text Encode and the ADT-Tree Sampler has set {', '.join(changes)}, "
            "which this kind of model cannot follow; connect the two directly."
        )
    return conditioning[0][1][_PROMPT]


def read_sources(conditioning: list) -> list[dict]:
    """The LATENTs of source pictures that ReferenceLatent nodes have put into one of our CONDITIONINGs."""
    return [{"samples": samples} for samples in conditioning[0][1].get(_SOURCES, ())]


def _are_pairs(conditioning: Any) -> bool:
    """Is it a list of what every CONDITIONING holds: a tensor, and a dict of what belongs to it?"""
    if not isinstance(conditioning, list) or not conditioning:
        return False
    return all(isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[1], dict) for pair in conditioning)


class ImageTokenizer(_Stock):
    """What ``VAE Decode``, ``VAE Encode`` and their tiled variants need of a VAE.

    patcher: manages the memory of the model's VQ codec. downsample: pixels per side of a token.
    """

    kind, use = "VAE", "the VAE Decode and VAE Encode nodes, tiled or not"

    def __init__(self, patcher: ModelPatcher, downsample: int):
        self.patcher, self.downsample = patcher, downsample

    @property
    def latent_channels(self) -> int:
        return self.patcher.model.module.codebook.shape[1]

    def spacial_compression_decode(self) -> int:
        return self.downsample

    spacial_compression_encode = spacial_compression_decode

    def temporal_compression_decode(self) -> None:
        return None

    def decode(self, samples: Tensor, *_, **__) -> Tensor:
        """Codebook vectors [B, C, h, w] -> IMAGE [B, H, W, 3], float32 in 0..1."""
        if samples.ndim != 4 or samples.shape[1] != self.latent_channels:
            raise AdtError(
                f"samples: this LATENT has the shape {list(samples.shape)}, but the model's codebook vectors have "
                f"{self.latent_channels} channels ([batch, {self.latent_channels}, rows, columns]); decode it with the "
                "VAE of the checkpoint that made it, or connect an ADT-Tree Sampler."
            )
        images = []
        with self._loaded(samples.shape[2] * samples.shape[3] * self.downsample**2) as (codec, device):
            for vectors in samples.split(1):  # one by one: memory does not grow with the batch, nor do images differ
                pixels = codec.decode(codec.nearest(vectors.to(device, torch.float32)), check=check_cancelled)
                images.append(to_image(pixels).to(mm.intermediate_device()))
                with decorating("the mark of an image"):
                    note(vectors, images[-1])
            if codec.note:
                tell(codec.note)
        return torch.cat(images)

    def decode_tiled(self, samples: Tensor, *_, **__) -> Tensor:
        """The same as :meth:`decode`: the codec needs the whole image at once."""
        return self.decode(samples)

    def encode(self, pixels: Tensor, *_, **__) -> Tensor:
        """IMAGE [B, H, W, 3 or 4] in 0..1 -> codebook vectors [B, C, h, w], float32.

        The image is cropped as :func:`cropped` does.
        """
        pixels = cropped(pixels, self.downsample, "pixels").movedim(-1, 1) * 2 - 1
        with self._loaded(pixels.shape[2] * pixels.shape[3]) as (codec, device):
            codes = [codec.encode(image.to(device, torch.float32), check=check_cancelled) for image in pixels.split(1)]
            return codec.lookup(torch.cat(codes)).to(mm.intermediate_device(), torch.float32)

    def encode_tiled(self, pixels: Tensor, *_, **__) -> Tensor:
        """The same as :meth:`encode`."""
        return self.encode(pixels)

    @contextmanager
    def _loaded(self, pixels: int) -> Iterator[tuple[Any, torch.device]]:
        """The codec and its device, with room to work on an image of so many pixels."""
        codec = self.patcher.model.module
        with loaded([self.patcher], memory_required=codec.working_bytes(pixels)) as device:
            yield codec, device


def cropped(image: Tensor, side: int, name: str) -> Tensor:
    """IMAGE [B, H, W, 3 or 4] -> [B, h, w, 3], without alpha.

    Height and width are cropped, evenly on both sides, to multiples of ``side``, as the stock VAEs do. AdtError, naming
    the input, for what is no image, or smaller.
    """
    height, width = (length - length % side for length in image.shape[1:3])
    if image.ndim != 4 or image.shape[3] < 3 or not height or not width:
        raise AdtError(
            f"{name}: this IMAGE has the shape {list(image.shape)}, but [batch, height, width, 3 or 4 colours] of "
            f"at least {side} by {side} pixels is needed; resize or convert it first."
        )
    top, left = (image.shape[1] - height) // 2, (image.shape[2] - width) // 2
    return image[:, top : top + height, left : left + width, :3]


def to_image(pixels: Tensor) -> Tensor:
    """Pixels [B, 3, H, W] in -1..1 -> IMAGE [B, H, W, 3], float32 in 0..1."""
    return (pixels.float().movedim(1, -1) / 2 + 0.5).clamp(0, 1)


def to_picture(image: Tensor) -> Image.Image:
    """One image [H, W, 3] of an IMAGE -> an 8-bit picture."""
    return Image.fromarray((image * 255).round().to(torch.uint8).cpu().numpy())
