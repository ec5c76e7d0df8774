"""CLIP and VAE objects for ComfyUI's own nodes.

`CLIP Text Encode` turns text into a CONDITIONING that only this pack's samplers can read. `VAE Decode` and `VAE
Encode`, tiled or not, use the model's image tokeniser. A LATENT holds codebook vectors [B, C, h, w] in float32, so
ComfyUI's own latent nodes can crop, flip or blend it. B is the number of images, C the number of channels, and h and w
are the rows and columns of tokens. Decoding maps every vector to the nearest vector of the codebook.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import comfy.model_management as mm
import torch
from comfy.model_patcher import ModelPatcher
from PIL import Image
from torch import Tensor

from ..adt_core import AdtError, PromptTooLongError
from .comfy_runtime import check_cancelled, tell
from .sockets import LoadedModel
from .weights import loaded

_PROMPT = "adt_tree_prompt"
_SOURCES = "reference_latents"  # set by the stock node ReferenceLatent


@dataclass(frozen=True)
class Prompt:
    """Tokens that this pack's CLIP returns. The samplers use only the text, because each model has its own tokenizer.

    Attributes:
        text: The prompt.
        ids: Token ids, for nodes that inspect the tensor.
    """

    text: str
    ids: tuple[int, ...]

    def __getitem__(self, stream):
        raise AdtError("clip.stream", stream=stream)


class PromptTensor(torch.Tensor):
    """Tensor of a CONDITIONING that contains token ids instead of embeddings.

    Nodes can inspect and copy the tensor. Arithmetic raises AdtError, so other samplers, and nodes that blend
    embeddings, fail with a helpful message.
    """

    _ALLOWED = {"__get__", "__repr__", "numel", "element_size", "size", "dim", "clone", "detach", "to", "cpu", "tolist"}

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func.__name__ not in cls._ALLOWED:
            raise AdtError("conditioning.is_text")
        return super().__torch_function__(func, types, args, kwargs or {})


class _Stock:
    """Base class of the CLIP and VAE objects.

    If a node uses an attribute that the object does not have, the AttributeError names the nodes that the object works
    with.
    """

    kind = use = ""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"The {self.kind} of an ADT-Tree Model Loader has no '{name}': it works with {self.use}.")


def encode(model: LoadedModel, text: str) -> Any:
    """Encode a text to the token ids of a prompt. Raise AdtError if it is empty or too long."""
    with text_encoder(model):
        return model.target.encode_prompt(text)


def text_encoder(model: LoadedModel) -> AbstractContextManager:
    """Return a context manager that keeps the model's text encoder, if it has one, on its device."""
    return loaded([model.text]) if model.text is not None else nullcontext()


class TextEncoder(_Stock):
    """CLIP for `CLIP Text Encode`. In most model families it has no weights, because the model embeds the tokens."""

    kind = "CLIP"
    use = "the CLIP Text Encode (Prompt) node"

    def __init__(self, model: LoadedModel):
        self.model = model

    def tokenize(self, text: str, *_, **__) -> Prompt:
        """Check and encode a prompt.

        An empty text is valid. As a negative prompt, it means that guidance compares the prompt with no text. A text
        that is too long is also valid: the sampler rejects or truncates it, depending on its input `invalid_prompts`.
        """
        row = None
        with suppress(PromptTooLongError):
            row = encode(self.model, text) if text.strip() else None
        if row is not None and row.note:
            tell(row.note)
        return Prompt(text, tuple(row or (0,)))

    def encode_from_tokens_scheduled(self, tokens: Prompt, *_, **__) -> list:
        """Return a CONDITIONING, `[[tensor [1, n, 1], dict]]`, with the prompt in the dict."""
        tensor = torch.tensor(tokens.ids, dtype=torch.float32).reshape(1, -1, 1)
        return [[tensor.as_subclass(PromptTensor), {_PROMPT: tokens}]]


def read_prompt(conditioning: list, name: str) -> Prompt:
    """Return the prompt in a CONDITIONING. Raise AdtError if another CLIP made it, or a node combined or changed it."""
    pairs = conditioning if isinstance(conditioning, list) else []
    are_pairs = all(isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[1], dict) for pair in pairs)
    if not pairs or not are_pairs or not isinstance(pairs[0][1].get(_PROMPT), Prompt):
        raise AdtError("conditioning.other_model", input=name)
    if len(conditioning) > 1:
        raise AdtError("conditioning.combined", input=name, count=len(conditioning))
    changes = sorted(set(conditioning[0][1]) - {_PROMPT, _SOURCES})
    if changes:
        raise AdtError("conditioning.changed", input=name, changes=", ".join(changes))
    return conditioning[0][1][_PROMPT]


