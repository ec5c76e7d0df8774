"""LlamaGen for text to image: the input is 120 features of a prompt, then the codes of VQ-16.

Sun et al., arXiv 2406.06525. The model of stage 1 generates 16 x 16 codes (256 x 256 pixels). The model of stage 2
generates 32 x 32 codes (512 x 512 pixels). There are two layouts: the authors' ``.pt`` files, and the folders
``jadohu/LlamaGen-T2I`` and ``jadohu/LlamaGen-T2I-2``, in which LANTERN's authors gave the tensors Hugging Face names.
Both layouts need the codec ``vq_ds16_t2i.pt`` and the folder of the text encoder ``google/flan-t5-xl``, in the same
folder as the model or in the folder above.

The prompt is called a caption here, as in the paper. The queries and keys of the 120 caption tokens are zero, so all
visible caption tokens have the same attention score. In the queries and keys of image tokens, half of the rotated pairs
use the row of the token and half use the column.
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
from ..repositories import Download, Published
from ..target import EncodedPrompt, Prompter, PublishedSampling, Target
from ..vq import VQConfig, VQModel
from . import chameleon
from . import llamagen_captions as captions

CAPTION = 120  # number of tokens of a caption, including padding
END = "</s>"  # token of T5 that ends every caption
FILLER = 0
"""Token id at every caption position. The decoder reads features instead of this id; only drafters read the id."""
CODEC = "codec."
T5 = "t5."
EMBEDDER = "cls_embedding."
_CODEC_FILES = ("vq_ds16_t2i.pt", "vq_ds16_t2i.safetensors")
_T5_FILES = (
    *(f"{folder}flan-t5-xl/config.json" for folder in ("", "google--", "google/", "t5-ckpt/", "t5/")),
    "models--google--flan-t5-xl/snapshots/*/config.json",
)
_FLAN_T5_XL = {"d_model": 2048, "d_kv": 64, "d_ff": 5120, "num_layers": 24, "num_heads": 32, "vocab_size": 32128}
_HEAD_DIM = 64
_CACHED_CAPTIONS = 5000  # number of captions; the features of one take about 0.1 MB
_MOST_CLEANED = 2000
"""Maximum number of characters of a prompt that are cleaned. The model reads 120 tokens, about 500 characters. Some of
the authors' patterns take quadratic time: 9 s for 10,000 characters."""
_POSITIONS = 2048  # more than the 120 + 32 * 32 tokens of stage 2
# Parts of tensor names: Hugging Face name -> the authors' name.
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
    """Return whether a checkpoint has LlamaGen's embedding of captions or classes."""
    return "cls_token_num" in config or any(name.removeprefix("model.").startswith(EMBEDDER) for name in names)


class CaptionEncoder(nn.Module):
    """Text encoder: T5's encoder, a projection of its features to decoder inputs, and features of an empty caption."""

    def __init__(self, config: dict, source: ConfigSource, width: int):
        """Build the encoder without weights. ``config`` is T5's ``config.json``, or {} for flan-t5-xl."""
        super().__init__()
        self.t5 = t5_encoder(config, source, _FLAN_T5_XL, "eager")
        features = self.t5.config.d_model
        self.fc1 = nn.Linear(features, width, bias=False)
        self.fc2 = nn.Linear(width, width, bias=False)
        self.uncond_embedding = nn.Parameter(torch.empty(CAPTION, features))

    def forward(self, ids: list[int]) -> Tensor:
        """Return decoder inputs [n, width] for n token ids of T5."""
        device = self.uncond_embedding.device
        return self.project(self.t5(input_ids=torch.tensor([ids], device=device)).last_hidden_state[0])

    def project(self, features: Tensor) -> Tensor:
        """Project T5's features [n, d_model] to decoder inputs [n, width]. Rows of zeros stay zero."""
        return self.fc2(F.gelu(self.fc1(features.to(self.fc1.weight)), approximate="tanh"))


@dataclass
class LlamaGenPrompter(Prompter):
    """Prompter with rows of 120 features: masked padding, then the features of the caption.

    The prompter caches the features of earlier captions, because ComfyUI may move the encoder off the GPU while the
    decoder runs.
    """

    name: str
    tokenizer: Tokenizer
    end: int  # token id of END
    encoder: CaptionEncoder

    def __post_init__(self) -> None:
        self._features = lru_cache(_CACHED_CAPTIONS)(self._encode)

    def encode(self, text: str, grid: tuple[int, int]) -> EncodedPrompt:
        ids, note = self._read(text)
        hidden = CAPTION - len(ids)
        _ = self._empty_caption  # computes and caches it while the encoder is loaded
        return EncodedPrompt([FILLER] * CAPTION, F.pad(self._features(ids), (0, 0, hidden, 0)), hidden, note)

    def check(self, text: str, grid: tuple[int, int]) -> str:
        return self._read(text)[1]

    def _read(self, text: str) -> tuple[tuple[int, ...], str]:
        """Return the token ids of a caption, and a note to the user if the caption was truncated, else ""."""
        text = stripped(text)
        cleaned = captions.clean(text[:_MOST_CLEANED])
        if not cleaned:
            ignored = "links, file names and Chinese characters are ignored"
            raise AdtError("prompt.no_words", text=shown(text), name=self.name, ignored=ignored)
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
        """Return decoder inputs [n, width] for the n token ids of a caption, on the CPU."""
        return self.encoder(list(ids)).cpu()

    @cached_property
    @torch.no_grad()
    def _empty_caption(self) -> Tensor:
        """Decoder inputs [120, width] for an empty caption, on the CPU."""
        return self.encoder.project(self.encoder.uncond_embedding).cpu()


