"""Arguments of the commands, without the settings that determine an image, which form the recipe (`recipe`).

Each field of a class becomes one option of the command line. This module does not import torch, so that `--help` is
fast.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import AdtError, shown
from ..recipe import Placement
from ..run.truncation import INVALID_MODES, SKIP
from ..settings import (
    BUNDLED,
    MAX_BATCH_SIZE,
    MAX_SEED,
    Settings,
    choice,
    fraction,
    integer,
    number,
    path,
    paths,
    setting,
    text,
)
from .prompts import CAPTIONS

PNG = "png"
WEBDATASET = "webdataset"


class _Sharded:
    """Arguments with an option `shard`."""

    shard: str

    @property
    def stride(self) -> tuple[int, int]:
        """The numbers I and N of `shard`.

        Raises:
            AdtError: If `shard` has another form, or I is not from 1 to N.
        """
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", self.shard)
        number, count = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= number <= count:
            raise AdtError("shard.invalid", shard=shown(self.shard))
        return number, count


@dataclass(frozen=True)
class InputArgs(Settings, _Sharded):
    """Prompts of `generate`. The user sets exactly one of the options `prompt`, `prompts` and `from_png`."""

    prompt: str | None = text(None, "Prompt: what the image shows.")
    prompts: Path | None = path("List: text, table (.csv, .tsv, .parquet), MS-COCO captions (.json) or .jsonl.")
    from_png: Path | None = path("Reproduce the image in this PNG; other options override its settings.")
    shard: str = text("1/1", "Generate only every N-th image of a list, from the I-th on.", "I/N")
    invalid_prompts: str = choice(
        SKIP,
        "Prompts of a list that are empty or too long: stop before the first image, leave out, or shorten.",
        INVALID_MODES,
    )


@dataclass(frozen=True)
class BatchArgs(Settings):
    """Number of images of `generate`."""

    num_images_per_prompt: int = integer(1, "Images per prompt.", 1, MAX_BATCH_SIZE, metavar="N")
    batch_size: int | None = integer(
        None,
        "Images generated at the same time; more are faster (default for a list: what fits into the free memory, at "
        "most 8 on a CPU and 32 on a GPU; otherwise the images of the prompt).",
        1,
        MAX_BATCH_SIZE,
        metavar="N",
    )
    same_noise: bool = setting(
        False, "Use the same noise for all prompts of a list, so that equal prompts give equal images."
    )


@dataclass(frozen=True)
class ImageToImageArgs(Settings):
    """Input images of `generate`: an image to continue, or images to edit."""

    source: tuple[Path, ...] = paths(
        "Source image that GLM-Image changes as the prompt says; repeat the option for several, in order."
    )
    continue_from: Path | None = path("Image to continue; cropped and resized to the model's size.")
    keep: float | None = fraction(None, "Share of its rows to keep, from the top (default: 0.5).", metavar="SHARE")
    keep_left: float | None = fraction(
        None, "Share of the next row to keep, from the left (default: 0).", metavar="SHARE"
    )
    mask: Path | None = path("Image that says which part of it to generate again: white; the black part is kept.")


@dataclass(frozen=True)
class OutputArgs(Settings):
    """Output files of `generate`."""

    output: Path = path(
        "Image, or folder for the numbered images of a list; for tar files, also a URL. A list is resumed: images "
        "that are already there are not generated again.",
        "FILE.png",
    )
    overwrite: bool = setting(False, "Generate all images of a list again, and replace the files that are there.")
    format: str = choice(PNG, "Files of a list: single PNGs, or tar files of 1,000 images.", (PNG, WEBDATASET))
    tokens: Path | None = path("Append the codebook indices of each image, row by row.", "FILE.jsonl")
    trace: Path | None = path("Append the drafts and accepted tokens of each image's rounds.", "FILE.jsonl")
    report: Path | None = path(
        "Write the statistics of all images; those of each image are appended to FILE.jsonl.", "FILE.json"
    )
    compare: bool = setting(False, "Also decode without drafts, with the same noise, and print the speed-up.")


@dataclass(frozen=True)
class WorkerArgs(Settings):
    """Worker processes. The prompts of a file are divided among these processes."""

    workers: int = integer(
        1, "Number of worker processes, each with one GPU or a share of the CPU cores.", 1, None, metavar="N"
    )
    ray_address: str | None = text(
        None, "HOST:PORT of a running Ray cluster, or auto for this machine's (default: none).", "ADDRESS"
    )

    @property
    def uses_ray(self) -> bool:
        """True if the run needs Ray. A single worker on this machine runs without Ray."""
        return self.workers > 1 or self.ray_address is not None


@dataclass(frozen=True)
class GenerateArgs:
    """All arguments of `generate`. `given` has the recipe's options that the user has set, by name."""

    files: OutputArgs
    inputs: InputArgs
    given: Mapping[str, Any] = field(default_factory=dict)
    batch: BatchArgs = BatchArgs()
    image_to_image: ImageToImageArgs = ImageToImageArgs()
    placement: Placement = Placement()
    parallel: WorkerArgs = WorkerArgs()


