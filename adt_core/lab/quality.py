"""Image quality in a benchmark. Some metrics score single images; others score all images of a method together.

A metric of single images returns a pair (sum, count) for each of its columns in the benchmark's table. The table shows
the total sum of all images divided by the total count. So shares are averaged correctly. Example: an image has 1 of 2
requested attributes, and another has 4 of 4. Their scores (1, 2) and (4, 4) give 5 / 6.

Weights are read from local paths; nothing is downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import AdtError, naming_missing_libraries, pip_install, shown, wrap_library_errors
from ..files import list_images, opened
from ..models.reading.checkpoint import read_tensors
from ..run.images import IMAGE_ERRORS, open_image, to_rgb
from .open_clip import clip_model

OptionalPath = Path | None
Scores = dict[str, tuple[float, float]]
"""Pair (sum, count) of an image, by column."""
ImageMetric = Callable[[Image.Image, str], Scores]
"""Function from an image and its prompt to scores."""
SetMetric = Callable[[dict[str, list[Path]]], dict[str, dict[str, float]]]
"""Function that scores all images of a method together.

Its argument maps each method to image files. Its result maps each method to scores by column.
"""

NEEDS = {
    "CLIP score": "`clip`",
    "HPSv2": "`hps`",
    "aesthetic": "`clip` and `aesthetic`",
    "IS": "torch-fidelity and `inception`",
    "FID": "torch-fidelity, `inception` and `real_images`",
}
"""What the user must install or set for a column, by column."""


class QualityMetrics(NamedTuple):
    """Loaded metrics.

    Attributes:
        images: Metrics of single images. The keys are saved in the settings of the benchmark.
        sets: Metric that scores all images of a method together; None if its weights are not given.
        note: Text below the table that lists the metrics that were not measured.
    """

    images: dict[str, ImageMetric]
    sets: SetMetric | None
    note: str


def choose_metrics(
    clip: OptionalPath,
    hps: OptionalPath,
    aesthetic: OptionalPath,
    inception: OptionalPath,
    real_images: OptionalPath,
    count: int,
    device: torch.device,
    splits: int = 1,
    stretch: bool = False,
) -> QualityMetrics:
    """Load the metrics whose weights are given.

    Args:
        hps: HPSv2: the published file, or a folder in transformers' layout.
        count: Number of images per method.

    Raises:
        AdtError: If weights cannot be loaded, a metric also needs weights that are not given, or there are more parts
            than images.
    """
    if splits > count:
        raise AdtError("splits.too_many", splits=splits, count=count)
    if aesthetic and not clip:
        raise AdtError("aesthetic.no_clip")
    if real_images and not inception:
        raise AdtError("fid.no_inception")
    sets = inception_metric(inception, real_images, count, device, splits, stretch) if inception else None
    images: dict[str, ImageMetric] = {}
    if clip:
        name = f"CLIP score {clip}" + (f", aesthetic {aesthetic}" if aesthetic else "")
        images[name] = clip_metric(clip, "clip", "CLIP score", device, aesthetic)
    if hps:
        images[f"HPSv2 {hps}"] = clip_metric(hps, "hps", "HPSv2", device, tokenizer=clip)
    given = zip(NEEDS.items(), (clip, hps, aesthetic, inception, real_images))
    missing = [f"{column} (needs {needs})" for (column, needs), path in given if not path]
    notes = [f"Not measured: {', '.join(missing)}."] if missing else []
    if sets:
        shape = "stretched to squares" if stretch else "cropped to squares"
        notes.append(f"The Inception Score is the mean over {splits} parts; images for Inception are {shape}.")
    return QualityMetrics(images, sets, " ".join(notes))


def clip_metric(
    path: Path,
    option: str,
    column: str,
    device: torch.device,
    aesthetic: OptionalPath = None,
    tokenizer: OptionalPath = None,
) -> ImageMetric:
    """Load a CLIP model and return a metric of the similarity between an image and its prompt.

    The score is 100 * max(cos, 0), where cos is the cosine of the image embedding and the text embedding. With the
    weights of CLIP, the score is CLIPScore (arXiv 2104.08718) with the factor 100 instead of 2.5. With the weights of
    HPSv2, it is the score of HPSv2 (arXiv 2306.09341). Prompts are truncated to the model's maximum length.

    Args:
        path: Folder in transformers' layout, or file in open_clip's layout.
        option: Option that names the path. With "hps", images are padded to squares as in HPSv2's code, not cropped.
        aesthetic: File with the weights of LAION's aesthetic predictor; None for no column "aesthetic".
        tokenizer: Folder with CLIP's tokenizer for a file, if the file's folder has none.

    Raises:
        AdtError: If the model cannot be loaded.
    """
    with naming_missing_libraries():
        model, processor = _load_open_clip(path, option, tokenizer) if path.is_file() else _load_clip(path, option)
    model = model.float().eval().to(device)
    longest = model.config.text_config.max_position_embeddings
    size = (model.config.vision_config.image_size,) * 2
    layers = _aesthetic_layers(aesthetic, model.config.projection_dim) if aesthetic else []

    @torch.inference_mode()
    def metric(image: Image.Image, prompt: str) -> Scores:
        image = ImageOps.pad(to_rgb(image), size, Image.Resampling.BICUBIC) if option == "hps" else image
        given = {"text": [prompt], "images": [image], "truncation": True, "max_length": longest}
        with wrap_library_errors("clip.unreadable_prompt", input=option, path=path, prompt=shown(prompt)):
            inputs = processor(**given, return_tensors="pt")
        out = model(**inputs.to(device))  # image_embeds and text_embeds: [1, width], normalised to length 1
        scores: Scores = {column: (100 * max((out.image_embeds * out.text_embeds).sum().item(), 0.0), 1)}
        if layers:
            x = out.image_embeds.cpu()
            for weight, bias in layers:
                x = torch.nn.functional.linear(x, weight, bias)
            scores["aesthetic"] = (x.item(), 1)
        return scores

    return metric


def _load_clip(folder: Path, option: str) -> tuple[Any, Any]:
    """Return a CLIP model in transformers' layout and its processor. Raise AdtError if they cannot be loaded."""
    from transformers import CLIPModel, CLIPProcessor

    if not (folder / "config.json").is_file():
        raise AdtError("clip.no_config", input=option, path=folder)
    if odd := [path for path in folder.rglob("*") if not path.is_file() and not path.is_dir()]:
        raise AdtError("clip.not_a_file", input=option, path=odd[0])
    with wrap_library_errors("scores.wrong_clip", input=option, path=folder):
        return (
            CLIPModel.from_pretrained(folder, local_files_only=True),
            CLIPProcessor.from_pretrained(folder, local_files_only=True),
        )


