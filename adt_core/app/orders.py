"""What the commands are asked for beside the recipe: what to draw, how much of it, where it goes, and on what.

The command line makes its options of these, by their names. Nothing here needs torch, so its help is quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..rules.settings import (
    BUNDLED,
    LARGEST_SEED,
    MOST_AT_ONCE,
    Settings,
    choice,
    number,
    path,
    paths,
    setting,
    share,
    text,
    whole,
)
from .prompts import CAPTIONS


@dataclass(frozen=True)
class Subject(Settings):
    """What to draw; one of these."""

    prompt: str | None = text(None, "What the picture shows.")
    prompts: Path | None = path("Prompts: text, a table (.csv, .tsv), MS-COCO captions (.json) or .jsonl.")
    from_png: Path | None = path("Make the image in this PNG again; other options change its settings.")


@dataclass(frozen=True)
class Numbers(Settings):
    """How many pictures."""

    batch_size: int = whole(1, "Pictures per prompt.", 1, MOST_AT_ONCE, stands="N")
    at_once: int | None = whole(
        None,
        "Pictures drawn at the same time; more of them are faster (default: one prompt's).",
        1,
        MOST_AT_ONCE,
        stands="N",
    )

    @property
    def together(self) -> int:
        """Pictures drawn at the same time."""
        return self.at_once or self.batch_size


@dataclass(frozen=True)
class Continuation(Settings):
    """The picture that images begin with, or that they are made of."""

    source: tuple[Path, ...] = paths(
        "A picture to make another of, as the prompt says, with GLM-Image; repeat the option for several, in order."
    )
    continue_from: Path | None = path("A picture to continue; cropped and resized to the model's size.")
    keep: float | None = share(None, "Share of its rows that is kept, from the top (default: 0.5).", stands="SHARE")
    keep_left: float | None = share(None, "Share of the row below them, from the left (default: 0).", stands="SHARE")


@dataclass(frozen=True)
class Files(Settings):
    """What is written."""

    output: Path = path("The picture; several become FILE-0001.png, ...", "FILE.png")
    tokens: Path | None = path("Write the codebook indices of each picture, row by row.", "FILE.json")
    trace: Path | None = path("Write what happened in each round.", "FILE.json")
    report: Path | None = path("Write the run's figures.", "FILE.json")
    compare: bool = setting(False, "Decode plainly too, with the same seed, and print the speed-up.")


@dataclass(frozen=True)
class Device(Settings):
    """Where models run."""

    device: str = choice("auto", "Auto takes CUDA where there is any.", ("auto", "cpu", "cuda"))


@dataclass(frozen=True)
class Engines(Settings):
    """Several engines, for the prompts of a file."""

    workers: int = whole(1, "Engines, each with a GPU of its own, or a share of the CPU cores.", 1, None, stands="N")
    ray_address: str | None = text(
        None, "HOST:PORT of a running Ray cluster, or auto for this machine's (default: none).", "ADDRESS"
    )

    @property
    def wanted(self) -> bool:
        """Is Ray asked for? One engine on this machine does without."""
        return self.workers > 1 or self.ray_address is not None


@dataclass(frozen=True)
class Order:
    """What ``generate`` is asked for. given: values of the recipe's options, by their names."""

    files: Files
    subject: Subject
    given: Mapping[str, Any] = field(default_factory=dict)
    numbers: Numbers = Numbers()
    continuation: Continuation = Continuation()
    device: str = "auto"
    engines: Engines = Engines()


# ---- the laboratory's ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison(Settings):
    """What ``benchmark`` compares."""

    prompts: str = text(BUNDLED, "As for generate; bundled are the captions that come with the pack.", "FILE")
    count: int | None = whole(None, "Prompts to take from it (default: all).", 1, None, stands="N")
    sample_seed: int = whole(0, "Which prompts `count` takes.", 0, LARGEST_SEED, stands="N")
    caption: str = choice(CAPTIONS[0], "Which of the captions of an MS-COCO image.", CAPTIONS)
    methods: str | None = text(
        None, "Methods, +lantern behind a name for relaxed acceptance (default: some of each kind).", "A,B,..."
    )
    output: Path = path("For results; an interrupted benchmark goes on where it stopped.", "DIR")


