"""Vocabulary, batches and training forward pass of the bundled model.

Training uses the parameters of the engine's modules, but has its own forward pass, which runs over complete sequences
without a KV cache. ``tests/parity`` compares both forward passes with Chameleon in transformers.

Tensor dimensions: B sequences, n tokens of a sequence, T image tokens, h hidden size, places (left, middle and right).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adt_core.models.layers import Decoder, Layer
from adt_core.models.rotary import rope_tables

from .captions import CaptionWord, write_caption
from .scenes import PLACES, Scene, sample_wide_scene

IGNORE_INDEX = -100
"""Label that cross entropy ignores."""
CAPTION_DROPOUT = 0.1
"""Probability of dropping the caption, for classifier-free guidance."""
MAX_SAMPLED_SHARE = 0.08
"""Maximum share of an image's input tokens that are replaced by samples of the model (scheduled sampling)."""
SPECIAL_BEFORE = ["<s>", "<pad>", "</s>"]
SPECIAL_AFTER = ["<eoss>", "<racm3:break>", "<reserved08706>", "<image>"]


def image_token(code: int) -> str:
    """Return Chameleon's token name for an image code. Digits become letters: code 27 is "IMGIMGCHZ"."""
    return "IMGIMG" + "".join(chr(ord("A") + int(digit)) for digit in str(code)) + "Z"


def build_vocabulary(text: dict[str, int], num_codes: int) -> dict[str, int]:
    """Return the vocabulary of the target: caption tokens, special tokens and image tokens.

    Args:
        text: Caption tokens with their ids, from the tokenizer. The ids must be 0, 1, 2 and so on.

    Returns:
        Id of each token. Image tokens have consecutive ids in the order of their codes.
    """
    names = [
        *sorted(text, key=text.get),
        *SPECIAL_BEFORE,
        *(image_token(code) for code in range(num_codes)),
        *SPECIAL_AFTER,
    ]
    return {name: i for i, name in enumerate(names)}


@dataclass
class Batch:
    """Input ids and labels of a training batch."""

    ids: Tensor  # [B, n] input ids, right-padded
    image_starts: Tensor  # [B] index of the last prompt token, whose logits predict the first image token
    codes: Tensor  # [B, T] image codes to predict
    word_labels: Tensor  # [B, n] label of the object whose name or place ends at this token, else :data:`IGNORE_INDEX`
    plan_labels: Tensor  # [B, places] label of the object that the caption puts at each place; 0 is no object
    has_caption: Tensor  # [B] bool, False if the caption was dropped

    def at_image(self, values: Tensor) -> Tensor:
        """Select the positions of `values` [B, n, ...] that predict the image tokens. Returns [B, T, ...]."""
        index = self.image_starts[:, None] + torch.arange(self.codes.shape[1])
        return values[torch.arange(len(index))[:, None], index]

    def at_prompt_end(self, values: Tensor) -> Tensor:
        """Select the last prompt token of each sequence in `values` [B, n, ...]. Returns [B, ...]."""
        return values[torch.arange(len(self.image_starts)), self.image_starts]


