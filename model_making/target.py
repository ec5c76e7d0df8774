"""Stage 4: train the target transformer.

    python -m model_making.target --data DIR --tokens DIR --out DIR [--minutes 45] [--start FOLDER]

Resumable. Next-token loss on the image tokens; captions are dropped in 10 % of the sequences, so that classifier-free
guidance works. Grass and clouds carry most of a picture's entropy, so next-token loss alone takes long to teach which
thing a caption puts where. Four linear heads, thrown away after training, teach it directly, from layer to layer:

- words: where a caption has named a thing, which one it is;
- plan: at the end of the caption, which thing it puts at each place;
- layout and around: at every image token, what stands in the column of the next, and what is around the things. They
  can tell it from the caption or from the picture so far.

Most of this is to be learned from captions, and these are short. So every step also has lessons, many captions with
only the first row of their pictures; and many more captions of new scenes, without pictures, for the first two heads.
Prints held-out nats per token with and without caption, and how often the last three heads are right. ``--start``
begins with the weights of a checkpoint of the same shape; its words keep their meaning.
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
from torch import Tensor, distributed, nn

from adt_core import load_target
from adt_core.lab.training.run import initialise, muon_and_adam
from adt_core.models.config import DecoderConfig
from adt_core.models.layers import Decoder

from .progress import TimedRun, in_processes, is_first, rank
from .scenes import BACKDROPS, COLOURS, GROUNDS, PLACES, PLANTS, SKIES, THINGS, WALLS, Item, Scene
from .sequences import NOTHING, Batch, Sequences, build_vocabulary, final_features, image_token, run_layers

NUM_CODES = 1024
HELD_OUT = 512
GRID = 16
WORD_LAYER, PLAN_LAYER, LAYOUT_LAYER = 3, 5, 7
# What a column may hold, or a word may name: nothing (0), a plant, a thing in a colour, one whose colour is not said.
CONTENTS = [None, *((kind, None) for kind in (*PLANTS, *THINGS)), *((kind, c) for kind in THINGS for c in COLOURS)]
# What is around the things: sky or wall, ground or table, backdrop. They are easier to tell than the things.
SURROUNDINGS = ((*SKIES, *WALLS), (*GROUNDS, "table"), BACKDROPS)
AROUND_SHARE = 0.3  # what each of them counts in the loss, where the contents of a column count 1
CONTENT_IDS = {content: i for i, content in enumerate(CONTENTS) if content is not None}
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


def open_sequences(data: Path, tokens: Path) -> Sequences:
    lines = (data / "scenes.jsonl").read_text(encoding="utf-8").splitlines()
    return Sequences(
        np.load(tokens / "codes.npy"), [read_scene(line) for line in lines], vocabulary(tokens), CONTENT_IDS
    )


def read_scene(line: str) -> Scene:
    """A scene from its line of ``scenes.jsonl``."""
    said = json.loads(line)
    return Scene(**said | {"items": tuple(Item(**item) for item in said["items"])})


def vocabulary(tokens: Path) -> dict[str, int]:
    return build_vocabulary(Tokenizer.from_file(str(tokens / "tokenizer.json")).get_vocab(), NUM_CODES)


def begin_with(decoder: Decoder, names: dict[str, int], folder: Path) -> None:
    """Put a checkpoint's weights into ``decoder``: the rows of tokens that both know, and everything else."""
    old = load_target(folder, dtype=torch.float32)
    weights = old.decoder.state_dict()
    del weights["image_ids"]
    rows = weights.pop("embedding")
    known = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocabulary_map"]
    decoder.load_state_dict(weights, strict=False)
    for name, row in names.items():
        before = known.get(name, known.get("\u0120" + name))  # byte-level tokens begin with their space
        if before is not None:
            decoder.embedding.data[row] = rows[before]


