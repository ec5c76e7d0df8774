"""Stage 4: train the target transformer.

    python -m training.target --tokens DIR --out DIR [--minutes 45]

Resumable. Next-token loss on the image tokens; captions are dropped in 10 % of the sequences, so that
classifier-free guidance works. Prints held-out nats per token with and without caption.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from adt_core.models.decoder import Decoder, DecoderConfig

from .common import Budget, WeightAverage, cosine, load, muon_and_adam, save, step_all
from .sequences import Sequences, build_vocabulary, image_token, initialise, run_decoder

NUM_CODES = 1024
HELD_OUT = 512


def make_decoder(vocabulary: dict[str, int]) -> Decoder:
    config = DecoderConfig(vocab_size=len(vocabulary), hidden_size=256, intermediate_size=640, num_layers=10, num_heads=4, num_kv_heads=4,
                           rms_norm_eps=1e-5, rope_theta=10000.0, max_positions=384)
    first = vocabulary[image_token(0)]
    decoder = Decoder(config, torch.arange(first, first + NUM_CODES))
    initialise(decoder, torch.Generator().manual_seed(0), config.num_layers)
    return decoder


def open_sequences(folder: Path) -> Sequences:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = np.load(folder / "tokens.npz")
    return Sequences(tokens["codes"], tokens["captions"], build_vocabulary(tokenizer.get_vocab(), NUM_CODES))


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
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=45)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    sequences, state = open_sequences(args.tokens), load(args.out / "target.pt")
    decoder = make_decoder(sequences.vocabulary)
    optimisers = muon_and_adam(decoder, muon_lr=0.02, adam_lr=4e-3, not_muon=("head",))
    average = WeightAverage(decoder, 0.99)
    budget, step = Budget(args.minutes, state["elapsed"] if state else 0.0), state["step"] if state else 0
    if state:
        decoder.load_state_dict(state["model"])
        average.shadow = state["average"]
        for optimiser, saved in zip(optimisers, state["optimisers"]):
            optimiser.load_state_dict(saved)
    order = np.random.default_rng(11).permutation(len(sequences.codes) - HELD_OUT)
    saved_at = budget.elapsed
    while budget.fraction < 1:
        start = step * args.batch % (len(order) - args.batch)
        rng = np.random.default_rng([12, step])
        batch = sequences.batch(order[start : start + args.batch], rng)
        logits = decoder.logits(batch.at_image(run_decoder(decoder, batch.ids[:, :-1])))
        loss = F.cross_entropy(logits.flatten(0, 1), batch.codes.flatten())
        step_all(optimisers, loss, cosine(budget.fraction))
        average.update(decoder, step)
        step += 1
        if step % 25 == 0:
            print(f"step {step} {budget.fraction:.3f} loss {loss.item():.4f}", flush=True)
        if budget.elapsed - saved_at > 240 or budget.fraction >= 1:
            saved_at = budget.elapsed
            save(args.out / "target.pt", {"model": decoder.state_dict(), "average": average.shadow, "optimisers": [o.state_dict() for o in optimisers],
                                          "step": step, "elapsed": budget.elapsed, "sequences": step * args.batch})
            shipped = make_decoder(sequences.vocabulary)
            shipped.load_state_dict(average.shadow)
            print(f"held out nats: {evaluate(shipped, sequences)}", flush=True)


if __name__ == "__main__":
    main()
