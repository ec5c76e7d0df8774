"""Images that the engine generates without ComfyUI. They are cached, because many tests compare with them."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import torch
from small import SMALL

import adt_core
from adt_core import Recipe
from adt_core.drafters import default_options


@cache
def _models(model: str, network: str) -> tuple:
    target = adt_core.load_target(model)
    return target, adt_core.load_drafter(network, target)


def draw(**asked) -> dict[str, np.ndarray]:
    return _drawn(json.dumps(asked, sort_keys=True))


def draw_graph(base: Path, graph, model: str) -> np.ndarray:
    """Return the image [H, W, 3] of a graph of a model in ComfyUI's folder ``base``, drawn without drafts."""
    given = graph.inputs("ADTTreeSampler")
    sampling = {"seed": given["seed"], "guidance_scale": given["guidance"], "temperature": given["temperature"]}
    places = {"model": base / "models" / "ar_image" / model, "network": base / "models" / "ar_image_drafters" / SMALL}
    prompt = graph.inputs("CLIPTextEncode")["text"]
    return draw(prompt=prompt, sampling=sampling, **{name: str(place) for name, place in places.items()})["images"][0]


@cache
def _drawn(asked: str) -> dict[str, np.ndarray]:
    return _draw(**json.loads(asked))


def _draw(
    prompt: str,
    negative: str | None = None,
    sampling: dict | None = None,
    drafting: dict | None = None,
    lantern: dict | None = None,
    count: int = 1,
    model: str = "bundled",
    network: str = "bundled",
) -> dict[str, np.ndarray]:
    """Generate images.

    Without ``drafting`` the engine decodes without drafts. Options that it lacks have the drafter's defaults.

    Returns:
        "samples": Codebook vectors [B, C, h, w], for B images of h x w tokens.
        "images": Pixels [B, H, W, 3] uint8.
    """
    target, drafter = _models(model, network)
    options = (
        {**default_options(drafter, "cpu", method=drafting.get("method")), **drafting}
        if drafting
        else {"method": "no-drafting"}
    )
    with torch.inference_mode():
        recipe = Recipe(
            adt_core.Sampling(**sampling or {}),
            adt_core.Drafting.of(options),
            adt_core.Lantern(**lantern) if lantern else None,
            negative_prompt=negative or "",
        )
        pipeline = adt_core.Pipeline(target, recipe, drafter)
        codes = pipeline.decoding([prompt] * count, list(range(count))).run().grid_codes()
        pixels = torch.cat([target.pixels(one) for one in codes.split(1)])
        images = (pixels.float().movedim(1, -1) / 2 + 0.5).clamp(0, 1).numpy()
        samples = target.codec.lookup(codes).float().numpy()
    # Round as the stock Save Image node does.
    return {"samples": samples, "images": np.clip(images * 255.0, 0, 255).astype(np.uint8)}
