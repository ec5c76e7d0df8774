"""Writers for small random models, an upscaler and an input picture.

The small model replaces the bundled model in tests. Its images have the same size, but need only a fifth of the time.
"""

import json
from pathlib import Path

import torch
from comfy_server import ROOT
from convert import Graph
from PIL import Image
from safetensors.torch import save_file

SMALL = "small"
TINY = "tiny"  # name of a model with images of 12 x 12 tokens. It can use the drafter of the small model.
UPSCALER = "RealESRGAN_x4plus.safetensors"
LESSONS = "\n".join(f"a {colour} {thing}" for colour in ("red", "green", "blue") for thing in ("house", "ball", "car"))
QUICK = {
    "prompts": LESSONS,
    "training_images": 4,
    "validation_prompts": 2,
    "training_batch_size": 2,
    "generation_batch_size": 3,
    "minutes": 60.0,
    "steps": 10,
}
"""Inputs of Train Drafter for a training of a few seconds."""


def write_small(models: Path, side: int = 128) -> None:
    """Write the small model and its drafter. The name of both is ``SMALL``. Images have ``side`` x ``side`` pixels."""
    from tests.tiny import write_tiny_checkpoint, write_tiny_drafter

    target = write_tiny_checkpoint(models / "ar_image" / SMALL, scale=3.0, resolution=side, max_positions=512)
    write_tiny_drafter(models / "ar_image_drafters" / SMALL, target)


def write_tiny(models: Path) -> None:
    from tests.tiny import write_tiny_checkpoint

    write_tiny_checkpoint(models / "ar_image" / TINY, scale=3.0, resolution=96, max_positions=512)


def with_small_models(graph: Graph) -> Graph:
    for node in graph.prompt.values():
        node["inputs"] |= {name: SMALL for name in ("model", "drafter") if node["inputs"].get(name) == "bundled"}
    return graph


def write_captions(base: Path, count: int) -> tuple[str, dict[str, str]]:
    """Write captions in MS-COCO's layout into ComfyUI's input folder. Return the file name and a dict id -> caption."""
    bundled = json.loads((ROOT / "adt_core" / "bundled" / "captions.json").read_text(encoding="utf-8"))
    own = [one | {"id": 7000 + i, "image_id": 3 * i + 100} for i, one in enumerate(bundled["annotations"][:count])]
    path = base / "input" / "captions_test2017.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"images": [], "annotations": own}), encoding="utf-8")
    return path.name, {str(one["image_id"]): one["caption"] for one in own}


def write_upscaler(folder: Path) -> None:
    """Write a small upscaler with random weights and a published name. Stock nodes can load it (SRVGGNet)."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    sizes = {"body.0": (8, 3, 3, 3), "body.2": (8, 8, 3, 3), "body.4": (48, 8, 3, 3)}
    weights = {f"{name}.weight": 0.1 * torch.randn(size, generator=generator) for name, size in sizes.items()}
    weights |= {f"{name}.bias": torch.zeros(size[0]) for name, size in sizes.items()}
    weights |= {f"body.{i}.weight": torch.full((8,), 0.2) for i in (1, 3)}
    save_file(weights, folder / UPSCALER)


def write_picture(base: Path) -> None:
    """Write an image of noise, with the name of the input picture in ComfyUI's templates."""
    (base / "input").mkdir(parents=True, exist_ok=True)
    values = torch.randint(256, (512, 512, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    Image.fromarray(values.numpy()).save(base / "input" / "example.png")
