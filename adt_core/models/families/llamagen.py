"""LlamaGen, text to image: a transformer over the codes of VQ-16, after 120 features of a caption.

Sun et al., arXiv 2406.06525. Stage 1 generates 16 x 16 codes (256 pixels), stage 2 32 x 32 (512 pixels). Layouts: the
authors' ``.pt`` files, and ``jadohu/LlamaGen-T2I`` and ``jadohu/LlamaGen-T2I-2``, in which LANTERN's authors renamed
the tensors as Hugging Face does. Both need the codec ``vq_ds16_t2i.pt`` and the folder of the text encoder
``google/flan-t5-xl``, in the same folder or one above.

Positions: queries and keys of the 120 caption tokens are set to zero, so every token attends evenly to the visible part
of the caption. Half of the rotated pairs of an image token use its row, the others its column.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import cast

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from ...errors import AdtError, shown
from ...untrusted import number
from ..config import DecoderConfig
from ..downloads import Download, Published
from ..family import Family
from ..layers import Decoder
from ..prompter import check_ids, stripped
from ..reading.checkpoint import Checkpoint
from ..reading.codec import VQ16_NAMES, codec_shape, vq_entries
from ..reading.entries import Entry, copy_entry, module_entries
from ..reading.fields import ConfigSource, read, read_json
from ..reading.layout import decoder_config, decoder_entries
from ..reading.t5 import t5_encoder
from ..reading.tokenizer import encode, load_tokenizer
from ..target import EncodedPrompt, Prompter, PublishedSampling, Target
from ..vq import VQConfig, VQModel
from . import chameleon
from . import llamagen_captions as captions

CAPTION = 120
"""Tokens of a caption, including padding."""
END = "</s>"
"""Token of T5 that ends every caption."""
FILLER = 0
"""Token id that a drafter reads together with the features of a caption."""
CODEC = "codec."
T5 = "t5."
EMBEDDER = "cls_embedding."
_CODEC_FILES = ("vq_ds16_t2i.pt", "vq_ds16_t2i.safetensors")
_T5_FILES = (
    *(f"{folder}flan-t5-xl/config.json" for folder in ("", "google--", "google/", "t5-ckpt/", "t5/")),
    "models--google--flan-t5-xl/snapshots/*/config.json",
)
_FLAN_T5_XL = {
    "d_model": 2048,
    "d_kv": 64,
    "d_ff": 5120,
    "num_layers": 24,
    "num_heads": 32,
    "vocab_size": 32128,
}
_HEAD_DIM = 64
_CACHED_CAPTIONS = 5000  # of about 0.1 MB each
_POSITIONS = 2048  # more than the grid needs
# From Hugging Face names of tensors to the authors'.
_AUTHORS_NAMES = {
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "lm_head": "output",
    "embed_tokens": "tok_embeddings",
    "model.": "",
}


def _recognises(config: dict, names: Collection[str]) -> bool:
    """Return whether a checkpoint embeds captions or classes instead of prompts."""
    return "cls_token_num" in config or any(name.removeprefix("model.").startswith(EMBEDDER) for name in names)


class CaptionEncoder(nn.Module):
    """T5's encoder, the projection of its features into the decoder, and the features of an empty caption."""

    def __init__(self, config: dict, source: ConfigSource, width: int):
        """Build an empty encoder.

        Args:
            config: Fields of T5's ``config.json``.
            source: The file, for error messages.
            width: Hidden size of the decoder.
        """
        super().__init__()
        self.t5 = t5_encoder(config, source, _FLAN_T5_XL, "eager")
        features = self.t5.config.d_model
        self.fc1 = nn.Linear(features, width, bias=False)
        self.fc2 = nn.Linear(width, width, bias=False)
        self.uncond_embedding = nn.Parameter(torch.empty(CAPTION, features))

    def forward(self, ids: list[int]) -> Tensor:
        """Return the decoder's input [n, width] of n T5 token ids."""
        device = self.uncond_embedding.device
        return self.project(self.t5(input_ids=torch.tensor([ids], device=device)).last_hidden_state[0])

    def project(self, features: Tensor) -> Tensor:
        """Project T5's features [n, d_model] to [n, width]; zeros stay zeros."""
        return self.fc2(F.gelu(self.fc1(features.to(self.fc1.weight)), approximate="tanh"))


