"""Tests that decoder and codec equal transformers' Chameleon, for random weights and for the bundled model."""

from functools import cache

import pytest
import torch
from transformers import ChameleonForConditionalGeneration

from adt_core import load_target
from adt_core.models.reading.paths import resolve
from adt_core.rules.tree import ancestor_matrix
from tests.reading import Reader, roots_at
from tests.tiny import write_tiny_checkpoint

TOLERANCE = 1e-4
SHAPES = [
    dict(hidden=64, heads=4, layers=2),
    dict(hidden=96, heads=3, layers=3, intermediate=160),
    dict(hidden=64, heads=8, kv_heads=2, layers=4),
    dict(hidden=32, heads=1, layers=1, intermediate=48),
]


@pytest.fixture(scope="module", params=[*SHAPES, "bundled"], ids=str)
def folder(request, tmp_path_factory):
    if request.param == "bundled":
        return resolve("bundled", "target")
    return write_tiny_checkpoint(tmp_path_factory.mktemp("target"), **request.param)


@cache
def reference(folder):
    """Load a checkpoint with transformers."""
    return ChameleonForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").float().eval()


def reference_logits(folder, ids, mask=None, positions=None):
    """Return the logits of the transformers model. Its own ``forward`` masks image tokens."""
    model = reference(folder)
    with torch.no_grad():
        features = model.model(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
        return model.lm_head(features)


@pytest.mark.parametrize("length", [1, 7, 40])
def test_plain_logits(folder, length):
    target = load_target(folder)
    decoder = target.decoder
    ids = torch.randint(decoder.config.vocab_size, (2, length), generator=torch.Generator().manual_seed(length))
    ids[ids == target.prompter.vocabulary["<image>"]] = 0  # transformers would require pixels for it
    features = Reader(decoder, ids.tolist()).features
    expected = reference_logits(folder, ids)[..., decoder.image_ids]
    assert (decoder.logits(features) - expected).abs().max() < TOLERANCE


def test_left_padded_prompts_and_a_tree_equal_path_by_path_forwards(folder):
    """Compare each node of a forward pass over a tree with transformers' pass over the prompt and the node's path."""
    target = load_target(folder)
    decoder = target.decoder
    generator = torch.Generator().manual_seed(4)

    def draw(n):
        return decoder.image_ids[torch.randint(target.num_codes, (n,), generator=generator)]

    prompts = [draw(9).tolist(), draw(4).tolist()]
    parents = torch.tensor([[0, 0, 0, 1, 1, 2, 3, 6]])
    depths = torch.tensor([[0, 1, 1, 2, 2, 2, 3, 4]])
    ancestors = ancestor_matrix(parents, 4)
    tokens = draw(8)
    reader = Reader(decoder, prompts, more=8)
    step = reader.rows.metadata(roots_at(0), 0, depths, ancestors)
    logits = decoder.logits(reader.read(tokens.expand(2, -1), step))
    for row, prompt in enumerate(prompts):
        for node in range(8):
            path = tokens[ancestors[0, node].nonzero().flatten()]
            expected = reference_logits(folder, torch.cat([torch.tensor(prompt), path])[None])[0, -1, decoder.image_ids]
            assert (logits[row, node] - expected).abs().max() < TOLERANCE


def test_codec_encoder(folder):
    target = load_target(folder)
    codec = reference(folder).model.vqmodel
    side = target.codec.config.resolution
    pixels = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(3)) * 2 - 1
    with torch.no_grad():
        ours = target.codec.quant_conv(target.codec.encoder(pixels))
        theirs = codec.quant_conv(codec.encoder(pixels))
        codes = codec.quantize(theirs)[2]
    assert (ours - theirs).abs().max() < TOLERANCE
    assert torch.equal(target.codec.encode(pixels).flatten(), codes.flatten())


def test_lookup_is_the_inverse_of_nearest(folder):
    codec = load_target(folder).codec
    codes = torch.arange(min(64, codec.config.num_embeddings)).view(1, 8, -1)
    assert torch.equal(codec.nearest(codec.lookup(codes)), codes)
    assert codec.decode(codes).shape == (1, 3, 8 * codec.config.downsample, codes.shape[2] * codec.config.downsample)
