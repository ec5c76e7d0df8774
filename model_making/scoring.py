"""Scorer for prompt adherence: compares the objects and the background of an image with a prompt.

Objects and background are detected without a trained network. The detection therefore can't share errors with the
model that generated the image.

    python -m model_making.scoring [--count 300] [--seed 11]

measures the accuracy of the scorer in three ways: on rendered images, on the same images after encoding and decoding
with the codec, and on images of other scenes ("shuffled"). An image of another scene shows an attribute only by chance.
The score on shuffled images should therefore equal the share of other scenes that have the same attribute ("chance").
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
import torch

from adt_core import load_target
from adt_core.models.vq import VQModel
from adt_core.run.images import to_uint8

from .background import classify_background
from .detector import Detection, detect_objects
from .prompts import ObjectSpec, PromptSpec
from .render import render
from .scenes import Scene, sample_wide_scene

REGIONS = ("sky", "ground", "backdrop", "wall")
MIN_ACCURACY = {"rendered": 0.97, "codec": 0.97}
"""Required share of recognised objects in rendered images, before and after encoding and decoding with the codec."""
MAX_ABOVE_CHANCE = 0.03
"""Maximum of the score on images of other scenes minus the score that is expected by chance."""
SHUFFLES = 4
"""Number of other images that each scene is compared with."""


@dataclass(frozen=True)
class ImageContents:
    """Detected contents of an image."""

    objects: list[Detection]
    background: set[str]  # labels such as ``sky:night``


@dataclass(frozen=True)
class PromptScore:
    """Result of comparing an image with a prompt.

    Attributes:
        named: Whether the image shows each attribute of the prompt. Keys are labels such as ``object:red house left``
            or ``sky:night``.
        kind_and_colour: For each object of the prompt, whether the image shows an object of this kind and colour, at
            any place.
        not_repeated: For each object whose kind the prompt names only once, whether the image shows at most one object
            of this kind.
    """

    named: dict[str, bool]
    kind_and_colour: list[bool]
    not_repeated: list[bool]


def analyse_image(image: np.ndarray) -> ImageContents:
    """Detect the objects and the background of an image.

    Args:
        image: [128, 128, 3] uint8.
    """
    objects = detect_objects(image)
    return ImageContents(objects, classify_background(image, objects))


def scene_spec(scene: Scene, backdrop: bool = False) -> PromptSpec:
    """Return the contents that the caption from :func:`model_making.scenes.describe` names.

    Args:
        backdrop: Whether to include the backdrop. Three of four captions name it.
    """
    objects = tuple(ObjectSpec((item.kind,), item.colour, item.place) for item in scene.items)
    if scene.indoors:
        return PromptSpec("", "", objects, wall=(scene.wall,), table=True)
    backdrops = (scene.backdrop,) if backdrop else ()
    return PromptSpec("", "", objects, sky=(scene.sky,), ground=(scene.ground,), backdrop=backdrops)


def _matches(detection: Detection, spec: ObjectSpec, at_place: bool) -> bool:
    return (
        detection.kind in spec.kinds
        and spec.colour in (None, detection.colour)
        and (not at_place or spec.place in (None, detection.place))
    )


def _find_objects(detections: list[Detection], specs: tuple[ObjectSpec, ...], at_place: bool) -> list[bool]:
    """Return whether each required object was detected. A detection satisfies at most one requirement."""
    unused = list(detections)
    present = []
    for spec in specs:
        match = next((detection for detection in unused if _matches(detection, spec, at_place)), None)
        present.append(match is not None)
        if match:
            unused.remove(match)
    return present


def _not_repeated(detections: list[Detection], specs: tuple[ObjectSpec, ...]) -> list[bool]:
    """Return :attr:`PromptScore.not_repeated`."""
    return [
        sum(detection.kind in spec.kinds for detection in detections) < 2
        for spec in specs
        if sum(bool(set(spec.kinds) & set(other.kinds)) for other in specs) == 1
    ]


def score_prompt(contents: ImageContents, prompt: PromptSpec) -> PromptScore:
    """Compare the contents of an image with a prompt."""
    specs = prompt.objects
    labels = [" ".join(filter(None, (spec.colour, "/".join(spec.kinds), spec.place))) for spec in specs]
    present = _find_objects(contents.objects, specs, at_place=True)
    named = dict(zip((f"object:{label}" for label in labels), present, strict=True))
    for region in REGIONS:
        if options := getattr(prompt, region):
            named[f"{region}:{'/'.join(options)}"] = any(f"{region}:{name}" in contents.background for name in options)
    if prompt.table:
        named["table:wooden"] = "table:wooden" in contents.background
    kind_and_colour = _find_objects(contents.objects, specs, at_place=False)
    return PromptScore(named, kind_and_colour, _not_repeated(contents.objects, specs))


@torch.inference_mode()
def reconstruct(codec: VQModel, images: np.ndarray) -> np.ndarray:
    """Encode images with the codec and decode the codes.

    Args:
        images: [n, 128, 128, 3] uint8.

    Returns:
        [n, 128, 128, 3] uint8.
    """
    pixels = codec.decode(codec.encode(torch.from_numpy(images).permute(0, 3, 1, 2) / 127.5 - 1))
    return np.stack(list(map(to_uint8, pixels)))


def evaluate_scorer(codec: VQModel, count: int, seed: int) -> dict[str, dict[str, float]]:
    """Measure the scorer on scenes with known contents.

    Returns:
        One row for "object", one for each region, and one for "table". Each row has "n", the number of attributes, and
        the recognised share of attributes: "rendered", "codec", "shuffled" and "chance" (see the module docstring).
    """
    prompts = []
    rendered = []
    coded = []
    for i in range(count):
        rng = np.random.default_rng([seed, i])
        scene = sample_wide_scene(rng)
        image = np.array(render(scene, rng))
        prompts.append(scene_spec(scene, backdrop=True))
        rendered.append(analyse_image(image))
        coded.append(analyse_image(reconstruct(codec, image[None])[0]))
    rates: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    rng = np.random.default_rng([seed, count])
    for i, prompt in enumerate(prompts):
        others = (i + rng.choice(np.arange(1, count), min(SHUFFLES, count - 1), False)) % count
        runs = [("rendered", rendered[i]), ("codec", coded[i]), *(("shuffled", rendered[j]) for j in others)]
        for column, contents in runs:
            for label, present in score_prompt(contents, prompt).named.items():
                rates[label.split(":")[0]][column].append(present)
    _add_chance(rates, [list(score_prompt(contents, prompt).named) for contents, prompt in zip(rendered, prompts)])
    return {
        kind: {"n": len(rates[kind]["rendered"]), **{column: float(np.mean(v)) for column, v in rates[kind].items()}}
        for kind in ("object", *REGIONS, "table")
        if kind in rates
    }


def _add_chance(rates: dict[str, dict[str, list[float]]], labels: list[list[str]]) -> None:
    """Add the column "chance" to `rates`: for each label of a scene, the share of other scenes with this label."""
    frequency = Counter(label for of_scene in labels for label in of_scene)
    for of_scene in labels:
        for label in of_scene:
            rates[label.split(":")[0]]["chance"].append((frequency[label] - 1) / (len(labels) - 1))


def missed_thresholds(rates: dict[str, float]) -> list[str]:
    """Return the names of the thresholds that a row of :func:`evaluate_scorer` misses."""
    missed = [column for column, minimum in MIN_ACCURACY.items() if rates[column] < minimum]
    if rates["shuffled"] - rates["chance"] > MAX_ABOVE_CHANCE:
        missed.append("above chance")
    return missed


def main() -> None:
    """Print the accuracy of the scorer; exit with an error if a threshold is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="number of scenes")
    parser.add_argument("--seed", type=int, default=11, help="seed of the scenes")
    args = parser.parse_args()
    columns = ["rendered", "codec", "shuffled", "chance"]
    table = evaluate_scorer(load_target().codec, args.count, args.seed)
    print(f"{'kind':10}{'n':>6}" + "".join(f"{column:>10}" for column in columns))
    for kind, rates in table.items():
        print(f"{kind:10}{rates['n']:6}" + "".join(f"{rates[column]:10.1%}" for column in columns))
    if missed := missed_thresholds(table["object"]):
        sys.exit("below the threshold: " + ", ".join(missed))


if __name__ == "__main__":
    main()
