"""Tests of Lumina-mGPT 2.0 against reference implementations.

- Logits: Chameleon in transformers.
- Images with guidance: a copy of the published script.
- Codec: the codec of Emu3 in transformers. Emu3's codec has the same norms and blocks as MoVQGAN, and additional video
  layers between them.
"""

import re

import pytest
import torch
import torch.nn.functional as F
from transformers import Emu3VQVAE, Emu3VQVAEConfig

from adt_core import Sampling, load_target
from adt_core.models.families.lumina2 import guidance
from tests.drafted import run
from tests.layouts.lumina2 import CODEC, CODES, FIRST_CODE, MARKS, random_codec, write_lumina2
from tests.layouts.reference import image_logits, reference
from tests.reading import Reader, guided_rows

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_lumina2(tmp_path_factory.mktemp("lumina2") / "Lumina-mGPT-2.0", kv_heads=2, scale=3.0)


@pytest.fixture(scope="module")
def target(folder):
    """Load the model for images of 8 rows of 12 tokens."""
    return load_target(folder, dtype=torch.float64).sized(96, 64)


@pytest.fixture(scope="module")
def model(folder):
    return reference(folder, ".vqmodel.", vocabulary_map={"<image>": 0}, bos_token_id=0).double()


def theirs(model, row):
    return image_logits(model, row, FIRST_CODE, CODES)


@torch.no_grad()
def test_logits_of_prompt_and_rows(target, model):
    """Both rows end with the first two lines of the image. A line is 12 codes and an end-of-line token."""
    codes = torch.randint(CODES, (26,), generator=torch.Generator().manual_seed(1))
    codes[12::13] = CODES
    tokens = [MARKS["<reserved08799>"] if code == CODES else FIRST_CODE + code for code in codes.tolist()]
    rows = [[*row, *tokens] for row in guided_rows(target, ["a cat"], 3.0)]
    found = target.decoder.logits(Reader(target.decoder, rows).features)
    for ours, row in zip(found[:, -27:], rows):
        assert (ours - theirs(model, row)[-27:]).abs().max() < TOLERANCE


