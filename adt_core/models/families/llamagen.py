"""LlamaGen, text to image: a plain transformer over the codes of VQ-16, behind 120 features of a caption.

Sun et al., arXiv 2406.06525. Stage 1 draws 16 x 16 codes (256 pixels), stage 2 32 x 32 (512 pixels). Two layouts: the authors' ``.pt`` files, and the
Hugging Face names of ``jadohu/LlamaGen-T2I`` and ``-2``, which LANTERN made of them. Either needs two things beside it, or one folder above: the codec
``vq_ds16_t2i.pt`` and the folder of the text encoder ``google/flan-t5-xl``.

Positions: the 120 of the caption have a rotation of zeros, which blanks queries and keys out, so that all of the caption in sight is attended to
evenly; a cell's queries and keys are rotated by its row in the first half of the pairs and by its column in the second.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from ...errors import AdtError
from ..checkpoint import Checkpoint, Entry, read_json, same, whole
from ..layers import Decoder
from ..layout import decoder_config, decoder_entries, load_tokenizer, unpaired
from ..target import Family, Prompt, Target
from ..vq import VQConfig, VQModel, authors_name
from . import captions

CAPTION = 120
"""Tokens of a caption, padding included."""
FILLER = 0
"""Id that a drafter pairs the features of the caption with."""
CODEC, T5, EMBEDDER = "codec.", "t5.", "cls_embedding."
_CODEC_FILES = ("vq_ds16_t2i.pt", "vq_ds16_t2i.safetensors")
_T5_FOLDERS = tuple(
    f"{name}/config.json"
    for name in ("flan-t5-xl", "google--flan-t5-xl", "google/flan-t5-xl", "t5-ckpt/flan-t5-xl", "t5/flan-t5-xl")
)
_FLAN_T5_XL = {
    "d_model": 2048,
    "d_kv": 64,
    "d_ff": 5120,
    "num_layers": 24,
    "num_heads": 32,
    "vocab_size": 32128,
    "feed_forward_proj": "gated-gelu",
}
_HEAD_DIM = 64
_REMEMBERED = 5000  # captions, of about 0.1 MB each
_POSITIONS = 2048  # of which only those of the grid are used
_RENAMED = (
    ("self_attn.o_proj", "attention.wo"),
    ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.up_proj", "feed_forward.w3"),
    ("mlp.down_proj", "feed_forward.w2"),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("lm_head", "output"),
    ("embed_tokens", "tok_embeddings"),
    ("model.", ""),
)


class CaptionEncoder(nn.Module):
    """T5's encoder, the projection of its features into the decoder, and the features that stand for no caption."""

    def __init__(self, config: dict, width: int):
        """config: of T5. width: of the decoder."""
        from transformers import T5Config, T5EncoderModel

        super().__init__()
        t5 = T5EncoderModel(T5Config(**config))
        self.t5 = t5
        t5.set_input_embeddings(
            t5.shared
        )  # one module under both names, so that moving it can't make two of the weight
        features = t5.config.d_model
        self.fc1, self.fc2 = nn.Linear(features, width, bias=False), nn.Linear(width, width, bias=False)
        self.uncond_embedding = nn.Parameter(torch.empty(CAPTION, features))

    def forward(self, ids: list[int]) -> Tensor:
        """T5 token ids -> [n, width], what the decoder reads."""
        device = self.uncond_embedding.device
        return self.project(self.t5(input_ids=torch.tensor([ids], device=device)).last_hidden_state[0])

    def project(self, features: Tensor) -> Tensor:
        """T5's features [n, d_model] -> [n, width]; zeros stay zeros."""
        return self.fc2(F.gelu(self.fc1(features.to(self.fc1.weight)), approximate="tanh"))


