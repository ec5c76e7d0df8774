"""Stage 4: train the target transformer.

    python -m model_making.target --data DIR --tokens DIR --out DIR [--minutes 45] [--start FOLDER]

The main loss is cross entropy of the image tokens. Captions are dropped in 10 % of the sequences, for classifier-free
guidance. Textures such as grass and clouds have most of an image's entropy. With the main loss only, the model would
therefore learn slowly which object the caption puts at which place. Four auxiliary linear heads on intermediate layers
train the model to represent the contents of the image. These heads are discarded after training:

- word: at the last word of an object's name or place, predicts the object;
- plan: at the end of the caption, predicts the object at each place;
- layout: at the position that predicts an image token, predicts the object in the column of this token;
- around: at the position that predicts an image token, predicts the background.

The layout and around heads can use the caption and all image tokens so far. Each step also trains on two kinds of
additional captions, which cost little because they are short: captions with only the first row of their images
("lessons"), and captions without images. Captions without images train only the word and plan heads.

The script prints the loss on held-out images in nats per image token, with and without caption, and the accuracy of the
plan, layout and around heads. To resume training, run the same command again. ``--start`` initialises the weights from
a checkpoint with the same layer sizes. Embeddings are copied by token name, because the token ids may differ.

Tensor dimensions: B sequences, n tokens of a sequence, T image tokens, h hidden size, codes (image codes), contents
(classes in ``CONTENTS``), places (left, middle and right).
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

from adt_core import load_target
from adt_core.lab.training import training_state
from adt_core.lab.training.run import initialise, muon_and_adam
from adt_core.models.config import DecoderConfig
from adt_core.models.layers import Decoder

from .scenes import BACKDROPS, COLOURED_OBJECTS, COLOURS, GROUNDS, PLACES, PLANTS, SKIES, WALLS, Scene, SceneItem
from .sequences import IGNORE_INDEX, Batch, Sequences, build_vocabulary, final_features, image_token, run_layers
from .timed_run import TimedRun, is_main_process, rank, run_in_processes

NUM_CODES = 1024
HELD_OUT = 512
GRID = 16
# Layers whose outputs the auxiliary heads read, counted from 1. The layout and around heads read the same layer.
WORD_LAYER = 3
PLAN_LAYER = 5
LAYOUT_LAYER = 7
# Classes of the word, plan and layout heads. Class 0 is "no object". The next classes are plants and objects whose
# caption names no colour, followed by each object in each colour.
CONTENTS = [
    None,
    *((kind, None) for kind in (*PLANTS, *COLOURED_OBJECTS)),
    *((kind, colour) for kind in COLOURED_OBJECTS for colour in COLOURS),
]
CONTENT_IDS = {content: i for i, content in enumerate(CONTENTS) if content is not None}
# Classes of the three parts of the background: upper region, lower region and backdrop.
BACKGROUNDS = ((*SKIES, *WALLS), (*GROUNDS, "table"), BACKDROPS)
# Loss weight of each part of the background. The layout is harder to learn and therefore has weight 1.
BACKGROUND_WEIGHT = 0.3
# Rotary frequency i is theta ** (-i / 32), and its period is 2 * pi / frequency tokens. With this theta, frequency
# i = 4 has a period of 16 tokens, which is one row of the image grid. Tokens of the same column therefore have the same
# angle in every row. The usual theta of 10,000 has no period near 16; with it, a small model drew objects in the wrong
# place.
ROPE_THETA = (GRID / (2 * math.pi)) ** (32 / 4)


def make_decoder(vocabulary: dict[str, int]) -> Decoder:
    """Return the target's decoder with random initial weights."""
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
    """Load the training data.

    Args:
        data: Folder of stage 1.
        tokens: Folder of stage 3.
    """
    lines = (data / "scenes.jsonl").read_text(encoding="utf-8").splitlines()
    return Sequences(
        np.load(tokens / "codes.npy"), [read_scene(line) for line in lines], vocabulary(tokens), CONTENT_IDS
    )