class Student(nn.Module):
    """The target and the heads that help to train it, which begin at zero."""

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.decoder = decoder
        width = decoder.config.hidden_size
        self.layout, self.word = nn.Linear(width, len(CONTENTS)), nn.Linear(width, len(CONTENTS))
        self.plan = nn.Linear(width, len(PLACES) * len(CONTENTS))
        self.around = nn.Linear(width, sum(map(len, SURROUNDINGS)))
        for head in (self.layout, self.word, self.plan, self.around):
            nn.init.zeros_(head.weight)

    def heard(self, streams: list[Tensor], batch: Batch) -> list[Tensor]:
        """Logits of what each token names [B, n, contents], and of what the caption puts at each place
        [B, places, contents]."""
        plan = self.plan(batch.at_end(streams[PLAN_LAYER - 1]))
        return [self.word(streams[WORD_LAYER - 1]), plan.unflatten(-1, (len(PLACES), len(CONTENTS)))]

    def forward(self, batch: Batch) -> list[Tensor]:
        """Logits of the image tokens [B, T, codes], of :meth:`heard` for all tokens but the last, of the contents of
        the image tokens' columns [B, T, contents], and of each of SURROUNDINGS [B, T, kinds]."""
        streams = run_layers(self.decoder, batch.ids[:, :-1])
        logits = self.decoder.logits(batch.at_image(final_features(self.decoder, streams[-1])))
        seen = batch.at_image(streams[LAYOUT_LAYER - 1])
        around = self.around(seen).split([len(kinds) for kinds in SURROUNDINGS], -1)
        return [logits, *self.heard(streams, batch), self.layout(seen), *around]


def trained_decoder(checkpoint: Path, names: dict[str, int]) -> Decoder:
    """The averaged weights of a training run."""
    student = Student(make_decoder(names))
    student.load_state_dict(torch.load(checkpoint, weights_only=True)["average"])
    return student.decoder


def columns_of(scenes: list[Scene]) -> np.ndarray:
    """[count, GRID * GRID]: what stands in every image token's column, as an index into ``CONTENTS``."""
    columns = np.zeros((len(scenes), GRID * GRID), np.int64)
    centres = (np.arange(GRID * GRID) % GRID + 0.5) / GRID
    for row, scene in zip(columns, scenes):
        for item in scene.items:
            row[np.abs(centres - PLACES[item.place]) < 2.5 / GRID] = CONTENT_IDS[item.kind, item.colour]
    return columns


def around_of(scenes: list[Scene]) -> np.ndarray:
    """[count, 3]: what is around the things of every scene, as indices into SURROUNDINGS."""
    named = [(scene.sky or scene.wall, scene.ground or "table", scene.backdrop) for scene in scenes]
    return np.array([[kinds.index(name) for kinds, name in zip(SURROUNDINGS, names)] for names in named])