@dataclass
class LlamaGenPrompter:
    """Rows of 120 features. A caption's are at the end, and what is before them is hidden, in the unconditional row as well."""

    name: str
    tokenizer: Tokenizer
    encoder: CaptionEncoder

    def __post_init__(self) -> None:
        # What was read once is remembered, since by the next time the encoder may have made room for the decoder.
        self._read = lru_cache(_REMEMBERED)(torch.no_grad()(lambda ids: self.encoder(list(ids)).cpu()))
        self._nothing = lru_cache(1)(torch.no_grad()(lambda: self.encoder.project(self.encoder.uncond_embedding).cpu()))

    def encode(self, text: str, grid: tuple[int, int]) -> Prompt:
        if not text.strip():
            raise AdtError("prompt is empty; describe the picture in a few words.")
        cleaned = captions.clean(text)
        if not cleaned:
            raise AdtError(
                f"prompt {text.strip()!r} has nothing that {self.name} could read: links, file names and Chinese characters are dropped; "
                "describe the picture in English words."
            )
        ids = self.tokenizer.encode(cleaned).ids
        if len(ids) > CAPTION:
            raise AdtError(f"prompt is {len(ids)} tokens long, and {self.name} has room for {CAPTION}; shorten it.")
        hidden = CAPTION - len(ids)
        self._nothing()
        return _row(F.pad(self._read(tuple(ids)), (0, 0, hidden, 0)), hidden)

    def unconditional(self, prompt: Prompt, grid: tuple[int, int]) -> Prompt:
        return _row(self._nothing(), prompt.hidden)

    def check_grid(self, grid: tuple[int, int], usual: tuple[int, int]) -> str:
        return "" if grid == usual else f"it draws a grid of {usual[0]} x {usual[1]} tokens only"


def _row(features: Tensor, hidden: int) -> Prompt:
    row = Prompt([FILLER] * CAPTION)
    row.features, row.hidden = features, hidden
    return row


def skeleton(checkpoint: Checkpoint) -> Target:
    """An empty target of the family, with what is found beside its checkpoint added to that."""
    if f"{_prefix(checkpoint)}{EMBEDDER}embedding_table.weight" in checkpoint.names:
        raise AdtError(
            f"{checkpoint.path} is LlamaGen for classes of ImageNet, which can't be described in words; use one of its text-to-image models."
        )
    side = _side(checkpoint)
    config = checkpoint.config if _prefix(checkpoint) else _config(checkpoint)
    config = decoder_config(
        config,
        checkpoint.path,
        qk_norm=False,
        grid_rope=(CAPTION, side),
        max_positions=_POSITIONS,
        rope_theta=float(config.get("rope_base", 10000)),
    )
    codec, t5 = checkpoint.beside(_CODEC_FILES), checkpoint.beside(_T5_FOLDERS)
    if codec is not None:
        checkpoint.add(codec, CODEC)
    if t5 is not None:
        for file in Checkpoint(t5.parent).files:
            checkpoint.add(file, T5, only=("shared.", "encoder."))
    encoder = CaptionEncoder(_FLAN_T5_XL if t5 is None else read_json(t5), config.hidden_size)
    decoder = Decoder(config, torch.arange(config.vocab_size, device="cpu"))
    return Target(
        checkpoint.path.name,
        FAMILY.name,
        decoder,
        VQModel(_vq_config(checkpoint, side, config.vocab_size)),
        (side, side),
        text_encoder=encoder,
    )


def _prefix(checkpoint: Checkpoint) -> str:
    """What the names of the transformer's tensors begin with: nothing in the authors' layout."""
    return "model." if "model.embed_tokens.weight" in checkpoint.names else ""


def _side(checkpoint: Checkpoint) -> int:
    """Rows, and columns, of the grid. The authors' files don't say it but in their names."""
    block = checkpoint.config.get("block_size")
    if type(block) is int and block > 0 and math.isqrt(block) ** 2 == block:
        return math.isqrt(block)
    sizes = {int(n) for n in re.findall(r"(?<!\d)(?:256|512)(?!\d)", checkpoint.path.name)}
    if len(sizes) != 1:
        raise AdtError(
            f"{checkpoint.path} doesn't say how large its pictures are; name it as it was published, "
            "t2i_XL_stage1_256.pt or t2i_XL_stage2_512.pt."
        )
    return sizes.pop() // 16


def _config(checkpoint: Checkpoint) -> dict:
    """A ``config.json`` from the shapes of the authors' tensors."""
    vocabulary, hidden = checkpoint.shape("tok_embeddings.weight")
    fused = checkpoint.shape("layers.0.attention.wqkv.weight")[0]
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": checkpoint.shape("layers.0.feed_forward.w1.weight")[0],
        "num_hidden_layers": _count(checkpoint, "layers.{}.attention_norm.weight"),
        "num_attention_heads": hidden // _HEAD_DIM,
        "num_key_value_heads": (fused - hidden) // 2 // _HEAD_DIM,
    }


