"""Lumina-mGPT's decoder equals transformers' Chameleon, to which its norms were expanded by hand."""

import torch

from adt_core import Sampling, load_target
from tests.drafted import run
from tests.layouts.lumina import write_lumina
from tests.layouts.reference import reference
from tests.reading import Reader, guided_rows

TOLERANCE = 1e-4


def test_logits_of_prompt_and_rows(tmp_path):
    """Both guidance rows, the image's first two rows with their ends."""
    folder = write_lumina(tmp_path / "Lumina-mGPT-768-tiny", kv_heads=2)
    target = load_target(folder).sized(96, 64)
    decoder, model = target.decoder, reference(folder)
    codes = torch.randint(target.num_codes, (14,), generator=torch.Generator().manual_seed(1))
    codes[6::7] = target.num_codes  # a row of 6 cells and its end
    tokens = decoder.image_ids[codes].tolist()
    rows = [[*row, *tokens] for row in guided_rows(target, ["a cat"], 3.0)]
    for found, row in zip(decoder.logits(Reader(decoder, rows).features)[:, -15:], rows):
        with torch.no_grad():
            features = model.model(input_ids=torch.tensor([row])).last_hidden_state
            theirs = model.lm_head(features)[0, -15:, decoder.image_ids[: target.num_codes]]
        assert (found - theirs).abs().max() < TOLERANCE


def test_an_image_is_what_the_reference_loop_draws(tmp_path):
    """Greedy with guidance, one token after another through transformers, the row ends put in by hand."""
    folder = write_lumina(tmp_path / "Lumina-mGPT-768-tiny", scale=3.0)
    target = load_target(folder).sized(64, 64)
    model, ids = reference(folder), target.decoder.image_ids
    decoding = run(target, prompts=("a cat",), sampling=Sampling(temperature=0))
    prompt, drawn = target.encode_prompt("a cat"), []
    for at in range(4 * 5):
        if at % 5 == 4:
            drawn.append(target.num_codes)
            continue
        tokens = [ids[code].item() for code in drawn]
        with torch.no_grad():
            both = [
                model.lm_head(model.model(input_ids=torch.tensor([[*row, *tokens]])).last_hidden_state[0, -1])[
                    ids[: target.num_codes]
                ]
                for row in (prompt, target.unconditional(prompt))
            ]
        drawn.append((both[1] + 3.0 * (both[0] - both[1])).argmax().item())
    assert decoding.codes[0].tolist() == drawn
