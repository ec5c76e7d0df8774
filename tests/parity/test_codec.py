"""Tests that VQ-16, the codec of LlamaGen and Janus, equals transformers' ``JanusVQVAE`` with random weights."""

import pytest
import torch
import torch.nn.functional as F
from transformers import JanusVQVAE, JanusVQVAEConfig

from adt_core.models.reading.codec import coarsest_first, vq_config
from adt_core.models.vq import VQModel

TOLERANCE = 1e-4
USUAL = dict(embed_dim=8, num_embeddings=60, latent_channels=16, base_channels=32, num_res_blocks=2)
SHAPES = [
    dict(channel_multiplier=[1, 1, 2]),
    dict(num_res_blocks=1, channel_multiplier=[1, 2]),
    dict(channel_multiplier=[2, 1, 1], embed_dim=5),
]


@pytest.fixture(params=SHAPES, ids=str)
def codecs(request):
    """Return both codecs with the same weights. The codebook vectors are not normalised."""
    shape = USUAL | request.param
    with torch.random.fork_rng():
        torch.manual_seed(3)
        theirs = JanusVQVAE(JanusVQVAEConfig(**shape, num_patches=4)).eval()
        for parameter in theirs.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    ours = VQModel(vq_config({**shape, "attention": True, "normalised": True}, "here"))
    stored = theirs.state_dict()
    ours.load_state_dict({name: stored.pop(coarsest_first(name, ours.config)) for name in ours.state_dict()})
    assert not stored
    return ours, theirs


@torch.no_grad()
def test_encoded_pixels(codecs):
    """LlamaGen and Janus search for neighbours in the normalised codebook. transformers' codebook isn't normalised."""
    ours, theirs = codecs
    side = 4 * ours.config.downsample
    pixels = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(2)) * 2 - 1
    theirs.quantize.embedding.weight.copy_(F.normalize(theirs.quantize.embedding.weight, dim=-1))
    expected = theirs.encoder(pixels)
    codes = theirs.quantize(theirs.quant_conv(expected))[2]
    assert (ours.encoder(pixels) - expected).abs().max() < TOLERANCE
    assert torch.equal(ours.encode(pixels).flatten(), codes)
    assert len(codes.unique()) > 2


@torch.no_grad()
def test_codebook_lookups_use_normalised_vectors(codecs):
    ours, theirs = codecs
    codes = torch.arange(60).view(1, 6, 10)
    assert torch.allclose(ours.lookup(codes).norm(dim=1), torch.ones(1, 6, 10))
    assert torch.equal(ours.nearest(ours.lookup(codes)), codes)
    vectors = F.normalize(theirs.quantize.embedding.weight, dim=-1)
    distance = torch.cdist(vectors, vectors).fill_diagonal_(torch.inf)
    assert torch.equal(ours.neighbours(3).indices, distance.topk(3, 1, largest=False).indices)
