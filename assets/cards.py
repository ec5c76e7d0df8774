"""Draws the cards of workflows whose images can't be drawn here, since their models are not part of the pack.

    python assets/cards.py           from the top of the repository

A card says what goes into its workflow and what comes out. All of it but the title is read from the workflow: its
prompt, its model, and whether there is a source image, a second stage or an upscale model.
"""

import json
import random
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

WORKFLOWS = Path(__file__).parents[1] / "workflows"
CARDS = {
    "ADT-Tree Anole 7B text to image": "Anole 7B",
    "ADT-Tree Lumina-mGPT text to image": "Lumina-mGPT 7B",
    "ADT-Tree Lumina-mGPT 2.0 text to image": "Lumina-mGPT 2.0",
    "ADT-Tree Janus-Pro text to image": "Janus-Pro",
    "ADT-Tree Emu3 text to image": "Emu3-Gen",
    "ADT-Tree Liquid text to image": "Liquid 7B",
    "ADT-Tree LlamaGen text to image": "LlamaGen",
    "ADT-Tree GLM-Image text to image": "GLM-Image",
    "ADT-Tree GLM-Image edit a picture": "GLM-Image: edit",
    "ADT-Tree same as upstream (Janus-Pro)": "Same as upstream",
    "ADT-Tree text to image and upscale with a model": "Upscale with a model",
}
VIRIDIS = [(68, 1, 84), (65, 68, 135), (42, 120, 142), (34, 168, 132), (122, 209, 81), (253, 231, 37)]
DARK, PANEL, LINE, GRAY = (24, 27, 38), (38, 42, 56), (70, 76, 96), (160, 166, 186)
SIDE, EDGE = 512, 36
GRID = 12
"""Tokens along each side of the image that stands for the result."""


class Workflow:
    """What a card says of a workflow."""

    def __init__(self, name: str) -> None:
        nodes = json.loads((WORKFLOWS / f"{name}.json").read_text(encoding="utf-8"))["nodes"]
        values = {node["type"]: node.get("widgets_values") or [""] for node in reversed(nodes)}
        self.prompt: str = values["CLIPTextEncode"][0]
        self.model: str = values["ADTTreeModelLoader"][0]
        self.source = "LoadImage" in values
        self.upscaler = values.get("UpscaleModelLoader", [""])[0].partition(".")[0]
        self.second_stage = "ADTTreeGLMDecode" in values
        self.upstream = bool({"upstream", "original script"} & set(map(str, values["ADTTreeSampler"])))

    def steps(self) -> list[str]:
        """Return the steps of the workflow."""
        model = "the bundled model" if self.model == "bundled" else self.model
        drawn = f"Tokens by {model}"
        if self.upstream:
            drawn += " with the noise of its original script"
        ends = ["its second stage"] if self.second_stage else ["VAE decode"]
        return [drawn, *ends, *([f"upscaling by {self.upscaler}"] if self.upscaler else [])]


def font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)


def lines(text: str, size: int, width: int, most: int) -> str:
    """Break a text into lines of a width, at most so many."""
    broken = [""]
    for word in text.split():
        longer = f"{broken[-1]} {word}".strip()
        if font(size).getlength(longer) <= width:
            broken[-1] = longer
        else:
            broken.append(word)
    if len(broken) > most:
        broken = [*broken[: most - 1], broken[most - 1].rstrip(".,") + " …"]
    return "\n".join(broken)


def token_image(draw: ImageDraw.ImageDraw, box: tuple[int, int, int], seed: str) -> None:
    """Draw an image as its acceptance map: tokens in runs of one color, other ones for every seed."""
    left, top, side = box
    chance = random.Random(seed)
    cell = side // GRID
    place = 0
    while place < GRID * GRID:
        tokens = chance.choice((1, 2, 3, 4, 6, 9, 12))
        color = VIRIDIS[min(tokens // 2, len(VIRIDIS) - 1)]
        for at in range(place, min(place + tokens, GRID * GRID)):
            x = left + at % GRID * cell
            y = top + at // GRID * cell
            draw.rectangle((x, y, x + cell - 2, y + cell - 2), fill=color)
        place += tokens


def source_image(draw: ImageDraw.ImageDraw, box: tuple[int, int, int, int]) -> None:
    """Draw the sign for an image that goes in."""
    left, top, right, bottom = box
    draw.rectangle(box, fill=(66, 92, 128))
    draw.ellipse((right - 40, top + 12, right - 16, top + 36), fill=VIRIDIS[-1])
    draw.polygon(((left, bottom), (left + 46, top + 34), (left + 92, bottom)), fill=(52, 130, 96))
    draw.polygon(((left + 56, bottom), (left + 104, top + 48), (right, bottom)), fill=(38, 98, 78))


def arrow(draw: ImageDraw.ImageDraw, left: int, right: int, y: int) -> None:
    draw.line((left, y, right - 8, y), fill=GRAY, width=4)
    draw.polygon(((right, y), (right - 14, y - 9), (right - 14, y + 9)), fill=GRAY)


def card(title: str, workflow: Workflow) -> Image.Image:
    drawn = Image.new("RGB", (SIDE, SIDE), DARK)
    draw = ImageDraw.Draw(drawn)
    draw.text((EDGE, 30), title, font=font(46), fill="white")
    taken = "Image and prompt" if workflow.source else "Prompt"
    draw.text((EDGE, 92), f"{taken} to image", font=font(25), fill=VIRIDIS[4])
    top = 146
    bottom = 386
    prompt = top + 96 if workflow.source else top
    if workflow.source:
        source_image(draw, (EDGE, top, EDGE + 180, prompt - 10))
    draw.rounded_rectangle((EDGE, prompt, EDGE + 180, bottom), 10, fill=PANEL, outline=LINE, width=2)
    most = (bottom - prompt - 20) // 26
    quoted = lines(workflow.prompt, 20, 156, most)
    draw.multiline_text((EDGE + 12, prompt + 10), quoted, font=font(20), fill=(225, 228, 238), spacing=5)
    middle = (top + bottom) // 2
    arrow(draw, EDGE + 188, EDGE + 218, middle)
    side = bottom - top - 24
    _results(draw, workflow, title, (SIDE - EDGE - side, middle - side // 2, side))
    steps = lines(", then ".join(workflow.steps()), 21, SIDE - 2 * EDGE, 3)
    draw.multiline_text((EDGE, 414), steps, font=font(21), fill=GRAY, spacing=8)
    return drawn


def _results(draw: ImageDraw.ImageDraw, workflow: Workflow, seed: str, box: tuple[int, int, int]) -> None:
    """Draw the image that comes out: small and large where it is upscaled, twice where it is equal to another."""
    left, top, side = box
    if workflow.upscaler:
        small = side // 4
        token_image(draw, (left, top, side), seed)
        draw.rectangle((left - 4, top + side - small - 4, left + small + 4, top + side + 4), fill=DARK)
        token_image(draw, (left, top + side - small, small), seed)
    elif workflow.upstream:
        half = (side - 34) // 2
        for number in range(2):
            token_image(draw, (left + (side - half) // 2, top + number * (half + 34), half), seed)
        draw.text((left + side // 2, top + half + 17), "=", font=font(34), fill="white", anchor="mm")
    else:
        token_image(draw, box, seed)


if __name__ == "__main__":
    for name, title in CARDS.items():
        card(title, Workflow(name)).save(WORKFLOWS / f"{name}.jpg", quality=88)