class Sequences:
    """Training sequences ``<s> caption <reserved08706> <racm3:break> image``.

    A scene gets a new caption each time it is used. For scheduled sampling, some input tokens of an image are replaced
    by tokens that the model sampled at the same positions in an earlier step. The model thereby learns to continue
    after its own mistakes.

    Attributes:
        codes: [images, T] image codes.
        scenes: Scene of each image.
        vocabulary: Ids of all tokens, from :func:`build_vocabulary`.
        content_ids: Label of each (kind, colour) of an object, for the auxiliary heads.
        sampled: [images, T] tokens that the model sampled last for each image. Initially a copy of `codes`.
    """

    def __init__(
        self,
        codes: np.ndarray,
        scenes: list[Scene],
        vocabulary: dict[str, int],
        content_ids: dict[tuple[str, str | None], int],
    ):
        self.codes = codes
        self.scenes = scenes
        self.vocabulary = vocabulary
        self.content_ids = content_ids
        self.sampled = codes.copy()
        self.first_image_id = vocabulary[image_token(0)]

    def encode_prompt(self, caption: list[CaptionWord] | None) -> tuple[list[int], list[int]]:
        """Return the token ids and the word labels of a prompt. For None, return the unconditional prompt."""
        v = self.vocabulary
        if caption is None:
            return [v["<s>"], v["<racm3:break>"]], [IGNORE_INDEX] * 2
        labels = [
            IGNORE_INDEX if word.item is None else self.content_ids[word.item.kind, word.item.colour]
            for word in caption
        ]
        ids = [v["<s>"], *(v[word.text] for word in caption), v["<reserved08706>"], v["<racm3:break>"]]
        return ids, [IGNORE_INDEX, *labels, IGNORE_INDEX, IGNORE_INDEX]

    def plan_labels(self, caption: list[CaptionWord]) -> list[int]:
        """Return the label of the object that a caption puts at each place; 0 is no object."""
        items = [word.item for word in caption if word.item]
        by_place = {item.place: self.content_ids[item.kind, item.colour] for item in items}
        return [by_place.get(place, 0) for place in PLACES]

    def batch(self, indices: np.ndarray, rng: np.random.Generator, conditional: bool | None = None) -> Batch:
        """Return a batch of images with captions.

        Args:
            indices: [B] numbers of the images.
            rng: Generator for captions, caption dropout and scheduled sampling.
            conditional: None for training. For evaluation, True keeps all captions and False drops all captions;
                scheduled sampling is off in both cases.
        """
        keep = [rng.random() >= CAPTION_DROPOUT if conditional is None else conditional for _ in indices]
        captions = [write_caption(self.scenes[i], rng) if kept else None for i, kept in zip(indices, keep)]
        share = MAX_SAMPLED_SHARE * rng.random((len(indices), 1)) if conditional is None else 0.0
        is_sampled = rng.random(self.codes[indices].shape) < share
        codes = self.codes[indices]
        return self.collate(captions, codes, np.where(is_sampled, self.sampled[indices], codes))

    def prefix_batch(self, indices: np.ndarray, rng: np.random.Generator, tokens: int) -> Batch:
        """Return a batch of captions, each with only the first `tokens` tokens of its image."""
        codes = self.codes[indices, :tokens]
        return self.collate([write_caption(self.scenes[i], rng) for i in indices], codes, codes)

    def caption_batch(self, count: int, rng: np.random.Generator) -> Batch:
        """Return a batch of `count` captions of new scenes, without images (T = 0)."""
        codes = self.codes[:count, :0]
        return self.collate([write_caption(sample_wide_scene(rng), rng) for _ in range(count)], codes, codes)

    def collate(self, captions: Sequence[list[CaptionWord] | None], targets: np.ndarray, inputs: np.ndarray) -> Batch:
        """Combine captions and images into a right-padded batch.

        Args:
            captions: Caption of each image; None for the unconditional prompt.
            targets: [B, T] codes to predict.
            inputs: [B, T] codes that the model gets as input. They differ from `targets` in scheduled sampling.
        """
        prompts = [self.encode_prompt(caption) for caption in captions]
        codes = torch.from_numpy(targets.astype(np.int64))
        image = torch.from_numpy(inputs.astype(np.int64)) + self.first_image_id
        longest = max(len(ids) for ids, _ in prompts) + codes.shape[1]
        ids = torch.full((len(prompts), longest), self.vocabulary["<pad>"])
        word_labels = torch.full_like(ids, IGNORE_INDEX)
        for row, label_row, (prompt, labels), tokens in zip(ids, word_labels, prompts, image):
            row[: len(prompt)] = torch.tensor(prompt)
            label_row[: len(labels)] = torch.tensor(labels)
            row[len(prompt) : len(prompt) + len(tokens)] = tokens
        image_starts = torch.tensor([len(prompt) - 1 for prompt, _ in prompts])
        plan_labels = torch.tensor([self.plan_labels(caption or []) for caption in captions])
        has_caption = torch.tensor([caption is not None for caption in captions])
        return Batch(ids, image_starts, codes, word_labels, plan_labels, has_caption)


def run_layer(layer: Layer, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Run one layer over complete sequences with causal attention.

    Right padding needs no mask, because no token attends to later positions.

    Args:
        x: [B, n, h] residual stream before the layer.
        cos: [n, head_dim] rotary table of cosines.
        sin: [n, head_dim] rotary table of sines. The first half of head_dim is negated in this table, so ``roll`` can
            swap the halves of the queries and keys without changing signs.

    Returns:
        [B, n, h] residual stream after the layer.
    """
    c = layer.config
    h = x if layer.input_norm is None else F.rms_norm(x, (c.hidden_size,), layer.input_norm, c.rms_norm_eps)
    num_qk = c.num_heads + c.num_kv_heads
    heads = (h @ layer.qkv).unflatten(-1, (num_qk + c.num_kv_heads, c.head_dim)).transpose(1, 2)
    qk = heads[:, :num_qk]
    v = heads[:, num_qk:]
    if layer.qk_norm_weight is not None:
        qk = F.layer_norm(qk, (c.head_dim,), eps=1e-5) * layer.qk_norm_weight[:, None] + layer.qk_norm_bias[:, None]
    qk = qk * cos + qk.roll(c.head_dim // 2, -1) * sin
    y = F.scaled_dot_product_attention(
        qk[:, : c.num_heads], qk[:, c.num_heads :], v, is_causal=True, enable_gqa=c.num_kv_heads != c.num_heads
    )
    x = x + y.transpose(1, 2).flatten(2) @ layer.out
    gate, up = (F.rms_norm(x, (c.hidden_size,), layer.mlp_norm, c.rms_norm_eps) @ layer.gate_up).chunk(2, -1)
    return x + (F.silu(gate) * up) @ layer.down


def run_layers(decoder: Decoder, ids: Tensor, count: int | None = None) -> list[Tensor]:
    """Return the residual stream [B, n, h] after each layer.

    Args:
        ids: [B, n] complete sequences.
        count: Number of layers to run; all by default.
    """
    x = F.embedding(ids, decoder.embedding)
    cos, sin = (table[: ids.shape[1]] for table in rope_tables(decoder.config, decoder.embedding.detach()))
    streams = []
    for layer in decoder.layers[:count]:
        x = run_layer(layer, x, cos, sin)
        streams.append(x)
    return streams


def final_features(decoder: Decoder, stream: Tensor) -> Tensor:
    """Normalise the residual stream [B, n, h] of the last layer for the output head."""
    return F.rms_norm(stream, (decoder.config.hidden_size,), decoder.norm, decoder.config.rms_norm_eps)