def _load_open_clip(file: Path, option: str, tokenizer: OptionalPath) -> tuple[Any, Any]:
    """Return a CLIP model in open_clip's layout and its processor. Raise AdtError if they cannot be loaded."""
    from transformers import CLIPImageProcessor, CLIPProcessor, CLIPTokenizer

    folders = [folder for folder in (file.parent, tokenizer) if folder and (folder / "vocab.json").is_file()]
    if not folders:
        raise AdtError("clip.no_tokenizer", input=option, path=file)
    tensors = _read(file, option)
    with wrap_library_errors("scores.wrong_open_clip", input=option, path=file):
        model = clip_model(tensors)
        size = model.config.vision_config.image_size
        images = CLIPImageProcessor(size={"shortest_edge": size}, crop_size={"height": size, "width": size})
        return model, CLIPProcessor(images, CLIPTokenizer.from_pretrained(folders[0], local_files_only=True))


def _aesthetic_layers(path: Path, width: int) -> list[tuple[Tensor, Tensor]]:
    """Return the weights and biases of LAION's aesthetic predictor.

    The predictor maps a normalised image embedding [1, width] to a score [1, 1]. It consists of one linear layer, or in
    its improved version of several linear layers without activations.
    """
    tensors = _read(path, "aesthetic")
    names = [name.removesuffix("weight") for name in tensors if name.endswith("weight")]
    names.sort(key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
    layers = [(tensors[f"{name}weight"].float(), tensors[f"{name}bias"].float()) for name in names]
    if not layers or layers[0][0].shape[1] != width or layers[-1][0].shape[0] != 1:
        raise AdtError("aesthetic.wrong_size", path=path, width=width)
    return layers


def _read(path: Path, option: str) -> dict[str, Tensor]:
    """Return the tensors in a file. Raise AdtError if the file contains anything other than tensors."""
    try:
        opened(path).close()  # the reader would block on a pipe
        return {name: stored.read() for name, stored in read_tensors(path).items()}
    except (AdtError, OSError) as error:
        raise AdtError("scores.no_tensors", input=option, path=path, reason=error) from error


class _ImageFiles(Dataset):
    """Dataset of image files. An image is cropped to its central square, or stretched, to uint8 [3, size, size]."""

    def __init__(self, files: Sequence[Path], size: int, stretch: bool):
        self.files = files
        self.size = size
        self.stretch = stretch

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        try:
            with open_image(self.files[index]) as image:
                rgb = to_rgb(image)
                size = self.size, self.size
                square = rgb.resize(size, Image.Resampling.BICUBIC) if self.stretch else ImageOps.fit(rgb, size)
        except IMAGE_ERRORS as error:
            raise AdtError("real_images.unreadable", path=self.files[index]) from error
        return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def _real_images(folder: Path, count: int) -> list[Path]:
    """Return the image files in a folder. FID needs two images in it, and two generated ones."""
    files = list_images(folder, "**/*")
    if min(len(files), count) < 2:
        raise AdtError("fid.too_few", folder=folder, real=len(files), count=count)
    return files


def inception_metric(
    weights: Path,
    real_images: Path | None,
    count: int,
    device: torch.device,
    splits: int = 1,
    stretch: bool = False,
) -> SetMetric:
    """Return the metric that computes the Inception Score and FID of all images of a method, with torch-fidelity.

    Args:
        real_images: Folder of reference images; None for no FID. They are resized to the generated images' size.
        splits: Number of parts over which the Inception Score is averaged.
        stretch: Whether to stretch images to squares instead of cropping them.

    Raises:
        AdtError: If torch-fidelity is not installed, or the weights or images cannot be used.
    """
    try:
        from torch_fidelity import calculate_metrics
    except ImportError as error:
        raise AdtError("fid.no_library", command=pip_install("torch-fidelity")) from error
    _read(weights, "inception")  # this check is needed because torch-fidelity executes code in pickles
    real = _real_images(real_images, count) if real_images else []
    shared = {"cuda": device.type == "cuda", "feature_extractor_weights_path": str(weights), "save_cpu_ram": True}
    shared |= {"isc": True, "isc_splits": splits, "verbose": False}

    def metric(images: dict[str, list[Path]]) -> dict[str, dict[str, float]]:
        with open_image(next(iter(images.values()))[0]) as first:
            size = min(first.size)
        fid = {"fid": True, "input2": _ImageFiles(real, size, stretch), "input2_cache_name": "real"} if real else {}
        scores: dict[tuple[Path, ...], dict[str, float]] = {}  # methods with the same images have the same scores
        with TemporaryDirectory() as cache:
            for files in set(map(tuple, images.values())):
                figures = calculate_metrics(input1=_ImageFiles(files, size, stretch), cache_root=cache, **shared, **fid)
                scores[files] = {"IS": float(figures["inception_score_mean"])}
                if real:
                    scores[files]["FID"] = float(figures["frechet_inception_distance"])
        return {name: scores[tuple(files)] for name, files in images.items()}

    return metric
