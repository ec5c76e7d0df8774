"""How good the pictures of a benchmark are: scores of single pictures, and of all pictures of a method together.

A metric of single pictures is a function of a picture and its prompt that returns, for each column, a pair (sum,
count). The table shows the sums over the counts of all pictures, so that shares such as "attributes found of those
asked for" add up as means do. Weights are read from local paths; nothing is downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import Dataset

from ..app.images import IMAGE_ERRORS, open_image, to_rgb
from ..errors import AdtError, pip_install, shown, wrap_library_errors
from ..files import is_regular, opened

Given = Path | None
Scores = dict[str, tuple[float, float]]
ImageMetric = Callable[[Image.Image, str], Scores]
SetMetric = Callable[[dict[str, list[Path]]], dict[str, dict[str, float]]]
"""By method, the files of its pictures -> by method, its columns."""

NEEDS = {
    "CLIP score": "`clip`",
    "HPSv2": "`hps`",
    "aesthetic": "`clip` and `aesthetic`",
    "IS": "torch-fidelity and `inception`",
    "FID": "torch-fidelity, `inception` and `real_images`",
}
"""Column -> what it needs."""
_PICTURES = (".png", ".jpg", ".jpeg", ".webp")


class QualityMetrics(NamedTuple):
    """What is measured. pictures: metrics by a name that goes into the settings. note: a line under the table."""

    pictures: dict[str, ImageMetric]
    sets: SetMetric | None
    note: str


def choose(
    clip: Given, hps: Given, aesthetic: Given, inception: Given, real_images: Given, count: int, device: torch.device
) -> QualityMetrics:
    """Load the metrics for which the benchmark's options give weights. count: pictures of a method. Raises AdtError."""
    if aesthetic and not clip:
        raise AdtError("`aesthetic` needs the embeddings of CLIP ViT-L/14; give that model's folder with `clip`.")
    if real_images and not inception:
        raise AdtError(
            "`real_images`: FID needs features of Inception; give torch-fidelity's Inception weights with `inception`."
        )
    sets = inception_metric(inception, real_images, count, device) if inception else None
    pictures: dict[str, ImageMetric] = {}
    if clip:
        name = f"CLIP score {clip}" + (f", aesthetic {aesthetic}" if aesthetic else "")
        pictures[name] = clip_metric(clip, "clip", "CLIP score", device, aesthetic)
    if hps:
        pictures[f"HPSv2 {hps}"] = clip_metric(hps, "hps", "HPSv2", device)
    given = zip(NEEDS.items(), (clip, hps, aesthetic, inception, real_images))
    missing = [f"{column} (needs {needs})" for (column, needs), path in given if not path]
    return QualityMetrics(pictures, sets, f"Not measured: {', '.join(missing)}." if missing else "")


def clip_metric(folder: Path, option: str, column: str, device: torch.device, aesthetic: Given = None) -> ImageMetric:
    """100 max(cos, 0) between a picture and its prompt, by a CLIP model in transformers' layout.

    It is CLIPScore (arXiv 2104.08718) before its scaling. HPSv2 (arXiv 2306.09341) is the same with weights of its own.
    Prompts are cut where the model's context ends. aesthetic: weights of LAION's predictor, for a column of that name.
    Raises AdtError, which names ``option``.
    """
    from transformers import CLIPModel, CLIPProcessor

    if not (folder / "config.json").is_file():
        raise AdtError(
            f"`{option}`: '{folder}' has no config.json; give the folder of a CLIP model in transformers' layout."
        )
    if odd := [path for path in folder.rglob("*") if not path.is_file() and not path.is_dir()]:
        raise AdtError(f"`{option}`: '{odd[0]}' is not a regular file; download the model again.")
    whole = "a complete CLIP model in transformers' layout"
    with wrap_library_errors(lambda reason: f"`{option}`: '{folder}' is not {whole} ({reason}); download it again."):
        model = CLIPModel.from_pretrained(folder, local_files_only=True).float().eval().to(device)
        processor = CLIPProcessor.from_pretrained(folder, local_files_only=True)
    longest = model.config.text_config.max_position_embeddings
    layers = _aesthetic_layers(aesthetic, model.config.projection_dim) if aesthetic else []

    @torch.inference_mode()
    def metric(picture: Image.Image, prompt: str) -> Scores:
        given = {"text": [prompt], "images": [picture], "truncation": True, "max_length": longest}
        with wrap_library_errors(lambda reason: f"`{option}`: '{folder}' can't read {shown(prompt)} ({reason})."):
            inputs = processor(**given, return_tensors="pt")
        out = model(**inputs.to(device))  # its embeddings [1, width] have length 1
        scores: Scores = {column: (100 * max((out.image_embeds * out.text_embeds).sum().item(), 0.0), 1)}
        if layers:
            x = out.image_embeds.cpu()
            for weight, bias in layers:
                x = torch.nn.functional.linear(x, weight, bias)
            scores["aesthetic"] = (x.item(), 1)
        return scores

    return metric


