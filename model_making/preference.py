"""Stage 5: let the target learn which of its own pictures show what their captions name.

    python -m model_making.preference --data DIR --tokens DIR --start DIR/target.pt --out DIR [--minutes 30]

Resumable. Next-token loss hardly pays for the few tokens that decide what a picture shows. So the target draws four
pictures of each new caption with its usual guidance, ``model_making.judging`` tells what each of them lacks, and the
target learns to prefer the better to the worse (direct preference optimisation: Rafailov et al., 2023, equation 7; the
reference is the model that drew them). Every step also goes on with the loss of stage 4, so that pictures stay as they
are otherwise. The captions are worded as in training; the prompts of ``model_making.ordinary`` are never among them.
Each round prints which share was found in the new pictures, so their captions were not seen before.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, distributed

from adt_core import Drafting, Sampling, load_target
from adt_core.app.checkpoints import BUNDLED_SAMPLING
from adt_core.app.images import to_uint8
from adt_core.parts import PLAIN, Job, decode

from .judging import Judged, judge_prompt
from .progress import TimedRun, in_processes, is_first, rank
from .scenes import sample_wide_scene
from .sequences import Batch, Sequences, final_features, run_layers
from .target import HELD_OUT, Student, around_of, columns_of, loss_of, make_decoder, open_sequences
from .target import draw as codes_from
from .wording import Said, asked_by, word

TOGETHER = 4  # pictures of a caption
AT_ONCE = 16  # captions that are drawn at once
PAIRS = 4  # in a step of a process
SHARPNESS = 0.1  # beta in the paper: a picture should become likelier than another one by about its inverse, in nats
DATA_WEIGHT = 5.0  # of stage 4's loss, a mean over tokens, beside that of pairs, which counts sums over tokens


@dataclass(frozen=True)
class Pair:
    """Two pictures of a caption, codes [tokens] each: the first shows more of what it names."""

    caption: list[Said]
    better: np.ndarray
    worse: np.ndarray


def worth(judged: Judged) -> float:
    """The share of what a caption names that is there, and there once."""
    found = [*judged.named.values(), *judged.once]
    return sum(found) / len(found)


def pairs_of(caption: list[Said], codes: np.ndarray, worths: list[float]) -> Iterator[Pair]:
    """Of a caption's pictures [n, tokens]: the best and the worst, then the next, while they are worth less."""
    order = np.argsort(worths, kind="stable")
    for worse, better in zip(order, order[::-1][: len(order) // 2]):
        if worths[worse] < worths[better]:
            yield Pair(caption, codes[better], codes[worse])


def likelihoods(student: Student, batch: Batch) -> Tensor:
    """Log-likelihood of every picture of a batch, float32 [B]."""
    with torch.autocast("cpu", torch.bfloat16):
        streams = run_layers(student.decoder, batch.ids[:, :-1])
        logits = student.decoder.logits(batch.at_image(final_features(student.decoder, streams[-1]))).float()
    return -F.cross_entropy(logits.flatten(0, 1), batch.codes.flatten(), reduction="none").view_as(batch.codes).sum(1)


def leads(student: Student, sequences: Sequences, pairs: list[Pair]) -> Tensor:
    """How much likelier the better picture of every pair is, in nats [pairs]."""
    codes = np.stack([pair.better for pair in pairs] + [pair.worse for pair in pairs])
    captions = [pair.caption for pair in pairs] * 2
    better, worse = likelihoods(student, sequences.laid_out(captions, codes, codes)).chunk(2)
    return better - worse


class Artist:
    """Draws and judges: the bundled model with the student's weights."""

    def __init__(self, guidance: float):
        self.job = Job(load_target(), Sampling(28, guidance=guidance), Drafting(PLAIN))

    def pairs(self, student: Student, captions: list[list[Said]], first: int) -> tuple[list[Pair], list[float]]:
        """Pairs of new pictures, and what each picture is worth. first: the number of the first, for its noise."""
        target = self.job.target
        target.decoder.load_state_dict(student.decoder.state_dict())
        pairs, worths = [], []
        for start in range(0, len(captions), AT_ONCE):
            some = captions[start : start + AT_ONCE]
            asked = [asked_by(caption) for caption in some for _ in range(TOGETHER)]
            begin = first + start * TOGETHER
            numbers = list(range(begin, begin + len(asked)))
            grids = decode(self.job.decoding([ask.text for ask in asked], numbers)).grid_codes()
            with torch.inference_mode():
                pictures = [to_uint8(pixels) for pixels in target.codec.decode(grids)]
            new = [worth(judge_prompt(picture, ask)) for picture, ask in zip(pictures, asked)]
            codes = grids.flatten(1).numpy()
            for i, caption in enumerate(some):
                group = slice(i * TOGETHER, (i + 1) * TOGETHER)
                pairs += pairs_of(caption, codes[group], new[group])
            worths += new
        return pairs, worths


def agreed(value: float, how: distributed.ReduceOp.RedOpType) -> float:
    """``value`` of all processes, as one."""
    if not distributed.is_initialized():
        return value
    both = torch.tensor([value])
    distributed.all_reduce(both, how)
    return both.item()


def learn_from(
    student: Student, run: TimedRun, sequences: Sequences, pairs: list[Pair], data: Iterator[Tensor]
) -> None:
    """One pass over the pairs. data: the losses of stage 4."""
    count = int(agreed(len(pairs), distributed.ReduceOp.MIN)) // PAIRS * PAIRS
    groups = [pairs[i : i + PAIRS] for i in range(0, count, PAIRS)]
    with torch.no_grad():
        before = [leads(student, sequences, group) for group in groups]
    for group, reference in zip(groups, before):
        gained = leads(student, sequences, group) - reference
        run.advance(-F.logsigmoid(SHARPNESS * gained).mean() + DATA_WEIGHT * next(data))


def data_losses(student: Student, sequences: Sequences, run: TimedRun, batch: int) -> Iterator[Tensor]:
    """The loss of stage 4 on one batch after the other."""
    columns, around = columns_of(sequences.scenes), around_of(sequences.scenes)
    while True:
        rng = np.random.default_rng([13, run.step, rank()])
        indices = rng.choice(len(sequences.codes) - HELD_OUT, batch, replace=False)
        told = (torch.from_numpy(x[indices]) for x in (columns, around))
        loss, logits = loss_of(student, sequences.batch(indices, rng), *told)
        sequences.drawn[indices] = codes_from(logits, torch.Generator().manual_seed(run.step))
        yield loss


def train(args: argparse.Namespace) -> None:
    sequences, artist = open_sequences(args.data, args.tokens), Artist(args.guidance)
    student = Student(make_decoder(sequences.vocabulary))
    student.load_state_dict(torch.load(args.start, weights_only=True)["average"])
    optimiser = torch.optim.AdamW(student.parameters(), args.lr, (0.9, 0.98), weight_decay=0.0)
    optimiser.param_groups[0]["peak"] = args.lr
    run = TimedRun(args.out / "preference.pt", student, [optimiser], args.minutes, decay=0.98)
    data = data_losses(student, sequences, run, args.batch)
    while run.fraction < 1:
        rngs = [np.random.default_rng([28, run.step, rank(), i]) for i in range(args.captions)]
        captions = [word(sample_wide_scene(rng), rng) for rng in rngs]
        pairs, worths = artist.pairs(student, captions, run.step * 10_000 + rank() * 5_000)
        found = agreed(float(np.mean(worths)), distributed.ReduceOp.SUM) / args.processes
        learn_from(student, run, sequences, pairs, data)
        run.save()
        if is_first():
            print(f"{run.elapsed / 60:.1f} min, {found:.3f} found, {len(pairs)} pairs, {run.step} steps", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data", "tokens", "start", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--captions", type=int, default=96, help="of a round of every process, four pictures each")
    parser.add_argument("--batch", type=int, default=8, help="of stage 4's sequences in a step of every process")
    parser.add_argument("--lr", type=float, default=1.5e-4)
    parser.add_argument("--guidance", type=float, default=BUNDLED_SAMPLING.guidance)
    parser.add_argument("--processes", type=int, default=2, help="that share the work, with one thread each")
    args = parser.parse_args()
    in_processes(args.processes, train, args)


if __name__ == "__main__":
    main()