@dataclass(frozen=True)
class Scores(Settings):
    """Weights of models that judge pictures."""

    clip: Path | None = path("CLIP score: a CLIP model in transformers' layout.", "DIR")
    hps: Path | None = path("HPSv2: its weights in the same layout.", "DIR")
    aesthetic: Path | None = path("Aesthetic score: LAION's predictor for the CLIP ViT-L/14 in `clip`.")
    inception: Path | None = path("Inception Score: torch-fidelity's weights of Inception.")
    real_images: Path | None = path("FID: the folder of pictures that `inception` compares with.", "DIR")


@dataclass(frozen=True)
class Lessons(Settings):
    """What ``train-drafter`` learns from."""

    prompts: Path | None = path("As for generate; the target draws them as the options of sampling say.")
    images: Path | None = path("Pictures and captions instead, 1.jpg beside 1.txt, ...", "DIR")
    pictures: int | None = whole(
        None, "To train on; prompts are used again if there are fewer (default: one for each).", 1, None, stands="N"
    )
    held_out: int = whole(32, "Pictures, of prompts of their own, that acceptance is measured on.", 1, None, stands="N")
    draw_batch: int = whole(32, "Pictures drawn at once.", 1, None, stands="N")


@dataclass(frozen=True)
class Training(Settings):
    """How it trains."""

    start: str | None = text(
        None, "Begin with this drafter's weights, as with that of the model a target was tuned from.", "PATH"
    )
    steps: int | None = whole(None, "Steps of the whole run, over which the learning rate falls.", 1, None, stands="N")
    minutes: float | None = number(
        None, "Without the drawing; with `steps`, the first to end counts (default: 60 without).", 1e-3, stands="M"
    )
    batch: int = whole(4, "Pictures per forward.", 1, None, stands="N")
    accumulate: int = whole(1, "Forwards per step.", 1, None, stands="N")
    passes: int = whole(
        3, "Depths to train for: one over the target's features, the others over its own.", 1, None, stands="N"
    )
    learning_rate: float = number(0.02, "Of the matrices, by Muon; vectors get a fifth, by AdamW.", 1e-9)
    autocast: str = choice(
        "auto",
        "Precision of the products; auto takes a half on CUDA.",
        ("auto", "float32", "bfloat16", "float16"),
    )
    features_gb: float = number(
        8.0, "Disk space for the target's features, which make a step cheaper; 0 keeps none.", 0.0
    )


@dataclass(frozen=True)
class DrafterFiles(Settings):
    """What training writes."""

    output: Path = path("Folder of the drafter; what `drafter` takes.", "DIR")
    every: int = whole(100, "Steps between measuring and saving.", 1, None, stands="N")
    compare: str | None = text(None, "Measure this drafter too, on the same held-out pictures.", "PATH")


@dataclass(frozen=True)
class Drawn(Settings):
    """What ``check-drafter`` draws."""

    prompts: Path | None = path("As for generate (default: the captions that come with the pack).")
    count: int = whole(8, "Pictures.", 1, None, stands="N")


@dataclass(frozen=True)
class Wanted(Settings):
    """What ``download`` fetches."""

    name: str | None = text(None, "Published model, such as Janus-Pro-1B; see --list.", "NAME")
    to: Path | None = path("Folder of the models (default: ComfyUI's models/ar_image).", "FOLDER")
    list: bool = setting(False, "List the published models with size, memory and licence.")


@dataclass(frozen=True)
class Inspected(Settings):
    """What ``inspect`` looks at."""

    path: str = text(BUNDLED, "Folder or file of a target or a drafter, or 'bundled'.", "PATH")
    json: bool = setting(False, "Print JSON.")
