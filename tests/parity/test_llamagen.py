"""Tests that LlamaGen equals a reference implementation, with T5 and ``JanusVQVAE`` from transformers.

The reference implementation is in this file. It uses no code of this package and no KV cache. It processes complete
sequences, one row at a time, and applies rotary embeddings by multiplying neighbouring pairs as complex numbers.

Tensor dimensions: n tokens, h hidden size, d width of the text encoder.
"""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import JanusVQVAE, JanusVQVAEConfig, T5EncoderModel

from adt_core import load_drafter, load_target
from adt_core.drafters import Prefill
from adt_core.models.rows import BatchRows, Roots
from adt_core.policies import Context, Drafting
from adt_core.settings import Sampling
from tests.layouts import llamagen as layout
from tests.reading import Reader, guided_rows

TOLERANCE = 1e-4
TEXTS = ["a red fox in deep snow", "two boats"]


@pytest.fixture(scope="module", params=["upstream", "deepspeed", "hugging-face"])
def path(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "hugging-face":
        return layout.write_hugging_face(folder)
    return layout.write_upstream(folder, wrapper="model" if request.param == "upstream" else "module")


@pytest.fixture(scope="module")
def target(path):
    return load_target(path)


def t5_features(path, text):
    """Encode a text in the same way as the authors' script.

    The text is padded to 120 tokens on the right. Then the features of the padding are moved to the left and set to 0.

    Returns:
        Features [120, d], and the number of padding tokens.
    """
    folder = next(path.parent.rglob("flan-t5-xl"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(length=120)
    encoded = tokenizer.encode(text)
    mask = torch.tensor(encoded.attention_mask)
    model = T5EncoderModel.from_pretrained(folder)
    with torch.no_grad():
        states = model(input_ids=torch.tensor([encoded.ids]), attention_mask=mask[None]).last_hidden_state[0]
    valid = int(mask.sum())
    return torch.cat([states[valid:], states[:valid]]) * mask.flip(0)[:, None], 120 - valid


def rotation(length, blank, side=16, dim=64):
    """Return the complex rotations [length, dim / 2].

    The first ``blank`` positions precede the image grid; their rotation is 0. In the grid, the angle of one half of the
    pairs depends on the row, and the angle of the other half on the column.
    """
    frequency = 10000 ** (-torch.arange(0, dim // 2, 2) / (dim // 2))
    cells = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    angles = (cells[..., None] * frequency).flatten(1)
    return torch.cat([torch.zeros(blank, dim // 2), torch.polar(torch.ones_like(angles), angles)])[:length]


def rms(x, weight, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def attention(q, k, v, rotations, bias):
    """Return the result [n, h] of attention over q, k and v [n, h], with heads of width 64."""

    def heads(x):
        return x.view(len(x), -1, 64).transpose(0, 1)

    def rotated(x):
        pairs = torch.view_as_complex(heads(x).reshape(-1, len(x), 32, 2))
        return torch.view_as_real(pairs * rotations).flatten(2)

    weights = (rotated(q) @ rotated(k).transpose(1, 2) / 8 + bias).softmax(-1)
    return (weights @ heads(v)).transpose(0, 1).flatten(1)


def reference(tensors, features, hidden, codes, side=16):
    """Run the reference on one row.

    Args:
        features: Features of the caption [120, d].
        hidden: Number of padding tokens. Padding tokens attend only to each other.
        codes: [n] image codes after the caption.

    Returns:
        Final features [120 + n, h], and logits [120 + n, codes].
    """
    project = [tensors[f"cls_embedding.cap_proj.fc{i}.weight"] for i in (1, 2)]
    x = torch.cat(
        [F.gelu(features @ project[0].T, approximate="tanh") @ project[1].T, tensors["tok_embeddings.weight"][codes]]
    )
    position = torch.arange(len(x))
    visible = (position[:, None] >= position) & ((position >= hidden) | (position[:, None] < hidden))
    bias = torch.zeros(len(x), len(x)).masked_fill(~visible, -torch.inf)
    rotations = rotation(len(x), 120, side)
    for i in range(sum(name.endswith("wqkv.weight") for name in tensors)):
        prefix = f"layers.{i}."
        layer = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        qkv = rms(x, layer["attention_norm.weight"], 1e-5) @ layer["attention.wqkv.weight"].T
        x = x + attention(*qkv.chunk(3, -1), rotations, bias) @ layer["attention.wo.weight"].T
        h = rms(x, layer["ffn_norm.weight"], 1e-5)
        gate = h @ layer["feed_forward.w1.weight"].T
        up = h @ layer["feed_forward.w3.weight"].T
        x = x + (F.silu(gate) * up) @ layer["feed_forward.w2.weight"].T
    x = rms(x, tensors["norm.weight"], 1e-5)
    return x, x @ tensors["output.weight"].T


def expected_rows(path, codes):
    """Return features and logits of four rows: the two conditional rows, then the two unconditional rows."""
    tensors = layout.transformer()
    captions = [t5_features(path, text) for text in TEXTS]
    rows = [*captions, *((tensors["cls_embedding.uncond_embedding"], hidden) for _, hidden in captions)]
    return [reference(tensors, features, hidden, code) for (features, hidden), code in zip(rows, [*codes, *codes])]


def test_logits_of_prompts_and_codes(path, target):
    """Compare features and logits of captions of two lengths, with their unconditional rows.

    One forward pass reads the prompts; then each code has a separate forward pass.
    """
    decoder = target.decoder
    codes = torch.randint(layout.CODES, (2, 18), generator=torch.Generator().manual_seed(1))
    expected = expected_rows(path, codes)
    reader = Reader(decoder, guided_rows(target, TEXTS, 3.0), more=18, images=2)
    further = [reader.read_on(codes[:, i : i + 1].repeat(2, 1), i) for i in range(18)]
    features = torch.cat([reader.features, *further], 1)
    for ours, (states, logits) in zip(features, expected):
        assert (ours - states).abs().max() < TOLERANCE, "includes the padding, which the drafter reads"
        assert (decoder.logits(ours) - logits).abs().max() < TOLERANCE


def test_text_encoder_in_another_precision(target):
    """Load a text encoder in bfloat16 for a decoder in float64.

    The features stay on the CPU in the encoder's dtype. They are converted to the decoder's dtype for a batch.
    """
    other = replace(target.prompter, encoder=deepcopy(target.text_encoder).to(torch.bfloat16))
    prompt = other.encode(TEXTS[0], target.grid)
    for row in (prompt, other.unconditional(prompt, target.grid)):
        assert row.features.dtype == torch.bfloat16 and row.features.device.type == "cpu"
    rows = guided_rows(target, TEXTS, 3.0)
    assert [len(row) for row in rows] == [120] * 4
    assert {row.hidden for row in rows} == {120 - len(text) - 1 for text in TEXTS}
    prepared = BatchRows(rows, 120, torch.empty(0, dtype=torch.float64))
    assert prepared.features.dtype == torch.float64 and prepared.features.shape == (4, 120, layout.HIDDEN)


def test_drafter(path, target, tmp_path):
    """Compare the drafter's features with the reference.

    The drafter has no norm before its attention. 119 positions precede the grid. The drafter attends to all of them,
    including the padding.
    """
    tensors = layout.drafter()
    drafter = load_drafter(layout.write_drafter(tmp_path / "drafter"), target)
    codes = torch.randint(layout.CODES, (2, 3), generator=torch.Generator().manual_seed(2))
    states = [features for features, _ in expected_rows(path, codes)]
    ids = torch.cat([torch.zeros(2, 119, dtype=torch.long), codes], 1)
    rotations = rotation(122, 119)
    decoder = target.decoder
    rows = BatchRows(guided_rows(target, TEXTS, 3.0), 140, decoder.embedding, images=2)
    drafting = Drafting("adt-tree")
    largest = drafting.policy.largest(drafting.settings)
    proposer = drafter.proposer(Context(target, Sampling(), drafting.settings, largest), rows, None)
    features = torch.stack([state[:120] for state in states])
    z = torch.zeros(2, 1, layout.CODES)
    proposer.begin(Prefill(features, ids[:, :120].repeat(2, 1), rows.prefill(), z, 0))
    first = proposer.root_feature
    further = torch.stack([state[120:122] for state in states])
    context = proposer.context_ahead(Roots.all_at(codes[:, 0], 0), 2)
    ahead = proposer.read_ahead(proposer.paired_codes(codes), further, context)
    for row in range(4):
        both = torch.cat([tensors["embed_tokens.weight"][ids[row % 2]], states[row][:122]], -1)
        x = both @ tensors["fc.weight"].T + tensors["fc.bias"]
        q, k, v = (x @ tensors[f"layers.0.self_attn.{name}_proj.weight"].T for name in "qkv")
        causal = torch.full((122, 122), -torch.inf).triu(1)
        x = x + attention(q, k, v, rotations, causal) @ tensors["layers.0.self_attn.o_proj.weight"].T
        h = rms(x, tensors["layers.0.post_attention_layernorm.weight"], 1e-6)
        gate, up = (h @ tensors[f"layers.0.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (F.silu(gate) * up) @ tensors["layers.0.mlp.down_proj.weight"].T
        assert (torch.cat([first[row], ahead[row]]) - x[119:]).abs().max() < TOLERANCE
    assert decoder.config.grid_rope == (120, 16)


def transformers_name(name):
    """Convert the name of a tensor of the codec to transformers' name."""
    renamed = {"encoder.conv_blocks": "encoder.down", "decoder.conv_blocks": "decoder.up", ".res.": ".block."}
    renamed |= {"mid.0": "mid.block_1", "mid.1": "mid.attn_1", "mid.2": "mid.block_2"}
    for old, new in renamed.items():
        name = name.replace(old, new)
    return name


@torch.no_grad()
def test_codec(target):
    """Compare decoded pixels and encoded vectors. Tensor names are converted as in transformers' script for Janus."""
    stored = layout.codec()
    shape = dict(embed_dim=8, num_embeddings=layout.CODES, latent_channels=16, base_channels=32, num_patches=16)
    theirs = JanusVQVAE(JanusVQVAEConfig(**shape, channel_multiplier=[1] * 5))
    del stored["quantize.codebook_used"]
    theirs.load_state_dict({transformers_name(name): tensor for name, tensor in stored.items()})
    codes = torch.randint(layout.CODES, (1, 16, 16), generator=torch.Generator().manual_seed(4))
    expected = theirs.decode(codes.flatten(1))
    assert expected.shape == (1, 3, 256, 256)
    assert (target.codec.decode(codes) - expected.clamp(-1, 1)).abs().max() < TOLERANCE
    pixels = torch.rand(1, 3, 256, 256, generator=torch.Generator().manual_seed(5)) * 2 - 1
    assert (target.codec.encoder(pixels) - theirs.encoder(pixels)).abs().max() < TOLERANCE