# ---- benchmarks and training ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BenchmarkArgs(Settings, _Sharded):
    """Methods, prompts and results of `benchmark`."""

    prompts: str = text(
        BUNDLED, "File of prompts, as for generate; bundled: the captions included in the pack.", "FILE"
    )
    count: int | None = integer(None, "Number of prompts to use (default: all).", 1, None, metavar="N")
    sample_seed: int = integer(0, "Seed that selects the prompts for `count`.", 0, MAX_SEED, metavar="N")
    caption: str = choice(CAPTIONS[0], "Which caption of an MS-COCO image to use.", CAPTIONS)
    methods: str | None = text(
        None,
        "Methods; add +lantern to a name for relaxed acceptance, and settings after a colon, as in "
        "adt-tree:beta=0.5,init=vertical; @FILE reads them from a file (default: a selection).",
        "A,B,...",
    )
    paper: bool = setting(False, "Measure and write the tables of the ADT-Tree paper.", kind=bool)
    shard: str = text("1/1", "Measure only every N-th prompt, from the I-th on; the shards share a folder.", "I/N")
    output: Path = path("Folder for the results; an interrupted benchmark is resumed.", "DIR")


@dataclass(frozen=True)
class QualityArgs(Settings):
    """Paths of the models that score image quality, and variants of the scores."""

    clip: Path | None = path("CLIP score: a CLIP model in transformers' layout.", "DIR")
    hps: Path | None = path(
        "HPSv2: the published file (with `clip` for its tokenizer), or a folder as for `clip`.", "PATH"
    )
    aesthetic: Path | None = path("Aesthetic score: LAION's predictor for the CLIP ViT-L/14 in `clip`.")
    inception: Path | None = path("Inception Score: torch-fidelity's weights of Inception.")
    real_images: Path | None = path("FID: folder of reference images; needs `inception`.", "DIR")
    splits: int = integer(
        1, "Inception Score: average over N parts of the images; papers use 10 with 5,000 images or more.", metavar="N"
    )
    stretch: bool = setting(False, "FID: stretch reference images to squares instead of cropping them.")

    @classmethod
    def weights(cls) -> list[str]:
        """Return the names of the options that are paths."""
        return [name for name, option in cls.fields().items() if option.kind is Path]


@dataclass(frozen=True)
class TrainingDataArgs(Settings):
    """Training data of `train-drafter`."""

    prompts: Path | None = path(
        "File of prompts, as for generate; the target generates images for them with the sampling options."
    )
    images: Path | None = path(
        "Folder of images with captions, such as 1.jpg and 1.txt, to use instead of prompts.", "DIR"
    )
    training_images: int | None = integer(
        None,
        "Images to train on; prompts are reused if there are fewer (default: one per prompt).",
        1,
        None,
        metavar="N",
    )
    validation_prompts: int = integer(32, "Prompts of other images, to measure acceptance on.", 1, None, metavar="N")
    generation_batch_size: int = integer(32, "Images generated at the same time.", 1, None, metavar="N")


