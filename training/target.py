"""Stage 4: train the target transformer.

    python -m training.target --data DIR --tokens DIR --out DIR [--minutes 45]

Resumable. Next-token loss on the image tokens; captions are dropped in 10 % of the sequences, so that
classifier-free guidance works. Things fill a tenth of a picture and carry most of a caption, while grass and clouds
carry most of the entropy: until the last part of the run, tokens where the caption puts a thing count ``EMPHASIS`` times. Prints
held-out nats per token with and without caption.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from adt_core.models.decoder import Decoder, DecoderConfig

from .common import Run, muon_and_adam
from .scenes import AIR_OBJECTS, PLACES
from .sequences import Sequences, build_vocabulary, image_token, initialise, run_decoder

NUM_CODES = 1024
HELD_OUT = 512
EMPHASIS, PLAIN_SHARE = 6.0, 0.15
GRID = 16
# Rotary frequencies are theta ** (-i / 32). This theta gives i = 4 a period of one row of the grid: "the same column" is one angle
# in every row, and the distance to the begin-of-image token tells a head the column. 10,000 has no period near 16; with it
# a small model drew things in the wrong place.
ROPE_THETA = (GRID / (2 * math.pi)) ** (32 / 4)


def make_decoder(vocabulary: dict[str, int]) -> Decoder:
    config = DecoderConfig(vocab_size=len(vocabulary), hidden_size=256, intermediate_size=640, num_layers=10, num_heads=4, num_kv_heads=4,
                           rms_norm_eps=1e-5, rope_theta=ROPE_THETA, max_positions=384)
    first = vocabulary[image_token(0)]
    decoder = Decoder(config, torch.arange(first, first + NUM_CODES))
    initialise(decoder, torch.Generator().manual_seed(0), config.num_layers)
    return decoder


def open_sequences(folder: Path) -> Sequences:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = np.load(folder / "tokens.npz")
    return Sequences(tokens["codes"], tokens["captions"], build_vocabulary(tokenizer.get_vocab(), NUM_CODES))


def item_weights(scenes: Path, grid: int = GRID) -> np.ndarray:
    """Loss weights [count, grid * grid]: ``EMPHASIS`` where a scene's caption puts a thing, 1 elsewhere."""
    weights = []
    for line in scenes.read_text().splitlines():
        cells = np.ones((grid, grid), np.float32)
        for item in json.loads(line)["items"]:
            column = int(PLACES[item["place"]] * grid)
            rows = slice(0, 8) if item["kind"] in AIR_OBJECTS else slice(6, 14)
            cells[rows, max(column - 3, 0) : column + 4] = EMPHASIS
        weights.append(cells.flatten())
    return np.stack(weights)


@torch.no_grad()
def evaluate(decoder: Decoder, sequences: Sequences, count: int = 64) -> dict[str, float]:
    """Nats per image token on the last ``count`` sequences, which training never sees."""
    result = {}
    for name, conditional in (("with_caption", True), ("without_caption", False)):
        losses = []
        for start in range(len(sequences.codes) - count, len(sequences.codes), 16):
            batch = sequences.batch(np.arange(start, start + 16), np.random.default_rng(0), conditional)
            logits = decoder.logits(batch.at_image(run_decoder(decoder, batch.ids)))
            losses.append(F.cross_entropy(logits.flatten(0, 1), batch.codes.flatten()).item())
        result[name] = float(np.mean(losses))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=45)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    sequences, weights = open_sequences(args.tokens), item_weights(args.data / "scenes.jsonl")
    decoder = make_decoder(sequences.vocabulary)
    optimisers = muon_and_adam(decoder, muon_lr=0.02, adam_lr=4e-3, not_muon=("head",))
    run = Run(args.out / "target.pt", decoder, optimisers, args.minutes, decay=0.99)
    order = np.random.default_rng(11).permutation(len(sequences.codes) - HELD_OUT)
    while run.fraction < 1:
        start = run.step * args.batch % (len(order) - args.batch)
        batch = sequences.batch(order[start : start + args.batch], np.random.default_rng([12, run.step]))
        logits = decoder.logits(batch.at_image(run_decoder(decoder, batch.ids[:, :-1])))
        losses = F.cross_entropy(logits.flatten(0, 1), batch.codes.flatten(), reduction="none")
        if run.fraction < 1 - PLAIN_SHARE:
            weight = torch.from_numpy(weights[order[start : start + args.batch]]).flatten()
            losses = losses * weight / weight.mean()
        run.advance(losses.mean())
        if run.due():
            run.save()
            shipped = make_decoder(sequences.vocabulary)
            shipped.load_state_dict(run.average.shadow)
            print(f"{run.step * args.batch} sequences, held-out nats: {evaluate(shipped, sequences)}", flush=True)


if __name__ == "__main__":
    main()