@dataclass
class LlamaGenPrompter(Prompter):
    """Prompter with rows of 120 features: hidden padding, then the caption.

    The features of earlier captions are cached, because the encoder may leave the GPU while the decoder runs.

    Attributes:
        name: Name of the model in error messages.
        tokenizer: T5's tokenizer.
        end: Token id of END.
        encoder: Text encoder.
    """

    name: str
    tokenizer: Tokenizer
    end: int
    encoder: CaptionEncoder

    def __post_init__(self) -> None:
        self._features = lru_cache(_CACHED_CAPTIONS)(self._encode)

    def encode(self, text: str, grid: tuple[int, int]) -> EncodedPrompt:
        ids, note = self._read(text)
        hidden = CAPTION - len(ids)
        _ = self._empty_caption  # computed while the encoder is loaded
        return EncodedPrompt([FILLER] * CAPTION, F.pad(self._features(ids), (0, 0, hidden, 0)), hidden, note)

    def check(self, text: str, grid: tuple[int, int]) -> str:
        return self._read(text)[1]

    def _read(self, text: str) -> tuple[tuple[int, ...], str]:
        """Return the token ids of a caption, and a note if it was truncated."""
        text = stripped(text)
        cleaned = captions.clean(text)
        if not cleaned:
            ignored = "links, file names and Chinese characters are ignored"
            problem = f"prompt {shown(text)} has no words that {self.name} can read ({ignored})"
            raise AdtError(f"{problem}; describe the image in English words.")
        encoding = encode(self.tokenizer, cleaned, self.name)
        ids = [*encoding.ids, self.end]
        check_ids(ids, self.encoder.t5.config.vocab_size, "T5")
        if len(ids) <= CAPTION:
            return tuple(ids), ""
        last = cleaned[: encoding.offsets[CAPTION - 2][1]][-40:]
        note = f"The prompt has {len(ids)} tokens, but {self.name} reads only {CAPTION}: it was cut after {last!r}."
        return (*ids[: CAPTION - 1], self.end), note  # truncated as in training

    def unconditional(self, prompt: EncodedPrompt, grid: tuple[int, int]) -> EncodedPrompt:
        return EncodedPrompt([FILLER] * CAPTION, self._empty_caption, prompt.hidden)

    @torch.no_grad()
    def _encode(self, ids: tuple[int, ...]) -> Tensor:
        """Return the decoder's input [n, width] of a caption, on the CPU."""
        return self.encoder(list(ids)).cpu()

    @cached_property
    @torch.no_grad()
    def _empty_caption(self) -> Tensor:
        """Decoder's input [120, width] of an empty caption, on the CPU."""
        return self.encoder.project(self.encoder.uncond_embedding).cpu()


def skeleton(checkpoint: Checkpoint) -> Target:
    """Return an empty target of the family. Codec and T5 are added to the checkpoint from other files."""
    if f"{_prefix(checkpoint)}{EMBEDDER}embedding_table.weight" in checkpoint.names:
        problem = "is a LlamaGen for ImageNet classes, which takes no text prompt"
        raise AdtError(f"{checkpoint.path} {problem}; use a text-to-image LlamaGen.")
    side = _side(checkpoint)
    config = _decoder_config(checkpoint, side)
    codec = checkpoint.find_companion(_CODEC_FILES)
    if codec is not None:
        checkpoint.add(codec, CODEC)
    t5 = checkpoint.find_companion(_T5_FILES)
    if t5 is None:
        encoder = CaptionEncoder({}, checkpoint.path, config.hidden_size)
    else:
        for file in Checkpoint(t5.parent).files:
            checkpoint.add(file, T5, only=("shared.", "encoder."))
        encoder = CaptionEncoder(read_json(t5), t5.parent, config.hidden_size)
    decoder = Decoder(config, torch.arange(config.vocab_size, device="cpu"))
    vq = VQModel(_vq_config(checkpoint, side, config.vocab_size))
    return Target(checkpoint.name, FAMILY.name, decoder, vq, (side, side), text_encoder=encoder)