def loss_of(student: Student, batch: Batch, columns: Tensor, around: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the cross entropies of all outputs; and the logits of the image tokens, float32 [B, T, codes].

    Rows without caption can't tell columns and surroundings. Of these the first token counts as much as all tokens
    together: it decides the sky, and nothing but the caption speaks of them there. columns: [B, T]. around: [B, 3].
    """
    with torch.autocast("cpu", torch.bfloat16):
        logits, words, plan, *told = (output.float() for output in student(batch))
    truths = [columns, *(kind[:, None].expand_as(columns) for kind in around.T)]
    loss = _entropy(logits, batch.codes) + _entropy(words, batch.said[:, :-1]) + _entropy(plan, batch.planned)
    for share, output, truth in zip((1.0, *(AROUND_SHARE,) * len(SURROUNDINGS)), told, truths):
        truth = truth.masked_fill(~batch.captioned[:, None], NOTHING)
        loss = loss + share * (_entropy(output, truth) + _entropy(output[:, :1], truth[:, :1]))
    return loss, logits.detach()


def caption_loss(student: Student, batch: Batch) -> Tensor:
    """The cross entropies of what captions name and of where they put it, without pictures."""
    with torch.autocast("cpu", torch.bfloat16):
        words, plan = student.heard(run_layers(student.decoder, batch.ids, PLAN_LAYER), batch)
    return _entropy(words.float(), batch.said) + _entropy(plan.float(), batch.planned)


def _entropy(logits: Tensor, truth: Tensor) -> Tensor:
    """Mean cross entropy; NOTHING doesn't count."""
    return F.cross_entropy(logits.flatten(0, 1), truth.flatten(), ignore_index=NOTHING)


def draw(logits: Tensor, generator: torch.Generator) -> np.ndarray:
    """A code from each distribution [..., codes], by the Gumbel trick."""
    noise = torch.empty_like(logits).exponential_(generator=generator)
    return (logits - noise.log()).argmax(-1).numpy().astype(np.uint16)


@torch.no_grad()
def evaluate(student: Student, sequences: Sequences, columns: np.ndarray, count: int = 64) -> str:
    """Nats per image token on the last ``count`` sequences, which training never sees; the share of captions whose
    things are all planned right; and the shares of the things' columns and of the surroundings that are told from the
    caption alone. Captions leave some of them out."""
    losses, planned, right, told = {True: [], False: []}, [], [], []
    for start in range(len(sequences.codes) - count, len(sequences.codes), 16):
        indices = np.arange(start, start + 16)
        for conditional in losses:
            batch = sequences.batch(indices, np.random.default_rng(start), conditional)
            logits, _, plan, layout, *around = student(batch)
            losses[conditional].append(_entropy(logits, batch.codes).item())
            if conditional:
                planned.append((plan.argmax(-1) == batch.planned).all(-1))
                truth = torch.from_numpy(columns[indices, :GRID])
                right.append((layout[:, :GRID].argmax(-1) == truth)[truth > 0])
                first = torch.stack([output[:, 0].argmax(-1) for output in around], 1).numpy()
                told.append(first == around_of([sequences.scenes[i] for i in indices]))
    return (
        f"held-out nats with caption {np.mean(losses[True]):.4f}, without {np.mean(losses[False]):.4f}; "
        f"plan {torch.cat(planned).float().mean().item():.3f}, "
        f"layout {torch.cat(right).float().mean().item():.3f}, surroundings {np.concatenate(told).mean(0).round(3)}"
    )


def train(args: argparse.Namespace) -> None:
    sequences = open_sequences(args.data, args.tokens)
    columns, around = columns_of(sequences.scenes), around_of(sequences.scenes)
    student = Student(make_decoder(sequences.vocabulary))
    if args.start and args.start.is_file():
        student.load_state_dict(torch.load(args.start, weights_only=True)["average"], strict=False)
    elif args.start:
        begin_with(student.decoder, sequences.vocabulary, args.start)
    optimisers = muon_and_adam(student, args.lr, args.lr / 5, not_muon=("head", "layout", "word", "plan", "around"))
    run = TimedRun(args.out / "target.pt", student, optimisers, args.minutes, decay=0.995)
    order = np.random.default_rng(11).permutation(len(sequences.codes) - HELD_OUT)
    share = slice(distributed.get_rank(), None, args.processes) if args.processes > 1 else slice(None)
    while run.fraction < 1:
        start = run.step * args.batch % (len(order) - args.batch)
        indices = order[start : start + args.batch][share]
        batch = sequences.batch(indices, np.random.default_rng([12, run.step, indices[0]]))
        loss, logits = loss_of(student, batch, *(torch.from_numpy(x[indices]) for x in (columns, around)))
        sequences.drawn[indices] = draw(logits, torch.Generator().manual_seed(run.step))
        rng = np.random.default_rng([14, run.step, rank()])
        taught = rng.choice(len(order), args.lessons // args.processes, replace=False)
        told = torch.from_numpy(columns[taught, :GRID]), torch.from_numpy(around[taught])
        lesson, _ = loss_of(student, sequences.lessons(taught, rng, GRID), *told)
        heard = caption_loss(student, sequences.captions(args.captions // args.processes, rng))
        run.advance(loss + lesson + heard)
        if run.due():
            run.save()
            if is_first():
                shipped = Student(make_decoder(sequences.vocabulary))
                shipped.load_state_dict(run.average)
                print(f"{run.step * args.batch} sequences, {evaluate(shipped, sequences, columns)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="folder of a checkpoint, or target.pt of another run, to begin with")
    parser.add_argument("--minutes", type=float, default=45)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument(
        "--lessons", type=int, default=48, help="in a step: captions with the first row of their pictures"
    )
    parser.add_argument("--captions", type=int, default=128, help="in a step, without pictures")
    parser.add_argument("--lr", type=float, default=0.02, help="of Muon; AdamW has a fifth of it")
    parser.add_argument("--processes", type=int, default=2, help="that share the work, with one thread each")
    args = parser.parse_args()
    in_processes(args.processes, train, args)


if __name__ == "__main__":
    main()
