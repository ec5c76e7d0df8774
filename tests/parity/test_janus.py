"""Tests that Janus-Pro equals transformers' ``JanusForConditionalGeneration`` in logits and pixels.

test_script_noise.py compares complete images.
"""

import pytest
import torch
from transformers import JanusForConditionalGeneration

from adt_core import load_target
from tests.layouts.janus import deepseek_name, write_janus
from tests.reading import logits_after

TOLERANCE = 1e-4
GUIDANCE = 5.0
TEXTS = ("a cat", "three small dogs")
PUBLISHED = {
    "language_model.model.embed_tokens.weight",
    "language_model.model.layers.0.self_attn.q_proj.weight",
    "language_model.model.norm.weight",
    "language_model.lm_head.weight",
    "gen_embed.weight",
    "gen_aligner.layers.0.weight",
    "gen_aligner.layers.2.bias",
    "gen_head.output_mlp_projector.weight",
    "gen_head.vision_head.bias",
    "gen_vision_model.quantize.embedding.weight",
    "gen_vision_model.encoder.conv_in.weight",
    "gen_vision_model.encoder.conv_blocks.4.attn.1.proj_out.weight",
    "gen_vision_model.encoder.conv_blocks.0.downsample.conv.weight",
    "gen_vision_model.decoder.conv_blocks.0.res.2.conv1.weight",
    "gen_vision_model.decoder.conv_blocks.0.upsample.conv.bias",
    "gen_vision_model.decoder.conv_blocks.1.res.0.conv2.weight",
    "gen_vision_model.decoder.mid.0.norm1.weight",
    "gen_vision_model.decoder.mid.1.q.weight",
    "gen_vision_model.decoder.mid.2.conv2.bias",
    "gen_vision_model.quant_conv.weight",
    "gen_vision_model.post_quant_conv.bias",
    "aligner.layers.0.weight",
}
"""Names of tensors in DeepSeek's files."""


@pytest.fixture(scope="module", params=["transformers", "deepseek", "deepseek, sharded"])
def models(request, tmp_path_factory):
    """Return our model, loaded from one of the two layouts, and the transformers model. Both are in float64."""
    home = tmp_path_factory.mktemp("janus")
    shape = {"hidden": 48, "heads": 3, "layers": 3, "scale": 3.0}
    layout, _, sharded = request.param.partition(", ")
    write_janus(home / "Janus-Pro-tiny", layout=layout, shards=2 if sharded else 1, **shape)
    write_janus(home / "reference", **shape)
    theirs = JanusForConditionalGeneration.from_pretrained(home / "reference", attn_implementation="eager")
    return load_target(home / "Janus-Pro-tiny", dtype=torch.float64), theirs.double().eval()


@torch.no_grad()
def reference_logits(model, prompt, codes):
    """Return the transformers model's logits [n, codes] after each of the n tokens: ``prompt``, then ``codes``."""
    text = model.get_input_embeddings()(torch.tensor([prompt]))
    image = model.prepare_embeddings_for_image_generation(torch.tensor([codes], dtype=torch.long))
    features = model.model.language_model(inputs_embeds=torch.cat([text, image], 1)).last_hidden_state
    return model.model.generation_head(features)[0]


@pytest.mark.parametrize("guidance", [1.0, GUIDANCE])
def test_logits_of_prompt_and_image(models, guidance):
    """Compare a forward pass over prompts of two lengths, and a forward pass over the first 5 tokens of the image."""
    target, model = models
    codes = torch.randint(target.num_codes, (5,), generator=torch.Generator().manual_seed(1))
    for found, prompt in zip(logits_after(target, TEXTS, codes, guidance), map(target.encode_prompt, TEXTS)):
        conditional, unconditional = (
            reference_logits(model, row, codes.tolist())[-6:] for row in (prompt, target.unconditional(prompt))
        )
        assert (found - (unconditional + guidance * (conditional - unconditional))).abs().max() < TOLERANCE


@torch.no_grad()
def test_pixels(models):
    """Codes can't be compared, because transformers doesn't normalise the codebook."""
    target, model = models
    reference = model.model.vqmodel.float()
    codes = torch.randint(target.num_codes, (2, 4, 4), generator=torch.Generator().manual_seed(2))
    expected = reference.decode(codes.flatten(1))
    assert (target.codec.decode(codes) - expected.clamp(-1, 1)).abs().max() < TOLERANCE and expected.abs().max() > 0.05
    pixels = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(3)) * 2 - 1
    theirs = reference.quant_conv(reference.encoder(pixels))
    assert (target.codec.quant_conv(target.codec.encoder(pixels)) - theirs).abs().max() < TOLERANCE
    assert torch.equal(target.codec.encode(pixels), target.codec.nearest(theirs))
    model.double()


def test_deepseek_layout_has_the_published_names(models):
    assert set(map(deepseek_name, models[1].state_dict())) >= PUBLISHED