def _aesthetic_layers(path: Path, width: int) -> list[tuple[Tensor, Tensor]]:
    """Weights and biases of LAION's predictor, which leads from a normalised embedding [1, width] to a score.

    It is a linear layer; in the improved version a chain of linear layers with nothing between them.
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
    """The tensors of a file. AdtError if it holds anything else."""
    try:
        opened(path).close()  # these open it themselves, and would wait at a pipe
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types; with weights_only it runs nothing that the file asks for
        raise AdtError(
            f"`{option}`: '{path}' can't be read as a file of tensors ({str(error).splitlines()[0]}); "
            "download it again."
        ) from error


class _Pictures(Dataset):
    """The middle squares of picture files, scaled to uint8 [3, size, size]."""

    def __init__(self, files: Sequence[Path], size: int):
        self.files, self.size = files, size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        try:
            with open_image(self.files[index]) as picture:
                square = ImageOps.fit(to_rgb(picture), (self.size, self.size))
        except IMAGE_ERRORS as error:
            raise AdtError(f"'{self.files[index]}' can't be read as an image; remove it or save it again.") from error
        return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def inception_metric(weights: Path, real_images: Path | None, count: int, device: torch.device) -> SetMetric:
    """Inception Score of each method's pictures, in one split, and their FID against the pictures in a folder.

    torch-fidelity computes both. Real pictures are cropped and scaled to the size of the others. Raises AdtError.
    """
    try:
        from torch_fidelity import calculate_metrics
    except ImportError as error:
        raise AdtError(
            f"`inception` needs torch-fidelity, which is not installed; run {pip_install('torch-fidelity')}"
        ) from error
    _read(weights, "inception")  # torch-fidelity would run what a pickle asks for
    files = real_images.rglob("*") if real_images else ()
    real = sorted(path for path in files if path.suffix.lower() in _PICTURES and is_regular(path))
    if real_images and min(len(real), count) < 2:
        raise AdtError(
            f"`real_images`: FID needs at least two images in each set, but '{real_images}' has {len(real)} "
            f"and every method makes {count}; add images or prompts."
        )
    shared = {"cuda": device.type == "cuda", "feature_extractor_weights_path": str(weights), "save_cpu_ram": True}
    shared |= {"isc": True, "isc_splits": 1, "verbose": False}

    def metric(pictures: dict[str, list[Path]]) -> dict[str, dict[str, float]]:
        with open_image(next(iter(pictures.values()))[0]) as first:
            size = min(first.size)
        fid = {"fid": True, "input2": _Pictures(real, size), "input2_cache_name": "real"} if real else {}
        scores: dict[tuple[Path, ...], dict[str, float]] = {}  # methods with the same pictures have the same scores
        with TemporaryDirectory() as cache:
            for files in set(map(tuple, pictures.values())):
                figures = calculate_metrics(input1=_Pictures(files, size), cache_root=cache, **shared, **fid)
                scores[files] = {"IS": float(figures["inception_score_mean"])}
                if real:
                    scores[files]["FID"] = float(figures["frechet_inception_distance"])
        return {name: scores[tuple(files)] for name, files in pictures.items()}

    return metric