def _prefix(checkpoint: Checkpoint) -> str:
    """Return the prefix of the transformer's tensors: "model.", or "" in the authors' layout."""
    return "model." if "model.embed_tokens.weight" in checkpoint.names else ""


def _side(checkpoint: Checkpoint) -> int:
    """Return the codes per side. The authors' files have the size only in their name."""
    block = checkpoint.config.get("block_size")
    if type(block) is int and block > 0 and math.isqrt(block) ** 2 == block:
        return math.isqrt(block)
    sizes = {int(n) for n in re.findall(r"(?<!\d)(?:256|512)(?!\d)", checkpoint.name)}
    if len(sizes) != 1:
        remedy = "use the published file name, t2i_XL_stage1_256.pt or t2i_XL_stage2_512.pt"
        raise AdtError(f"{checkpoint.path} does not have its image size in its name; {remedy}.")
    return sizes.pop() // 16


def _decoder_config(checkpoint: Checkpoint, side: int) -> DecoderConfig:
    """Return the decoder's shape, in the authors' layout from the shapes of its tensors."""
    config = checkpoint.config
    if not _prefix(checkpoint):
        vocabulary, hidden, *_ = checkpoint.sizes("tok_embeddings.weight", 2)
        fused = checkpoint.sizes("layers.0.attention.wqkv.weight")[0]
        config = {
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "intermediate_size": checkpoint.sizes("layers.0.feed_forward.w1.weight")[0],
            "num_hidden_layers": checkpoint.count("layers.{}.attention_norm.weight"),
            "num_attention_heads": hidden // _HEAD_DIM,
            "num_key_value_heads": (fused - hidden) // 2 // _HEAD_DIM,
        }
    return decoder_config(
        config,
        checkpoint.path,
        qk_norm=False,
        grid_rope=(CAPTION, side),
        rope_theta=float(read(config, "rope_base", number(1, 1e12), checkpoint.path, 1e4)),
        max_positions=_POSITIONS,
    )


def _vq_config(checkpoint: Checkpoint, side: int, codes: int) -> VQConfig:
    """Return the codec's shape from its tensors, or VQ-16's shape if the codec was not found."""
    shape = VQConfig(embed_dim=8, num_embeddings=codes, attention=True, normalised=True)
    if f"{CODEC}encoder.conv_in.weight" in checkpoint.names:
        shape = replace(shape, **codec_shape(checkpoint, CODEC, "conv_blocks.{}.res.{}"))
    return replace(shape, resolution=side * shape.downsample)


def entries(target: Target, checkpoint: Checkpoint) -> list[Entry]:
    """Return the entries of decoder and caption embedding in either layout, and of codec and T5."""
    encoder = cast(CaptionEncoder, target.text_encoder)
    codec = cast(VQModel, target.codec)
    decoder = decoder_entries(target.decoder, checkpoint)
    prefix = _prefix(checkpoint)
    return [
        *(decoder if prefix else map(_authors_entry, decoder)),
        copy_entry(encoder.fc1.weight, f"{prefix}{EMBEDDER}cap_proj.fc1.weight"),
        copy_entry(encoder.fc2.weight, f"{prefix}{EMBEDDER}cap_proj.fc2.weight"),
        copy_entry(encoder.uncond_embedding, f"{prefix}{EMBEDDER}uncond_embedding"),
        *(entry.renamed(VQ16_NAMES) for entry in vq_entries(codec, CODEC)),
        *module_entries(encoder.t5, T5),
    ]