def read_scene(line: str) -> Scene:
    """Parse a line of ``scenes.jsonl``."""
    values = json.loads(line)
    return Scene(**values | {"items": tuple(SceneItem(**item) for item in values["items"])})


def vocabulary(tokens: Path) -> dict[str, int]:
    """Return the target's vocabulary. Its caption tokens come from the tokenizer in the folder `tokens`."""
    return build_vocabulary(Tokenizer.from_file(str(tokens / "tokenizer.json")).get_vocab(), NUM_CODES)


def load_weights(decoder: Decoder, names: dict[str, int], folder: Path) -> None:
    """Copy a checkpoint's weights into a decoder. An embedding is copied if both vocabularies have the token.

    Args:
        names: Vocabulary of the decoder, token ids by name.
    """
    weights = load_target(folder, dtype=torch.float32).decoder.state_dict()
    del weights["image_ids"]
    rows = weights.pop("embedding")
    old_names = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocabulary_map"]
    decoder.load_state_dict(weights, strict=False)
    for name, row in names.items():
        old_row = old_names.get(name, old_names.get("\u0120" + name))  # byte-level: "Ġ" is a space
        if old_row is not None:
            decoder.embedding.data[row] = rows[old_row]


class TrainingModel(nn.Module):
    """Target with the four auxiliary heads. The weights of the heads are initialised to zero."""

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.decoder = decoder
        width = decoder.config.hidden_size
        self.layout = nn.Linear(width, len(CONTENTS))
        self.word = nn.Linear(width, len(CONTENTS))
        self.plan = nn.Linear(width, len(PLACES) * len(CONTENTS))
        self.around = nn.Linear(width, sum(map(len, BACKGROUNDS)))
        for head in (self.layout, self.word, self.plan, self.around):
            nn.init.zeros_(head.weight)

    def caption_logits(self, streams: list[Tensor], batch: Batch) -> list[Tensor]:
        """Return the logits of the heads that read the caption.

        Args:
            streams: Residual stream [B, n, h] after each layer.

        Returns:
            Logits of the word head [B, n, contents] and of the plan head [B, places, contents].
        """
        plan = self.plan(batch.at_prompt_end(streams[PLAN_LAYER - 1]))
        return [self.word(streams[WORD_LAYER - 1]), plan.unflatten(-1, (len(PLACES), len(CONTENTS)))]

    def forward(self, batch: Batch) -> list[Tensor]:
        """Return the logits of all heads.

        Returns:
            Seven tensors: logits of the image tokens [B, T, codes], of the word head [B, n - 1, contents], of the plan
            head [B, places, contents], of the layout head [B, T, contents], and of the three parts of the background
            [B, T, classes].
        """
        streams = run_layers(self.decoder, batch.ids[:, :-1])
        logits = self.decoder.logits(batch.at_image(final_features(self.decoder, streams[-1])))
        features = batch.at_image(streams[LAYOUT_LAYER - 1])
        background = self.around(features).split([len(classes) for classes in BACKGROUNDS], -1)
        return [logits, *self.caption_logits(streams, batch), self.layout(features), *background]


def trained_decoder(file: Path, names: dict[str, int]) -> Decoder:
    """Return the decoder with the averaged weights of a training run.

    Args:
        file: ``target.safetensors`` of the run.
    """
    model = TrainingModel(make_decoder(names))
    model.load_state_dict(training_state.read(file)["average"])
    return model.decoder


def column_labels(scenes: list[Scene]) -> np.ndarray:
    """Return the object in the column of each image token.

    An object covers the columns within 2.5 cells of the centre of its place.

    Returns:
        [images, GRID * GRID] indices into ``CONTENTS``.
    """
    columns = np.zeros((len(scenes), GRID * GRID), np.int64)
    centres = (np.arange(GRID * GRID) % GRID + 0.5) / GRID
    for row, scene in zip(columns, scenes):
        for item in scene.items:
            row[np.abs(centres - PLACES[item.place]) < 2.5 / GRID] = CONTENT_IDS[item.kind, item.colour]
    return columns