def published_loop(model, prompt, cells, scale):
    """Generate an image greedily, in the same way as the published script, and return its token ids.

    Before every token, the script computes a new guidance scale from the previous scale. The last three ids of the
    prompt begin the image.
    """
    rows, columns = cells
    ids = list(prompt)
    start = len(ids) - 3
    while len(ids) < len(prompt) + rows * (columns + 1):
        new = len(ids) - start - 1
        scale = max(4.0, scale * (1 - new / ((rows // 2) * (columns // 2))))
        if (new - 2 + 1) % (columns + 1) == 0:
            ids.append(MARKS["<reserved08799>"])
            continue
        conditional = theirs(model, ids)[-1]
        unconditional = theirs(model, ids[start:])[-1]
        guided = scale * (conditional - unconditional) + unconditional
        ids.append(FIRST_CODE + guided.argmax().item())
    return ids[len(prompt) :]


@pytest.mark.parametrize("scale", [3.0, 4.0, 9.0])
def test_image_equals_the_published_loops(target, model, scale):
    decoding = run(target, prompts=("a cat",), sampling=Sampling(temperature=0, guidance_scale=scale))
    tokens = target.decoder.image_ids[decoding.codes[0]].tolist()
    expected = published_loop(model, target.encode_prompt("a cat"), target.grid, scale)
    assert tokens == expected and len(set(tokens)) > 4


def test_guidance_falls_to_four(target):
    """The scale falls to 4 within a few tokens. A scale below 4 is raised to 4. The scale 1 disables guidance."""
    scales = guidance(9.0, (96, 96))
    assert len(scales) == 96 * 97 and scales[0] == 9.0 * (1 - 2 / 48**2) and scales[1] == scales[0] * (1 - 3 / 48**2)
    assert scales == sorted(scales, reverse=True) and set(scales[100:]) == {4.0}
    assert set(guidance(2.0, (96, 96))) == {4.0}
    like = torch.empty(0, dtype=torch.float64)
    assert target.guidance(1.0, like) == 1.0 and target.guidance(9.0, like).shape == (target.length, 1)


def test_prompt(target):
    """Height and width are the last tokens, one for each, in units of 32 pixels."""
    prompt = target.encode_prompt("a cat")
    header = [MARKS["<racm3:break>"], MARKS["<reserved08802>"], MARKS["<reserved08803>"]]
    assert prompt[0] == MARKS["<|endoftext|>"] and prompt[-4:] == [MARKS["<reserved08706>"], *header]
    request = "Generate an image of 96x64 according to the following prompt:\na cat"
    assert prompt[1:-4] == target.prompter.tokenizer.encode(request).ids
    assert target.unconditional(prompt) == header


# ---- the codec ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def codecs():
    """Return our codec, and transformers' Emu3 codec. The image layers of both have the same weights."""
    ours = random_codec(3)
    same = "embed_dim", "latent_channels", "base_channels", "num_res_blocks"
    config = Emu3VQVAEConfig(
        **{name: getattr(CODEC, name) for name in same},
        codebook_size=CODES,
        double_latent=False,
        channel_multiplier=list(CODEC.channel_multiplier),
        attn_resolutions=[len(CODEC.channel_multiplier) - 1],
        hidden_size=CODEC.widths[-1],
        num_attention_heads=1,
    )
    reference = Emu3VQVAE(config).eval()
    stored = {emu3_name(name): value for name, value in ours.state_dict().items() if not name.startswith("quant")}
    flat = {name: value.flatten(1) if name.endswith("_proj.weight") else value for name, value in stored.items()}
    flat = {name: value for name, value in flat.items() if name.startswith(("encoder.", "decoder."))}
    missing, left_over = reference.load_state_dict(flat, strict=False)
    assert not left_over and all("time_" in name or "quant" in name for name in missing)
    return ours, reference


def emu3_name(name):
    """Convert the name of a tensor of our codec to the name in transformers' Emu3."""
    for old, new in ((".mid.", ".middle_block."), (".down.", ".down_block.down."), (".up.", ".up_block.up.")):
        name = name.replace(old, new)
    name = name.replace("attn_1.norm.", "attn_norm.").replace("proj_out.", "out_proj.")
    name = re.sub(r"attn\.(\d+)\.norm\.", r"attn_norms.\1.", name)
    return re.sub(r"\.([qkv])\.(weight|bias)$", r".\1_proj.\2", name)


@torch.no_grad()
def test_pixels(codecs):
    ours, reference = codecs
    codes = torch.randint(CODES, (2, 4, 5), generator=torch.Generator().manual_seed(2))
    decoder = reference.decoder
    vectors = ours.quantize.embedding.weight[codes].permute(0, 3, 1, 2)
    x = decoder.middle_block(decoder.conv_in(ours.post_quant_conv(vectors)), vectors)
    expected = decoder.conv_out(F.silu(decoder.norm_out(decoder.up_block(x, vectors), vectors)))
    assert expected.shape == (2, 3, 32, 40) and expected.std() > 0.05
    assert (ours.decode(codes) - expected.clamp(-1, 1)).abs().max() < TOLERANCE


@torch.no_grad()
def test_codes(codecs):
    ours, reference = codecs
    encoder = reference.encoder
    pixels = torch.rand(2, 3, 32, 40, generator=torch.Generator().manual_seed(3)) * 2 - 1
    x = encoder.middle_block(encoder.down_block(encoder.conv_in(pixels)))
    vectors = ours.quant_conv(encoder.conv_out(F.silu(encoder.norm_out(x))))
    ours.quantize.embedding.weight.copy_(vectors.permute(0, 2, 3, 1).reshape(CODES, 4))
    assert torch.equal(ours.encode(pixels), torch.arange(CODES).view(2, 4, 5))
