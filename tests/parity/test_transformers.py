"""Our decoder and codec equal transformers' Chameleon on random configurations and on the bundled weights."""

import pytest
import torch
from transformers import ChameleonForConditionalGeneration

from adt_core import load_target
from adt_core.models.cache import KVCache
from adt_core.models.checkpoint import resolve
from adt_core.models.rotary import rope_tables
from adt_core.models.rows import Roots, Rows
from adt_core.rules.tree import ancestor_matrix
from tests.tiny import write_tiny_checkpoint


def roots(*positions: int) -> Roots:
    """Of images that have come to these raster positions."""
    return Roots(torch.zeros(len(positions), dtype=torch.long), torch.tensor(positions)[:, None])


TOLERANCE = 1e-4
SHAPES = [
    dict(hidden=64, heads=4, layers=2),
    dict(hidden=96, heads=3, layers=3, intermediate=160),
    dict(hidden=64, heads=8, kv_heads=2, layers=4),
    dict(hidden=32, heads=1, layers=1, intermediate=48),
]


@pytest.fixture(params=[*SHAPES, "bundled"], ids=lambda p: p if isinstance(p, str) else "-".join(map(str, p.values())))
def folder(request, tmp_path):
    if request.param == "bundled":
        return resolve("bundled", "target")
    return write_tiny_checkpoint(tmp_path / "target", **request.param)