def background_labels(scenes: list[Scene]) -> np.ndarray:
    """Return the background of each scene, [scenes, 3] indices into the three tuples of ``BACKGROUNDS``."""
    backgrounds = [(scene.sky or scene.wall, scene.ground or "table", scene.backdrop) for scene in scenes]
    return np.array([[classes.index(name) for classes, name in zip(BACKGROUNDS, names)] for names in backgrounds])


def training_loss(model: TrainingModel, batch: Batch, columns: Tensor, background: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of the cross entropies of all heads.

    Layout and background are trained only on sequences with a caption. At the first image token, the model has to
    predict layout and background from the caption only. The sky depends on this prediction. The loss at the first image
    token is therefore added a second time, with the same weight as the mean loss over all image tokens.

    Args:
        columns: [B, T] from :func:`column_labels`.
        background: [B, 3] from :func:`background_labels`.

    Returns:
        Loss (a scalar), and the detached logits of the image tokens [B, T, codes] float32.
    """
    with torch.autocast("cpu", torch.bfloat16):
        logits, words, plan, *image_heads = (output.float() for output in model(batch))
    labels = [columns, *(part[:, None].expand_as(columns) for part in background.T)]
    weights = (1.0, *(BACKGROUND_WEIGHT,) * len(BACKGROUNDS))
    loss = (
        _cross_entropy(logits, batch.codes)
        + _cross_entropy(words, batch.word_labels[:, :-1])
        + _cross_entropy(plan, batch.plan_labels)
    )
    for weight, output, label in zip(weights, image_heads, labels):
        label = label.masked_fill(~batch.has_caption[:, None], IGNORE_INDEX)
        loss = loss + weight * (_cross_entropy(output, label) + _cross_entropy(output[:, :1], label[:, :1]))
    return loss, logits.detach()


def caption_loss(model: TrainingModel, batch: Batch) -> Tensor:
    """Return the sum of the cross entropies of the word and plan heads, for captions without images."""
    with torch.autocast("cpu", torch.bfloat16):
        words, plan = model.caption_logits(run_layers(model.decoder, batch.ids, PLAN_LAYER), batch)
    return _cross_entropy(words.float(), batch.word_labels) + _cross_entropy(plan.float(), batch.plan_labels)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy of logits [B, n, classes] and labels [B, n], ignoring ``IGNORE_INDEX``."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX)


def sample_codes(logits: Tensor, generator: torch.Generator) -> np.ndarray:
    """Sample a code from each distribution [..., codes], by the Gumbel-max trick."""
    noise = torch.empty_like(logits).exponential_(generator=generator)
    return (logits - noise.log()).argmax(-1).numpy().astype(np.uint16)


@torch.no_grad()
def evaluate(model: TrainingModel, sequences: Sequences, columns: np.ndarray, count: int = 64) -> str:
    """Evaluate the model on the last `count` sequences, which are not used for training.

    The accuracy of the layout is measured on the first row of the image, and the accuracy of the background on the
    first image token. Neither can reach 1, because captions don't name every object and every part of the background.

    Args:
        columns: [images, T] from :func:`column_labels`.

    Returns:
        One line of text: nats per image token with and without caption, share of captions whose plan is completely
        right, and accuracies of layout and background.
    """
    losses = {True: [], False: []}
    plan_correct = []
    layout_correct = []
    background_correct = []
    for start in range(len(sequences.codes) - count, len(sequences.codes), 16):
        indices = np.arange(start, start + 16)
        for conditional in losses:
            batch = sequences.batch(indices, np.random.default_rng(start), conditional)
            logits, _, plan, layout, *background = model(batch)
            losses[conditional].append(_cross_entropy(logits, batch.codes).item())
            if conditional:
                plan_correct.append((plan.argmax(-1) == batch.plan_labels).all(-1))
                labels = torch.from_numpy(columns[indices, :GRID])
                layout_correct.append((layout[:, :GRID].argmax(-1) == labels)[labels > 0])
                first = torch.stack([output[:, 0].argmax(-1) for output in background], 1).numpy()
                background_correct.append(first == background_labels([sequences.scenes[i] for i in indices]))
    return (
        f"held-out nats with caption {np.mean(losses[True]):.4f}, without {np.mean(losses[False]):.4f}; "
        f"plan {torch.cat(plan_correct).float().mean().item():.3f}, "
        f"layout {torch.cat(layout_correct).float().mean().item():.3f}, "
        f"background {np.concatenate(background_correct).mean(0).round(3)}"
    )


class _Trainer:
    """Model, training data, and loss of a training step."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.sequences = open_sequences(args.data, args.tokens)
        self.columns = column_labels(self.sequences.scenes)
        self.background = background_labels(self.sequences.scenes)
        self.order = np.random.default_rng(11).permutation(len(self.sequences.codes) - HELD_OUT)
        self.model = TrainingModel(make_decoder(self.sequences.vocabulary))
        if args.start and args.start.is_file():
            self.model.load_state_dict(training_state.read(args.start)["average"], strict=False)
        elif args.start:
            load_weights(self.model.decoder, self.sequences.vocabulary, args.start)

    def loss(self, step: int) -> Tensor:
        """Return the loss of the part of the batch that this process computes in a step."""
        indices = self._indices(step)
        batch = self.sequences.batch(indices, np.random.default_rng([12, step, indices[0]]))
        loss, logits = training_loss(self.model, batch, *self._labels(indices, GRID * GRID))
        self.sequences.sampled[indices] = sample_codes(logits, torch.Generator().manual_seed(step))
        rng = np.random.default_rng([14, step, rank()])
        lessons = rng.choice(len(self.order), self.args.lessons // self.args.processes, replace=False)
        prefixes = self.sequences.prefix_batch(lessons, rng, GRID)
        prefix_loss, _ = training_loss(self.model, prefixes, *self._labels(lessons, GRID))
        captions = self.sequences.caption_batch(self.args.captions // self.args.processes, rng)
        return loss + prefix_loss + caption_loss(self.model, captions)

    def _indices(self, step: int) -> np.ndarray:
        """Return the indices of the images that this process uses in a step."""
        start = step * self.args.batch % (len(self.order) - self.args.batch)
        return self.order[start : start + self.args.batch][rank() :: self.args.processes]

    def _labels(self, indices: np.ndarray, tokens: int) -> tuple[Tensor, Tensor]:
        """Return the layout labels [B, tokens] and background labels [B, 3] of the images `indices`."""
        return torch.from_numpy(self.columns[indices, :tokens]), torch.from_numpy(self.background[indices])


def train(args: argparse.Namespace) -> None:
    """Train the target in this process. If there is a process group, compute only this process's part of each batch."""
    trainer = _Trainer(args)
    not_muon = ("head", "layout", "word", "plan", "around")
    optimisers = muon_and_adam(trainer.model, args.lr, args.lr / 5, not_muon=not_muon)
    run = TimedRun(args.out / "target.safetensors", trainer.model, optimisers, args.minutes, decay=0.995)
    while run.fraction < 1:
        run.advance(trainer.loss(run.step))
        if run.checkpoint_due():
            run.save()
            if is_main_process():
                averaged = TrainingModel(make_decoder(trainer.sequences.vocabulary))
                averaged.load_state_dict(run.average)
                results = evaluate(averaged, trainer.sequences, trainer.columns)
                print(f"{run.step * args.batch} sequences, {results}", flush=True)


def main() -> None:
    """Train the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of stage 1")
    parser.add_argument("--tokens", type=Path, required=True, help="folder of stage 3")
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    parser.add_argument(
        "--start", type=Path, help="initial weights: folder of a checkpoint, or target.safetensors of another run"
    )
    parser.add_argument("--minutes", type=float, default=45, help="time budget")
    parser.add_argument("--batch", type=int, default=16, help="images per step")
    parser.add_argument(
        "--lessons", type=int, default=48, help="additional captions per step, with the first row of their images"
    )
    parser.add_argument("--captions", type=int, default=128, help="additional captions per step, without images")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of Muon; AdamW uses a fifth of it")
    parser.add_argument("--processes", type=int, default=2, help="number of single-threaded processes")
    args = parser.parse_args()
    run_in_processes(args.processes, train, args)


if __name__ == "__main__":
    main()