def read_sources(conditioning: list) -> list[dict]:
    """Return the LATENTs of source images that ReferenceLatent nodes have added to a CONDITIONING of this pack."""
    return [{"samples": samples} for samples in conditioning[0][1].get(_SOURCES, ())]


class ImageTokenizer(_Stock):
    """VAE for `VAE Decode`, `VAE Encode` and their tiled variants.

    Args:
        patcher: Manages the memory of the model's VQ codec.
        downsample: Pixels per side of a token.
    """

    kind = "VAE"
    use = "the VAE Decode and VAE Encode nodes, tiled or not"

    def __init__(self, patcher: ModelPatcher, downsample: int):
        self.patcher = patcher
        self.downsample = downsample

    @property
    def latent_channels(self) -> int:
        return self.patcher.model.module.codebook.shape[1]

    def spacial_compression_decode(self) -> int:
        return self.downsample

    spacial_compression_encode = spacial_compression_decode

    def temporal_compression_decode(self) -> None:
        return None

    def decode(self, samples: Tensor, *_, **__) -> Tensor:
        """Decode codebook vectors [B, C, h, w] to an IMAGE [B, H, W, 3], float32 in 0..1."""
        if samples.ndim != 4 or samples.shape[1] != self.latent_channels:
            raise AdtError("samples.shape", shape=list(samples.shape), channels=self.latent_channels)
        images = []
        with self._loaded(samples.shape[2] * samples.shape[3] * self.downsample**2) as (codec, device):
            for vectors in samples.split(1):  # one at a time, so memory and rounding do not depend on the batch
                pixels = codec.decode(codec.nearest(vectors.to(device, torch.float32)), check=check_cancelled)
                images.append(to_image(pixels).to(mm.intermediate_device()))
            if codec.note:
                tell(codec.note)
        return torch.cat(images)

    def decode_tiled(self, samples: Tensor, *_, **__) -> Tensor:
        """Decode without tiles, because the codec needs the complete image."""
        return self.decode(samples)

    def encode(self, pixels: Tensor, *_, **__) -> Tensor:
        """Encode an IMAGE [B, H, W, 3 or 4] in 0..1 to codebook vectors [B, C, h, w] in float32.

        The image is cropped first, so that its sides are multiples of `downsample`.
        """
        pixels = cropped(pixels, self.downsample, "pixels").movedim(-1, 1) * 2 - 1
        with self._loaded(pixels.shape[2] * pixels.shape[3]) as (codec, device):
            codes = [codec.encode(image.to(device, torch.float32), check=check_cancelled) for image in pixels.split(1)]
            return codec.lookup(torch.cat(codes)).to(mm.intermediate_device(), torch.float32)

    def encode_tiled(self, pixels: Tensor, *_, **__) -> Tensor:
        """Encode without tiles, because the codec needs the complete image."""
        return self.encode(pixels)

    @contextmanager
    def _loaded(self, pixels: int) -> Iterator[tuple[Any, torch.device]]:
        """Keep the codec on its device, with free memory for an image of this number of pixels."""
        codec = self.patcher.model.module
        with loaded([self.patcher], memory_required=codec.working_bytes(pixels)) as device:
            yield codec, device


def cropped(image: Tensor, side: int, name: str) -> Tensor:
    """Crop an IMAGE [B, H, W, 3 or 4] to [B, h, w, 3], with sides that are multiples of `side`, the pixels of a token.

    The crop is centred, as with ComfyUI's own VAEs.

    Raises:
        AdtError: If the value is not an IMAGE, or smaller than `side`.
    """
    height, width = (length - length % side for length in image.shape[1:3])
    if image.ndim != 4 or image.shape[3] < 3 or not height or not width:
        raise AdtError("image.shape", input=name, shape=list(image.shape), side=side)
    top = (image.shape[1] - height) // 2
    left = (image.shape[2] - width) // 2
    return image[:, top : top + height, left : left + width, :3]


def to_image(pixels: Tensor) -> Tensor:
    """Convert pixels [B, 3, H, W] in -1..1 to an IMAGE [B, H, W, 3], float32 in 0..1."""
    return (pixels.float().movedim(1, -1) / 2 + 0.5).clamp(0, 1)


def to_picture(image: Tensor) -> Image.Image:
    """Convert one image [H, W, 3] of an IMAGE to 8 bits."""
    return Image.fromarray((image * 255).round().to(torch.uint8).cpu().numpy())