@dataclass(frozen=True)
class TrainingArgs(Settings):
    """Hyperparameters of `train-drafter`."""

    start: str | None = text(
        None, "Start from this drafter's weights, such as the drafter of a fine-tuned target's base model.", "PATH"
    )
    steps: int | None = integer(None, "Total steps, over which the learning rate decays.", 1, None, metavar="N")
    minutes: float | None = number(
        None,
        "Training time, without generating images; `steps` may end it earlier (default: 60 without `steps`).",
        1e-3,
        metavar="M",
    )
    training_batch_size: int = integer(4, "Images per forward pass.", 1, None, metavar="N")
    accumulate: int = integer(1, "Forward passes per step.", 1, None, metavar="N")
    passes: int = integer(
        3,
        "Draft depths to train: the first on the target's features, the others on the drafter's.",
        1,
        None,
        metavar="N",
    )
    learning_rate: float = number(0.02, "Learning rate of matrices (Muon); vectors use a fifth of it (AdamW).", 1e-9)
    autocast: str = choice(
        "auto",
        "Precision of matrix products; auto uses half precision on CUDA.",
        ("auto", "float32", "bfloat16", "float16"),
    )
    cache_gb: float = number(
        8.0, "Disk space in GB to store the target's features, so that steps are faster; 0 stores none.", 0.0
    )


@dataclass(frozen=True)
class TrainingOutputArgs(Settings):
    """Output files of `train-drafter`."""

    output: Path = path("Folder of the drafter, to use as `drafter`.", "DIR")
    every: int = integer(100, "Measure and save after this many steps.", 1, None, metavar="N")
    compare: str | None = text(None, "Also measure this drafter on the same held-out images.", "PATH")
    logging_dir: Path | None = path("Also log losses and acceptance for TensorBoard, in this folder.", "DIR")


@dataclass(frozen=True)
class CheckDrafterArgs(Settings):
    """Test images of `check-drafter`."""

    prompts: Path | None = path("File of prompts, as for generate (default: the captions included in the pack).")
    count: int = integer(8, "Images to generate.", 1, None, metavar="N")


@dataclass(frozen=True)
class DownloadArgs(Settings):
    """Model and folder of `download`."""

    name: str | None = text(None, "Published model, such as Janus-Pro-1B; see --list.", "NAME")
    to: Path | None = path("Folder of the models (default: ComfyUI's models/ar_image).", "FOLDER")
    list: bool = setting(False, "List the published models with size, memory and licence.")


@dataclass(frozen=True)
class DoctorArgs(Settings):
    """Options of `doctor`."""

    kernels: bool = setting(False, "Try Triton kernels again that are off because a program ended while it used them.")


@dataclass(frozen=True)
class MergeArgs(Settings):
    """Files and folders of `merge`."""

    paths: tuple[Path, ...] = paths(
        "Value of `tokens`, `trace` or `report` that the shards of generate were given, or folder of a benchmark.",
        "FILE",
    )


@dataclass(frozen=True)
class InspectArgs(Settings):
    """Checkpoint and output format of `inspect`."""

    path: str = text(BUNDLED, "Folder or file of a target or a drafter, or 'bundled'.", "PATH")
    json: bool = setting(False, "Print JSON.")


def given_paths(settings: Settings, *names: str) -> list[tuple[str, Path]]:
    """Return the paths that the user has given, as pairs of option and path for `images.check_outputs`.

    Args:
        *names: Names of options whose value is a path, several paths, or None.
    """
    values = ((name, getattr(settings, name)) for name in names)
    lists = ((name, value if isinstance(value, tuple) else (value,)) for name, value in values)
    return [(name, Path(path)) for name, paths in lists for path in paths if path]
