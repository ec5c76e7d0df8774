"""Image quality in a benchmark: scores of single images, and of all images of a method together.

A metric of single images maps an image and its prompt to a pair (sum, count) per column. The table shows the total sum
divided by the total count, so that shares, such as the share of requested attributes that an image has, are averaged
correctly. Weights are read from local paths; nothing is downloaded.
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
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import Dataset

from ..app.images import IMAGE_ERRORS, open_image, to_rgb
from ..errors import AdtError, pip_install, shown, wrap_library_errors
from ..files import is_regular, opened

OptionalPath = Path | None
Scores = dict[str, tuple[float, float]]
ImageMetric = Callable[[Image.Image, str], Scores]
SetMetric = Callable[[dict[str, list[Path]]], dict[str, dict[str, float]]]
"""Maps the image files of every method to the scores of every method by column."""

NEEDS = {
    "CLIP score": "`clip`",
    "HPSv2": "`hps`",
    "aesthetic": "`clip` and `aesthetic`",
    "IS": "torch-fidelity and `inception`",
    "FID": "torch-fidelity, `inception` and `real_images`",
}
"""Requirements by column."""
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


class QualityMetrics(NamedTuple):
    """Loaded metrics.

    Attributes:
        images: Metrics of single images by the name in the settings.
        sets: Metric of all images of a method, if any.
        note: Line below the table about missing metrics.
    """

    images: dict[str, ImageMetric]
    sets: SetMetric | None
    note: str


def choose(
    clip: OptionalPath,
    hps: OptionalPath,
    aesthetic: OptionalPath,
    inception: OptionalPath,
    real_images: OptionalPath,
    count: int,
    device: torch.device,
) -> QualityMetrics:
    """Load the metrics whose weights are given.

    Args:
        clip: Folder of a CLIP model.
        hps: Folder of HPSv2.
        aesthetic: Weights of LAION's aesthetic predictor.
        inception: Weights of Inception.
        real_images: Folder of reference images for FID.
        count: Images per method.
        device: Device of the models.

    Raises:
        AdtError: If weights cannot be loaded, or other weights are needed as well.
    """
    if aesthetic and not clip:
        raise AdtError("`aesthetic` needs the embeddings of CLIP ViT-L/14; give that model's folder with `clip`.")
    if real_images and not inception:
        raise AdtError(
            "`real_images`: FID needs features of Inception; give torch-fidelity's Inception weights with `inception`."
        )
    sets = inception_metric(inception, real_images, count, device) if inception else None
    images: dict[str, ImageMetric] = {}
    if clip:
        name = f"CLIP score {clip}" + (f", aesthetic {aesthetic}" if aesthetic else "")
        images[name] = clip_metric(clip, "clip", "CLIP score", device, aesthetic)
    if hps:
        images[f"HPSv2 {hps}"] = clip_metric(hps, "hps", "HPSv2", device)
    given = zip(NEEDS.items(), (clip, hps, aesthetic, inception, real_images))
    missing = [f"{column} (needs {needs})" for (column, needs), path in given if not path]
    return QualityMetrics(images, sets, f"Not measured: {', '.join(missing)}." if missing else "")


def clip_metric(
    folder: Path, option: str, column: str, device: torch.device, aesthetic: OptionalPath = None
) -> ImageMetric:
    """Load a CLIP model and return the metric 100 * max(cos, 0) between an image and its prompt.

    This is CLIPScore (arXiv 2104.08718) with another scale, and HPSv2 (arXiv 2306.09341) with its weights. Prompts are
    truncated to the model's context.

    Args:
        folder: CLIP model in transformers' layout.
        option: Option to name in errors.
        column: Name of the column.
        device: Device of the model.
        aesthetic: Weights of LAION's predictor, for an additional column "aesthetic".

    Raises:
        AdtError: If the model cannot be loaded.
    """
    model, processor = _load_clip(folder, option, device)
    longest = model.config.text_config.max_position_embeddings
    layers = _aesthetic_layers(aesthetic, model.config.projection_dim) if aesthetic else []

    @torch.inference_mode()
    def metric(image: Image.Image, prompt: str) -> Scores:
        given = {"text": [prompt], "images": [image], "truncation": True, "max_length": longest}
        with wrap_library_errors(lambda reason: f"`{option}`: '{folder}' can't read {shown(prompt)} ({reason})."):
            inputs = processor(**given, return_tensors="pt")
        out = model(**inputs.to(device))  # embeddings [1, width] of length 1
        scores: Scores = {column: (100 * max((out.image_embeds * out.text_embeds).sum().item(), 0.0), 1)}
        if layers:
            x = out.image_embeds.cpu()
            for weight, bias in layers:
                x = torch.nn.functional.linear(x, weight, bias)
            scores["aesthetic"] = (x.item(), 1)
        return scores

    return metric


def _load_clip(folder: Path, option: str, device: torch.device) -> tuple[Any, Any]:
    """Return a CLIP model and its processor. Raise AdtError if they cannot be loaded."""
    from transformers import CLIPModel, CLIPProcessor

    if not (folder / "config.json").is_file():
        raise AdtError(
            f"`{option}`: '{folder}' has no config.json; give the folder of a CLIP model in transformers' layout."
        )
    if odd := [path for path in folder.rglob("*") if not path.is_file() and not path.is_dir()]:
        raise AdtError(f"`{option}`: '{odd[0]}' is not a regular file; download the model again.")
    expected = "a complete CLIP model in transformers' layout"
    with wrap_library_errors(lambda reason: f"`{option}`: '{folder}' is not {expected} ({reason}); download it again."):
        model = CLIPModel.from_pretrained(folder, local_files_only=True).float().eval().to(device)
        processor = CLIPProcessor.from_pretrained(folder, local_files_only=True)
    return model, processor


def _aesthetic_layers(path: Path, width: int) -> list[tuple[Tensor, Tensor]]:
    """Return weights and biases of LAION's predictor, which maps a normalised embedding [1, width] to a score.

    It is a linear layer, and in the improved version a sequence of linear layers without activations.
    """
    tensors = _read(path, "aesthetic")
    names = [name.removesuffix("weight") for name in tensors if name.endswith("weight")]
    names.sort(key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
    layers = [(tensors[f"{name}weight"].float(), tensors[f"{name}bias"].float()) for name in names]
    if not layers or layers[0][0].shape[1] != width or layers[-1][0].shape[0] != 1:
        raise AdtError(
            f"`aesthetic`: '{path}' does not map an embedding of {width} numbers to one score; "
            "give the predictor for the model in `clip`."
        )
    return layers


def _read(path: Path, option: str) -> dict[str, Tensor]:
    """Return the tensors in a file. Raise AdtError if it contains anything else."""
    try:
        opened(path).close()  # the loaders below would block on a pipe
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises various types; weights_only prevents code execution
        raise AdtError(
            f"`{option}`: '{path}' can't be read as a file of tensors ({str(error).splitlines()[0]}); "
            "download it again."
        ) from error


class _ImageFiles(Dataset):
    """Center squares of image files, resized to uint8 [3, size, size]."""

    def __init__(self, files: Sequence[Path], size: int):
        self.files = files
        self.size = size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        try:
            with open_image(self.files[index]) as image:
                square = ImageOps.fit(to_rgb(image), (self.size, self.size))
        except IMAGE_ERRORS as error:
            raise AdtError(f"'{self.files[index]}' can't be read as an image; remove it or save it again.") from error
        return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def _real_images(folder: Path, count: int) -> list[Path]:
    """Return the image files in a folder. Raise AdtError if these, or `count` generated images, are too few for FID."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and is_regular(path))
    if min(len(files), count) < 2:
        raise AdtError(
            f"`real_images`: FID needs at least two images in each set, but '{folder}' has {len(files)} "
            f"and every method makes {count}; add images or prompts."
        )
    return files