def reference_logits(folder, ids, mask=None, positions=None):
    """transformers' logits of the image codes.

    They are made with ``model.model`` and ``lm_head``, because the model's own forward masks image tokens.
    """
    model = ChameleonForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").float().eval()
    with torch.no_grad():
        features = model.model(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
        return model.lm_head(features)


@pytest.mark.parametrize("length", [1, 7, 40])
def test_plain_logits(folder, length):
    target = load_target(folder)
    decoder = target.decoder
    ids = torch.randint(decoder.config.vocab_size, (2, length), generator=torch.Generator().manual_seed(length))
    ids[ids == target.prompter.vocabulary["<image>"]] = 0  # transformers would look for pixels behind it
    rows = Rows(ids.tolist(), length, decoder.embedding)
    cache = KVCache(decoder.config, 2, length, decoder.embedding)
    features = decoder(rows.ids, rows.prefill(), cache, rope_tables(decoder.config, decoder.embedding))
    expected = reference_logits(folder, ids)[..., decoder.image_ids]
    assert (decoder.logits(features) - expected).abs().max() < TOLERANCE


def test_left_padded_prompts_and_a_tree_equal_path_by_path_forwards(folder):
    """One forward over a tree behind two prompts of different lengths = one transformers forward per path."""
    target = load_target(folder)
    decoder = target.decoder
    generator = torch.Generator().manual_seed(4)
    draw = lambda n: decoder.image_ids[torch.randint(target.num_codes, (n,), generator=generator)]  # noqa: E731
    prompts = [draw(9).tolist(), draw(4).tolist()]
    parents = torch.tensor([[0, 0, 0, 1, 1, 2, 3, 6]])
    depths = torch.tensor([[0, 1, 1, 2, 2, 2, 3, 4]])
    ancestors = ancestor_matrix(parents, 4)
    tokens = draw(8)
    rows = Rows(prompts, 9 + 8, decoder.embedding)
    cache, rope = KVCache(decoder.config, 2, 9 + 8, decoder.embedding), rope_tables(decoder.config, decoder.embedding)
    decoder(rows.ids, rows.prefill(), cache, rope)
    features = decoder(tokens.expand(2, -1), rows.step(roots(0), 0, depths, ancestors), cache, rope)
    logits = decoder.logits(features)
    for row, prompt in enumerate(prompts):
        for node in range(8):
            path = tokens[ancestors[0, node].nonzero().flatten()]
            expected = reference_logits(folder, torch.cat([torch.tensor(prompt), path])[None])[0, -1, decoder.image_ids]
            assert (logits[row, node] - expected).abs().max() < TOLERANCE


def test_compacted_cache_equals_plain_prefill(folder):
    """After the accepted path is moved together, the next token's logits are those of a plain prefill."""
    target = load_target(folder)
    decoder = target.decoder
    codes = torch.randint(target.num_codes, (12,), generator=torch.Generator().manual_seed(8))
    tokens = decoder.image_ids[codes]
    prompt, tree_tokens = tokens[:5].tolist(), tokens[5:11]
    parents, depths = torch.tensor([[0, 0, 0, 2, 2, 4]]), torch.tensor([[0, 1, 1, 2, 2, 3]])
    rows, rope = Rows([prompt], 16, decoder.embedding), rope_tables(decoder.config, decoder.embedding)
    cache = KVCache(decoder.config, 1, 16, decoder.embedding)
    decoder(rows.ids, rows.prefill(), cache, rope)
    decoder(tree_tokens[None], rows.step(roots(0), 0, depths, ancestor_matrix(parents, 3)), cache, rope)
    path = torch.tensor([[0, 2, 4, 5]])
    cache.compact(torch.tensor([[5]]), path)
    last = tokens[11:12]
    features = decoder(last[None], rows.step(roots(4), 0, 0, None), cache, rope)
    whole = torch.cat([tokens[:5], tree_tokens[path[0]], last])[None]
    assert (
        decoder.logits(features)[0, -1] - reference_logits(folder, whole)[0, -1, decoder.image_ids]
    ).abs().max() < TOLERANCE


def test_unequal_starts_equal_separate_forwards(folder):
    """Images of a batch whose caches have different lengths: the same logits as each alone."""
    target = load_target(folder)
    decoder, rope = target.decoder, rope_tables(target.decoder.config, target.decoder.embedding)
    tokens = decoder.image_ids[torch.randint(target.num_codes, (2, 9), generator=torch.Generator().manual_seed(2))]
    parents, depths = torch.tensor([[0, 0, 1]] * 2), torch.tensor([[0, 1, 2]] * 2)
    ancestors = ancestor_matrix(parents, 2)

    def forward(rows, cache, starts, pick):
        return decoder.logits(
            decoder(tokens[pick, 6:], rows.step(roots(*starts), 0, depths[pick], ancestors[pick]), cache, rope)
        )

    rows, cache = (
        Rows([t[:6].tolist() for t in tokens], 12, decoder.embedding),
        KVCache(decoder.config, 2, 12, decoder.embedding),
    )
    decoder(rows.ids, rows.prefill(), cache, rope)
    together = forward(rows, cache, [0, -2], [0, 1])
    for i, start in enumerate((0, -2)):
        rows, cache = (
            Rows([tokens[i, :6].tolist()], 12, decoder.embedding),
            KVCache(decoder.config, 1, 12, decoder.embedding),
        )
        decoder(rows.ids, rows.prefill(), cache, rope)
        assert (forward(rows, cache, [start], [i])[0] - together[i]).abs().max() < TOLERANCE


def test_codec_encoder(folder):
    target = load_target(folder)
    reference = ChameleonForConditionalGeneration.from_pretrained(folder).float().eval().model.vqmodel
    side = target.codec.config.resolution
    pixels = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(3)) * 2 - 1
    with torch.no_grad():
        ours = target.codec.quant_conv(target.codec.encoder(pixels))
        theirs = reference.quant_conv(reference.encoder(pixels))
        codes = reference.quantize(theirs)[2]
    assert (ours - theirs).abs().max() < TOLERANCE
    assert torch.equal(target.codec.encode(pixels).flatten(), codes.flatten())


def test_lookup_is_the_inverse_of_nearest(folder):
    codec = load_target(folder).codec
    codes = torch.arange(min(64, codec.config.num_embeddings)).view(1, 8, -1)
    assert torch.equal(codec.nearest(codec.lookup(codes)), codes)
    assert codec.decode(codes).shape == (1, 3, 8 * codec.config.downsample, codes.shape[2] * codec.config.downsample)
