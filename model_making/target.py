"""Stage 4: train the target transformer.

    python -m model_making.target --data DIR --tokens DIR --out DIR [--minutes 45]

Resumable. Next-token loss on the image tokens; captions are dropped in 10 % of the sequences, so that classifier-free
guidance works. Grass and clouds carry most of a picture's entropy, so next-token loss alone takes long to teach which
thing a caption puts where. Two linear heads, thrown away after training, teach it directly: one reads in an early
layer, at a place word ("left"), which thing the word is said of; one reads further up, at every image token, what the
caption puts into the column of the next. Prints held-out nats per token with and without caption, and how often the
second head is right.
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
from torch import Tensor, nn

from adt_core.models.config import DecoderConfig
from adt_core.models.layers import Decoder
from adt_lab.training.run import initialise, muon_and_adam

from .progress import TimedRun
from .scenes import COLOURS, PLACES, PLANTS, THINGS, Item
from .sequences import Batch, Sequences, build_vocabulary, final_features, image_token, run_layers

NUM_CODES = 1024
HELD_OUT = 512
GRID = 16
WORD_LAYER, LAYOUT_LAYER = 3, 7
PLACE_WORDS = ("left", "right", "middle", "center")  # each is said of the thing before it
# What a column may hold: nothing (0), a plant in its own green, or a thing in a colour.
CONTENTS = [None, *((kind, None) for kind in PLANTS), *((kind, colour) for kind in THINGS for colour in COLOURS)]
# Rotary frequencies are theta ** (-i / 32). This theta gives i = 4 a period of one row of the grid: "the same column"
# is one angle in every row, and the distance to the begin-of-image token tells a head the column. 10,000 has no period
# near 16; with it a small model drew things in the wrong place.
ROPE_THETA = (GRID / (2 * math.pi)) ** (32 / 4)


def make_decoder(vocabulary: dict[str, int]) -> Decoder:
    config = DecoderConfig(
        vocab_size=len(vocabulary),
        hidden_size=256,
        intermediate_size=640,
        num_layers=10,
        num_heads=4,
        num_kv_heads=4,
        rms_norm_eps=1e-5,
        rope_theta=ROPE_THETA,
        max_positions=384,
    )
    first = vocabulary[image_token(0)]
    decoder = Decoder(config, torch.arange(first, first + NUM_CODES))
    initialise(decoder, torch.Generator().manual_seed(0), config.num_layers)
    return decoder


def open_sequences(folder: Path) -> Sequences:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = np.load(folder / "tokens.npz")
    return Sequences(tokens["codes"], tokens["captions"], build_vocabulary(tokenizer.get_vocab(), NUM_CODES))


class Student(nn.Module):
    """The target and the heads that help to train it."""

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.decoder = decoder
        self.layout = nn.Linear(decoder.config.hidden_size, len(CONTENTS))
        self.word = nn.Linear(decoder.config.hidden_size, len(CONTENTS))

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the image tokens [B, T, codes], of their columns' contents [B, T, contents], and of what each token
        of the prompt is said of [B, n, contents]."""
        streams = run_layers(self.decoder, batch.ids[:, :-1])
        logits = self.decoder.logits(batch.at_image(final_features(self.decoder, streams[-1])))
        return logits, self.layout(batch.at_image(streams[LAYOUT_LAYER - 1])), self.word(streams[WORD_LAYER - 1])


def trained_decoder(checkpoint: Path, vocabulary: dict[str, int]) -> Decoder:
    """The averaged weights of a training run."""
    student = Student(make_decoder(vocabulary))
    student.load_state_dict(torch.load(checkpoint, weights_only=True)["average"])
    return student.decoder


class Layouts:
    """What captions put where, as indices into ``CONTENTS``.

    columns: [count, GRID * GRID], of every image token's column. words: [count, longest caption], at the place words
    what they are said of, -100 elsewhere.
    """

    def __init__(self, scenes: Path, sequences: Sequences):
        place_ids = [sequences.vocabulary["\u0120" + word] for word in PLACE_WORDS]  # byte-level BPE's leading space
        self.columns = np.zeros((len(sequences.codes), GRID * GRID), np.int64)
        self.words = np.full(sequences.captions.shape, -100, np.int64)
        centres = (np.arange(GRID * GRID) % GRID + 0.5) / GRID
        for columns, words, caption, line in zip(
            self.columns, self.words, sequences.captions, scenes.read_text().splitlines(), strict=True
        ):
            items = [Item(**item) for item in json.loads(line)["items"]]
            contents = [CONTENTS.index((item.kind, item.colour)) for item in items]
            words[np.isin(caption, place_ids)] = contents  # a caption names its things in order, each with its place
            for item, content in zip(items, contents):
                columns[np.abs(centres - PLACES[item.place]) < 2.5 / GRID] = content

    def loss(self, indices: np.ndarray, batch: Batch, columns: Tensor, words: Tensor) -> Tensor:
        """Cross entropies of both heads; rows without caption don't count."""

        def entropy(logits: Tensor, truth: np.ndarray) -> Tensor:
            truth = torch.from_numpy(truth[indices]).masked_fill(~batch.captioned[:, None], -100)
            return F.cross_entropy(logits.flatten(0, 1), truth.flatten())

        return entropy(columns, self.columns) + entropy(words[:, 1 : 1 + self.words.shape[1]], self.words)  # behind <s>


@torch.no_grad()
def evaluate(student: Student, sequences: Sequences, layouts: Layouts, count: int = 64) -> str:
    """Nats per image token on the last ``count`` sequences, which training never sees; share of the things' columns
    that the layout head names in the first row, where nothing but the caption can tell."""
    losses, right = {True: [], False: []}, []
    for start in range(len(sequences.codes) - count, len(sequences.codes), 16):
        indices = np.arange(start, start + 16)
        for conditional in losses:
            batch = sequences.batch(indices, np.random.default_rng(0), conditional)
            logits, columns, _ = student(batch)
            losses[conditional].append(F.cross_entropy(logits.flatten(0, 1), batch.codes.flatten()).item())
            if conditional:
                truth = torch.from_numpy(layouts.columns[indices, :GRID])
                right.append((columns[:, :GRID].argmax(-1) == truth)[truth > 0])
    return (
        f"held-out nats with caption {np.mean(losses[True]):.4f}, without {np.mean(losses[False]):.4f}; "
        f"layout {torch.cat(right).float().mean().item():.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=45)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    sequences = open_sequences(args.tokens)
    layouts = Layouts(args.data / "scenes.jsonl", sequences)
    student = Student(make_decoder(sequences.vocabulary))
    optimisers = muon_and_adam(student, muon_lr=0.02, adam_lr=4e-3, not_muon=("head", "layout", "word"))
    run = TimedRun(args.out / "target.pt", student, optimisers, args.minutes, decay=0.99)
    order = np.random.default_rng(11).permutation(len(sequences.codes) - HELD_OUT)
    while run.fraction < 1:
        start = run.step * args.batch % (len(order) - args.batch)
        indices = order[start : start + args.batch]
        batch = sequences.batch(indices, np.random.default_rng([12, run.step]))
        logits, columns, words = student(batch)
        run.advance(
            F.cross_entropy(logits.flatten(0, 1), batch.codes.flatten()) + layouts.loss(indices, batch, columns, words)
        )
        if run.due():
            run.save()
            shipped = Student(make_decoder(sequences.vocabulary))
            shipped.load_state_dict(run.average)
            print(f"{run.step * args.batch} sequences, {evaluate(shipped, sequences, layouts)}", flush=True)


if __name__ == "__main__":
    main()
