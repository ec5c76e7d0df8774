"""Figures on quantised weights of the bundled model: how much logits, tokens and images differ from float32."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from adt_core import Drafting, Target, load_drafter, load_target
from adt_core.app.images import to_uint8
from adt_core.app.pipeline import Pipeline
from adt_core.models.cache import KVCache
from adt_core.models.layers import MATRICES
from adt_core.models.rotary import rope_tables
from adt_core.models.rows import BatchRows, Roots
from adt_core.recipe import Recipe

from ..harness import BUNDLED, SAMPLING, SCENES, captions, scene_metric
from ..interleaving import table
from .parts import FigurePart

FLOAT32 = "float32"
LOADED: dict[str, dict[str, Any]] = {
    FLOAT32: {},
    "computed in bfloat16": {"dtype": torch.bfloat16, "exact": False},
    **{name: {"weights": name} for name in ("int8", "fp8", "int4")},
}
"""Compared models: name -> arguments of `load_target`. Quantised weights are computed in float32."""
BATCH_SIZE = 8


class Drawn(NamedTuple):
    """Results of one model.

    Attributes:
        bits: Number of bits per weight of the layers' matrices, with scales.
        codes: [B, T] codes of the images.
        found: Number of attributes of the captions that the images show.
        named: Number of attributes that the captions name.
        logits: [B, T, V] float32 logits after the tokens of the float32 model's images.
    """

    bits: float
    codes: Tensor
    found: int
    named: int
    logits: Tensor


@torch.inference_mode()
def forced_logits(target: Target, prompt: str, codes: Tensor) -> Tensor:
    """Return the logits [T, V] for each of the codes [T] of an image, after the prompt and the codes before it."""
    decoder = target.decoder
    encoded = target.encode_prompt(prompt)
    length = len(encoded) + len(codes)
    rows = BatchRows([encoded, target.unconditional(encoded)], length, decoder.embedding, images=1)
    cache = KVCache(decoder.config, rows.count, length, decoder.embedding)
    rope = rope_tables(decoder.config, decoder.embedding)
    first = decoder(rows.ids, rows.prefill(), cache, rope)[:, -1:]
    step = rows.causal_step(Roots.all_at(torch.zeros(1, dtype=torch.long), 0), len(codes))
    rest = decoder(rows.spread(decoder.image_ids[codes][None]), step, cache, rope)
    return decoder.logits(torch.cat([first, rest], 1)[:, :-1], SAMPLING.guidance)[0]


def bits_per_weight(target: Target, weights: int) -> float:
    """Return the number of bits per weight that the layers' matrices need.

    Args:
        target: Target model.
        weights: Number of weights of the matrices.
    """
    layers = target.decoder.layers
    stored = [getattr(layer, name + part) for layer in layers for name in MATRICES for part in ("", "_scale")]
    return 8 * sum(tensor.nbytes for tensor in stored if tensor is not None) / weights


def draw(name: str, prompts: list[str], true: Drawn | None) -> Drawn:
    """Draw an image for each prompt.

    Args:
        name: Key of `LOADED`.
        prompts: Captions of the bundled model.
        true: Results of the float32 model; None for this model itself.
    """
    target = load_target(**LOADED[name])
    pipeline = Pipeline(target, Recipe(SAMPLING, Drafting("adt-tree")), load_drafter("bundled", target))
    metric = scene_metric()
    codes = []
    scores = []
    for part in (prompts[start : start + BATCH_SIZE] for start in range(0, len(prompts), BATCH_SIZE)):
        decoding = pipeline.decoding(part).run()
        codes.append(decoding.codes)
        with torch.inference_mode():
            images = [Image.fromarray(to_uint8(pixels)) for pixels in pipeline.target.pixels(decoding.grid_codes())]
        scores += [metric(image, prompt)[SCENES] for image, prompt in zip(images, part)]
    drawn = torch.cat(codes)
    given = drawn if true is None else true.codes
    logits = torch.stack([forced_logits(target, *pair) for pair in zip(prompts, given)])
    found, named = map(sum, zip(*scores))
    layers = load_target().decoder.layers
    weights = sum(layer.get_parameter(matrix).numel() for layer in layers for matrix in MATRICES)
    return Drawn(bits_per_weight(target, weights), drawn, found, named, logits)


def compare(drawn: Drawn, true: Drawn) -> dict[str, float]:
    """Return the figures of a model.

    Args:
        drawn: Results of the model.
        true: Results of the float32 model.
    """
    error = (drawn.logits - true.logits).double()
    mean_square = error.square().mean()
    peak = (true.logits.max() - true.logits.min()).double()
    return {
        "bits": drawn.bits,
        "error": float((mean_square / true.logits.double().var()).sqrt()),
        "psnr": float(10 * torch.log10(peak**2 / mean_square)),
        "flips": float((drawn.logits.argmax(-1) != true.logits.argmax(-1)).double().mean()),
        "tokens": float((drawn.codes != true.codes).double().mean()),
        "found": drawn.found,
        "named": drawn.named,
    }


def measure_weights(count: int) -> dict[str, dict[str, float]]:
    """Compare every model of `LOADED` with float32. Return the figures by the name of the model."""
    prompts = captions(BUNDLED, count)
    true = draw(FLOAT32, prompts, None)
    others = {name: draw(name, prompts, true) for name in LOADED if name != FLOAT32}
    return {name: compare(drawn, true) for name, drawn in {FLOAT32: true, **others}.items()}


def tables_of_weights(figures: dict[str, dict[str, float]]) -> dict[str, str]:
    """Return the table, by its name ``weights``. See `FigurePart.tables`."""
    columns = [
        "",
        "bits per weight",
        "root mean square difference of the logits, relative to their standard deviation",
        "PSNR of the logits",
        "positions with another most probable token",
        "different tokens in images of the same seed",
        "attributes found in the images",
    ]
    rows = []
    for name, line in figures.items():
        is_exact = name == FLOAT32
        differences = [
            f"{100 * line['error']:.1f} %",
            f"{line['psnr']:.1f} dB",
            f"{100 * line['flips']:.1f} %",
            f"{100 * line['tokens']:.0f} %",
        ]
        found = f"{line['found']} of {line['named']} ({100 * line['found'] / line['named']:.1f} %)"
        rows.append([name, f"{line['bits']:.2f}", *([""] * 4 if is_exact else differences), found])
    return {"weights": table(columns, rows)}


PARTS = {"weights": FigurePart(64, measure_weights, tables_of_weights)}