def _authors_entry(entry: Entry) -> Entry:
    """Return the entry of the same parameter in the authors' layout, which has one tensor for q, k and v."""
    renamed = entry.renamed(_AUTHORS_NAMES)
    if "self_attn.q_proj" not in entry.names[0]:
        return renamed
    name = renamed.names[0].replace("self_attn.q_proj", "attention.wqkv")
    rows = [shape[0] for shape in entry.shapes]
    shape = (sum(rows), entry.shapes[0][1])
    return replace(entry, names=(name,), shapes=(shape,), make=lambda parts: entry.make(list(parts[0].split(rows))))


def prompter(target: Target, checkpoint: Checkpoint) -> LlamaGenPrompter:
    """Return the prompter of a target."""
    t5 = checkpoint.find_companion(_T5_FILES)
    if t5 is None:
        raise AdtError(f"{checkpoint.path} has no text encoder; {FAMILY.missing_remedies(checkpoint)[T5]}.")
    captions.libraries()
    tokenizer = load_tokenizer(t5.parent)
    end = tokenizer.token_to_id(END)
    if end is None:
        raise AdtError(f"{t5.parent}: tokenizer.json lacks {END}; use the tokenizer.json of {FLAN_T5_XL.repository}.")
    return LlamaGenPrompter(target.name, tokenizer, end, cast(CaptionEncoder, target.text_encoder))


LLAMAGEN_CODEC = Download("peizesun/llamagen_t2i", 0.3, "MIT", "", ("vq_ds16_t2i.pt",))
FLAN_T5_XL = Download(
    "google/flan-t5-xl",
    11,
    "Apache 2.0",
    "flan-t5-xl",
    (
        "config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ),
)


def _published(name: str, pixels: str, memory: tuple[float, float], drafter: str) -> Published:
    """Return a model's downloads: the authors' file or the folder that LANTERN converted, codec and text encoder."""
    file = LLAMAGEN_CODEC._replace(gigabytes=3, files=(name,))
    folder = Download(f"jadohu/{name}", 3, "MIT", name)
    transformer = file if name.endswith(".pt") else folder
    return Published(
        name,
        (transformer, LLAMAGEN_CODEC, FLAN_T5_XL),
        pixels,
        memory,
        Download(f"jadohu/{drafter}", 0.1, chameleon.LICENCE, drafter),
    )


_STAGE_1 = "256", (4.7, 4.0), "llamagen_drafter"
_STAGE_2 = "512", (6.0, 5.3), "llamagen2_drafter"
FAMILY = Family(
    name="llamagen",
    title="LlamaGen",
    recognises=_recognises,
    skeleton=skeleton,
    entries=entries,
    prompter=prompter,
    unneeded=(f"{CODEC}quantize.codebook_used", f"{T5}encoder.embed_tokens."),
    remedies={
        CODEC: ("download vq_ds16_t2i.pt of peizesun/llamagen_t2i and put it beside it", LLAMAGEN_CODEC),
        T5: ("download google/flan-t5-xl and put its folder, flan-t5-xl, beside it", FLAN_T5_XL),
    },
    sampling=PublishedSampling(guidance=7.5, top_k=1000, source="github.com/FoundationVision/LlamaGen"),
    single_files=("t2i_*.pt",),
    search=("llamagen",),
    companions=(*_CODEC_FILES, *_T5_FILES),
    published=(
        _published("t2i_XL_stage1_256.pt", *_STAGE_1),
        _published("t2i_XL_stage2_512.pt", *_STAGE_2),
        _published("LlamaGen-T2I", *_STAGE_1),
        _published("LlamaGen-T2I-2", *_STAGE_2),
    ),
)