def inception_metric(weights: Path, real_images: Path | None, count: int, device: torch.device) -> SetMetric:
    """Return the metric of Inception Score, in one split, and of FID, both computed by torch-fidelity.

    Args:
        weights: Weights of Inception.
        real_images: Folder of reference images, cropped and resized to the size of the generated ones. None omits FID.
        count: Images per method.
        device: Device of the model.

    Raises:
        AdtError: If torch-fidelity is not installed, or weights or images cannot be used.
    """
    try:
        from torch_fidelity import calculate_metrics
    except ImportError as error:
        raise AdtError(
            f"`inception` needs torch-fidelity, which is not installed; run {pip_install('torch-fidelity')}"
        ) from error
    _read(weights, "inception")  # torch-fidelity would execute code in a pickle
    real = _real_images(real_images, count) if real_images else []
    shared = {"cuda": device.type == "cuda", "feature_extractor_weights_path": str(weights), "save_cpu_ram": True}
    shared |= {"isc": True, "isc_splits": 1, "verbose": False}

    def metric(images: dict[str, list[Path]]) -> dict[str, dict[str, float]]:
        with open_image(next(iter(images.values()))[0]) as first:
            size = min(first.size)
        fid = {"fid": True, "input2": _ImageFiles(real, size), "input2_cache_name": "real"} if real else {}
        scores: dict[tuple[Path, ...], dict[str, float]] = {}  # methods with the same images have the same scores
        with TemporaryDirectory() as cache:
            for files in set(map(tuple, images.values())):
                figures = calculate_metrics(input1=_ImageFiles(files, size), cache_root=cache, **shared, **fid)
                scores[files] = {"IS": float(figures["inception_score_mean"])}
                if real:
                    scores[files]["FID"] = float(figures["frechet_inception_distance"])
        return {name: scores[tuple(files)] for name, files in images.items()}

    return metric
