"""Token sequences of the bundled model: its vocabulary, batches, and the full-sequence forward of training.

The engine's modules hold the parameters; inference runs them over a cache, training over whole sequences, and
``tests/parity`` holds both to transformers' Chameleon.
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

from .scenes import PLACES, Scene, sample_wide_scene
from .wording import Said, word

NOTHING = -100  # what cross entropy passes over
DROPPED = 0.1  # share of pictures that are shown without their caption
MISTAKES = 0.08  # at most this share of the tokens that the model reads are its own earlier draws
SPECIAL_BEFORE = ["<s>", "<pad>", "</s>"]
SPECIAL_AFTER = ["<eoss>", "<racm3:break>", "<reserved08706>", "<image>"]


def image_token(code: int) -> str:
    """Chameleon's name of a code: its decimal digits as letters A..J."""
    return "IMGIMG" + "".join(chr(ord("A") + int(digit)) for digit in str(code)) + "Z"


def build_vocabulary(text: dict[str, int], num_codes: int) -> dict[str, int]:
    """Caption tokens keep their ids; special tokens and image tokens follow, image tokens in code order."""
    names = [
        *sorted(text, key=text.get),
        *SPECIAL_BEFORE,
        *(image_token(code) for code in range(num_codes)),
        *SPECIAL_AFTER,
    ]
    return {name: i for i, name in enumerate(names)}


@dataclass
class Batch:
    """ids [B, n] right-padded inputs; starts [B]: where the image-token predictions begin; codes [B, T] targets;
    said [B, n]: which thing a word ends to name, :data:`NOTHING` at all others; planned [B, places]: which thing the
    caption puts at each place, 0 for none; captioned [B] bool: which rows kept their caption."""

    ids: Tensor
    starts: Tensor
    codes: Tensor
    said: Tensor
    planned: Tensor
    captioned: Tensor

    def at_image(self, values: Tensor) -> Tensor:
        """Gather ``values`` [B, n, ...] at the positions that predict the image tokens, [B, T, ...]."""
        index = self.starts[:, None] + torch.arange(self.codes.shape[1])
        return values[torch.arange(len(index))[:, None], index]

    def at_end(self, values: Tensor) -> Tensor:
        """``values`` [B, n, ...] at the last token of each prompt, [B, ...]."""
        return values[torch.arange(len(self.starts)), self.starts]


class Sequences:
    """Scenes and codes as model inputs: ``<s> caption <reserved08706> <racm3:break> image``.

    A scene is worded anew each time that it is seen. contents: what a word may be said of, as indices. ``drawn``: what
    the model drew at each place of a picture when it last saw it, at first the picture itself. Some of the tokens that
    the model reads are taken from there, so that it learns to go on well after its own mistakes.
    """

    def __init__(
        self,
        codes: np.ndarray,
        scenes: list[Scene],
        vocabulary: dict[str, int],
        contents: dict[tuple[str, str | None], int],
    ):
        self.codes, self.scenes, self.vocabulary, self.contents = codes, scenes, vocabulary, contents
        self.drawn = codes.copy()
        self.first_image_id = vocabulary[image_token(0)]

    def prompt(self, caption: list[Said] | None) -> tuple[list[int], list[int]]:
        """The ids of a prompt, and what each is said of. No caption: the prompt without condition."""
        v = self.vocabulary
        if caption is None:
            return [v["<s>"], v["<racm3:break>"]], [NOTHING] * 2
        said = [NOTHING if word.of is None else self.contents[word.of.kind, word.of.colour] for word in caption]
        ids = [v["<s>"], *(v[word.word] for word in caption), v["<reserved08706>"], v["<racm3:break>"]]
        return ids, [NOTHING, *said, NOTHING, NOTHING]

    def plan(self, caption: list[Said]) -> list[int]:
        """What a caption puts at each place, 0 for nothing."""
        things = {word.of.place: self.contents[word.of.kind, word.of.colour] for word in caption if word.of}
        return [things.get(place, 0) for place in PLACES]

    def batch(self, indices: np.ndarray, rng: np.random.Generator, conditional: bool | None = None) -> Batch:
        """One batch; a share DROPPED of captions is dropped, and of the tokens that are read up to MISTAKES were drawn
        by the model. If ``conditional`` says whether captions are kept, all are true."""
        keep = [rng.random() >= DROPPED if conditional is None else conditional for _ in indices]
        captions = [word(self.scenes[i], rng) if kept else None for i, kept in zip(indices, keep)]
        share = MISTAKES * rng.random((len(indices), 1)) if conditional is None else 0.0
        wrong = rng.random(self.codes[indices].shape) < share
        return self.laid_out(captions, self.codes[indices], np.where(wrong, self.drawn[indices], self.codes[indices]))

    def lessons(self, indices: np.ndarray, rng: np.random.Generator, tokens: int) -> Batch:
        """Captions with no more than the first ``tokens`` of their pictures."""
        codes = self.codes[indices, :tokens]
        return self.laid_out([word(self.scenes[i], rng) for i in indices], codes, codes)

    def captions(self, count: int, rng: np.random.Generator) -> Batch:
        """Captions of new scenes, without pictures."""
        codes = self.codes[:count, :0]
        return self.laid_out([word(sample_wide_scene(rng), rng) for _ in range(count)], codes, codes)

    def laid_out(self, captions: Sequence[list[Said] | None], truth: np.ndarray, read: np.ndarray) -> Batch:
        """Pictures behind their captions. truth, read: codes [B, T] that are to be told, and that the model reads."""
        prompts = [self.prompt(caption) for caption in captions]
        codes = torch.from_numpy(truth.astype(np.int64))
        image = torch.from_numpy(read.astype(np.int64)) + self.first_image_id
        longest = max(len(ids) for ids, _ in prompts) + codes.shape[1]
        ids = torch.full((len(prompts), longest), self.vocabulary["<pad>"])
        said = torch.full_like(ids, NOTHING)
        for row, marks, (prompt, of), tokens in zip(ids, said, prompts, image):
            row[: len(prompt)] = torch.tensor(prompt)
            marks[: len(of)] = torch.tensor(of)
            row[len(prompt) : len(prompt) + len(tokens)] = tokens
        starts = torch.tensor([len(prompt) - 1 for prompt, _ in prompts])
        planned = torch.tensor([self.plan(caption or []) for caption in captions])
        return Batch(ids, starts, codes, said, planned, torch.tensor([caption is not None for caption in captions]))


def run_layer(layer: Layer, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """One layer over whole sequences x [B, n, h], causal; right padding needs no mask."""
    c = layer.config
    h = x if layer.input_norm is None else F.rms_norm(x, (c.hidden_size,), layer.input_norm, c.rms_norm_eps)
    both = c.num_heads + c.num_kv_heads
    heads = (h @ layer.qkv).unflatten(-1, (both + c.num_kv_heads, c.head_dim)).transpose(1, 2)
    qk, v = heads[:, :both], heads[:, both:]
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
    """The residual stream [B, n, h] after each of the first ``count`` layers, or of all; of whole sequences."""
    x = F.embedding(ids, decoder.embedding)
    cos, sin = (table[: ids.shape[1]] for table in rope_tables(decoder.config, decoder.embedding.detach()))
    streams = []
    for layer in decoder.layers[:count]:
        x = run_layer(layer, x, cos, sin)
        streams.append(x)
    return streams


def final_features(decoder: Decoder, stream: Tensor) -> Tensor:
    """What the head reads: the last layer's residual stream, normed."""
    return F.rms_norm(stream, (decoder.config.hidden_size,), decoder.norm, decoder.config.rms_norm_eps)