def _vq_config(checkpoint: Checkpoint, side: int, codes: int) -> VQConfig:
    """The codec's shape, from those of its tensors; that of VQ-16 if it was not found."""
    usual = VQConfig(embed_dim=8, num_embeddings=codes, attention=True, normalised=True)
    first, level = f"{CODEC}encoder.conv_in.weight", f"{CODEC}encoder.conv_blocks.{{}}.res.0.conv1.weight"
    if first in checkpoint.names:
        base, latent = checkpoint.shape(first)[0], checkpoint.shape(f"{CODEC}quant_conv.weight")
        widths = [checkpoint.shape(level.format(i))[0] for i in range(_count(checkpoint, level))]
        usual = replace(
            usual,
            embed_dim=latent[0],
            latent_channels=latent[1],
            base_channels=base,
            channel_multiplier=tuple(w // base for w in widths),
            num_res_blocks=_count(checkpoint, f"{CODEC}encoder.conv_blocks.0.res.{{}}.conv1.weight"),
        )
    return replace(usual, resolution=side * usual.downsample)


def _count(checkpoint: Checkpoint, name: str) -> int:
    """How many tensors of a numbered name there are."""
    number, names = 0, set(checkpoint.names)
    while name.format(number) in names:
        number += 1
    return number


def entries(target: Target, checkpoint: Checkpoint) -> list[Entry]:
    """Decoder and caption embedding in either layout, codec and T5 from their own files."""
    encoder, config, prefix = target.text_encoder, target.codec.config, _prefix(checkpoint)
    found = decoder_entries(target.decoder, checkpoint, turn=unpaired(target.decoder.config.head_dim))
    if not prefix:
        found = [_authors_entry(entry) for entry in found]
    found += [
        same(layer.weight, f"{prefix}{EMBEDDER}cap_proj.{name}.weight")
        for name, layer in (("fc1", encoder.fc1), ("fc2", encoder.fc2))
    ]
    found.append(same(encoder.uncond_embedding, f"{prefix}{EMBEDDER}uncond_embedding"))
    codec = [same(parameter, CODEC + authors_name(name, config)) for name, parameter in target.codec.named_parameters()]
    return found + codec + whole(encoder.t5, T5)


def _authors_name(name: str) -> str:
    for ours, theirs in _RENAMED:
        name = name.replace(ours, theirs)
    return name


def _authors_entry(entry: Entry) -> Entry:
    """The same parameter from the authors' layout, which has one tensor for q, k and v."""
    fused = re.sub(r"model\.(.*)\.self_attn\.q_proj\.", r"\1.attention.wqkv.", entry.names[0])
    if fused == entry.names[0]:
        return replace(entry, names=tuple(_authors_name(name) for name in entry.names))
    rows, width = [shape[0] for shape in entry.shapes], entry.shapes[0][1]
    return replace(
        entry, names=(fused,), shapes=((sum(rows), width),), make=lambda parts: entry.value(list(parts[0].split(rows)))
    )


def prompter(target: Target, checkpoint: Checkpoint) -> LlamaGenPrompter:
    """What reads the prompts of a target."""
    t5 = checkpoint.beside(_T5_FOLDERS)
    if t5 is None:
        raise AdtError(f"{checkpoint.path} has no text encoder; {_REMEDIES[T5]}.")
    captions.libraries()
    tokenizer = load_tokenizer(t5.parent)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return LlamaGenPrompter(target.name, tokenizer, target.text_encoder)


def _recognises(checkpoint: Checkpoint) -> bool:
    """It embeds captions, or classes, where other models have a prompt."""
    return any(name.removeprefix("model.").startswith(EMBEDDER) for name in checkpoint.names)


_REMEDIES = {
    CODEC: "download vq_ds16_t2i.pt of peizesun/llamagen_t2i and put it beside it",
    T5: "download google/flan-t5-xl and put its folder, flan-t5-xl, beside it",
}
FAMILY = Family(
    "llamagen",
    _recognises,
    skeleton,
    entries,
    prompter,
    unneeded=(f"{CODEC}quantize.codebook_used", f"{T5}encoder.embed_tokens."),
    remedies=_REMEDIES,
)