def skeleton(checkpoint: Checkpoint) -> Target:
    """Return an empty target for a LlamaGen checkpoint, and add the files of codec and T5 to the checkpoint."""
    if f"{_prefix(checkpoint)}{EMBEDDER}embedding_table.weight" in checkpoint.names:
        raise AdtError("llamagen.classes", path=checkpoint.path)
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
    """Return the number of codes per side.

    With a config.json, the number is the square root of its field ``block_size``. The authors' files have no
    config.json. For these files, the number is the image size in the file name, divided by 16.
    """
    block = checkpoint.config.get("block_size")
    if type(block) is int and block > 0 and math.isqrt(block) ** 2 == block:
        return math.isqrt(block)
    sizes = {int(n) for n in re.findall(r"(?<!\d)(?:256|512)(?!\d)", checkpoint.name)}
    if len(sizes) != 1:
        raise AdtError("llamagen.no_size", path=checkpoint.path)
    return sizes.pop() // 16


def _decoder_config(checkpoint: Checkpoint, side: int) -> DecoderConfig:
    """Return the decoder's shape. In the authors' layout, the shapes of the tensors determine it."""
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
    """Return the codec's shape from its tensors, or the shape of VQ-16 if the codec's file was not found."""
    shape = VQConfig(embed_dim=8, num_embeddings=codes, attention=True, normalised=True)
    if f"{CODEC}encoder.conv_in.weight" in checkpoint.names:
        shape = replace(shape, **codec_shape(checkpoint, CODEC, "conv_blocks.{}.res.{}"))
    return replace(shape, resolution=side * shape.downsample)


def entries(target: Target, checkpoint: Checkpoint) -> list[Entry]:
    """Return the entries of decoder, caption embedding, codec and T5, in the layout of the checkpoint."""
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
    """Convert an entry from Hugging Face names to the authors' layout, which has a single tensor for q, k and v."""
    renamed = entry.renamed(_AUTHORS_NAMES)
    if "self_attn.q_proj" not in entry.names[0]:
        return renamed
    name = renamed.names[0].replace("self_attn.q_proj", "attention.wqkv")
    rows = [shape[0] for shape in entry.shapes]
    shape = (sum(rows), entry.shapes[0][1])
    return replace(entry, names=(name,), shapes=(shape,), make=lambda parts: entry.make(list(parts[0].split(rows))))


def prompter(target: Target, checkpoint: Checkpoint) -> LlamaGenPrompter:
    """Return the prompter of a target, or raise an AdtError if T5, its tokenizer, ftfy or Beautiful Soup is missing."""
    t5 = checkpoint.find_companion(_T5_FILES)
    if t5 is None:
        raise AdtError("llamagen.no_text_encoder", path=checkpoint.path, remedy=FAMILY.missing_remedies(checkpoint)[T5])
    captions.libraries()
    tokenizer = load_tokenizer(t5.parent)
    end = tokenizer.token_to_id(END)
    if end is None:
        raise AdtError("llamagen.no_end_token", folder=t5.parent, token=END, repository=FLAN_T5_XL.repository)
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
    commit="7d6315df2c2fb742f0f5b556879d730926ca9001",
)


def _published(name: str, pixels: str, memory: tuple[float, float, float], drafter: str) -> Published:
    """Return a published model with its downloads: transformer, codec, text encoder and drafter.

    The transformer is the authors' file if ``name`` ends with .pt. Otherwise it is the folder that LANTERN's authors
    converted.
    """
    transformer = Download(f"jadohu/{name}", 3, "MIT", name)
    if name.endswith(".pt"):
        transformer = LLAMAGEN_CODEC._replace(gigabytes=3, files=(name,))
    network = Download(f"jadohu/{drafter}", 0.1, chameleon.LICENCE, drafter)
    return Published(name, (transformer, LLAMAGEN_CODEC, FLAN_T5_XL), pixels, memory, network)


_STAGE_1 = "256", (4.7, 4.0, 3.8), "llamagen_drafter"
_STAGE_2 = "512", (6.0, 5.3, 5.1), "llamagen2_drafter"
FAMILY = Family(
    name="llamagen",
    title="LlamaGen",
    recognises=_recognises,
    skeleton=skeleton,
    entries=entries,
    prompter=prompter,
    unneeded=(f"{CODEC}quantize.codebook_used", f"{T5}encoder.embed_tokens."),
    remedies={CODEC: ("remedy.llamagen_codec", LLAMAGEN_CODEC), T5: ("remedy.text_encoder", FLAN_T5_XL)},
    sampling=PublishedSampling(guidance_scale=7.5, top_k=1000, source="github.com/FoundationVision/LlamaGen"),
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
