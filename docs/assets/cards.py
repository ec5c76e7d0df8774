"""Draw a card for each template workflow whose model is not part of the pack.

    python docs/assets/cards.py           run this in the root of the repository

A card is a thumbnail that shows the input and the output of a workflow. The titles are in this file. The script reads
everything else from the workflow: the prompt, the model, and whether the workflow has a source image, a second stage or
an upscale model. The size of the download and the memory are those of docs/models.md.
"""

import json
import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

sys.path.insert(0, str(Path(__file__).parents[2]))
from adt_core.models.load import find_published
from adt_core.policies import CHOICES

AUTO = next(iter(CHOICES))

WORKFLOWS = Path(__file__).parents[2] / "workflows"
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
    "ADT-Tree image of the original script (Janus-Pro)": "Original script",
    "ADT-Tree text to image and upscale with a model": "Upscale with a model",
    "ADT-Tree run of the paper (Anole with LANTERN)": "The paper's run",
    "ADT-Tree MS-COCO batch with upscaling": "MS-COCO batch",
    "ADT-Tree map and statistics of a run": "Map and statistics",
    "ADT-Tree benchmark and diagnostics of this machine": "Benchmark",
    "ADT-Tree train a drafter for a model": "Train a drafter",
}
"""Workflow -> title of its card."""
RESULTS = {
    "ADTTreeBatchSampler": "images",
    "ADTTreeBenchmark": "a table",
    "ADTTreeTrainDrafter": "a drafter",
}
"""Node that reads a list of prompts -> what the workflow makes of the list."""
VIRIDIS = [(68, 1, 84), (65, 68, 135), (42, 120, 142), (34, 168, 132), (122, 209, 81), (253, 231, 37)]
BACKGROUND = (24, 27, 38)
PANEL = (38, 42, 56)
OUTLINE = (70, 76, 96)
GRAY = (160, 166, 186)
SIDE = 512
"""Width and height of a card in pixels."""
MARGIN = 36
GRID = 12
"""Number of tokens along each side of the acceptance map that represents the result."""
RUN_LENGTHS = (1, 2, 3, 4, 6, 9, 12)
"""Numbers of tokens per pass that occur in the random acceptance map."""


class Workflow:
    """The properties of a workflow that its card shows.

    Attributes:
        prompt: Positive prompt.
        model: Name of the model in the node Model Loader.
        dtype: Data type in the node Model Loader.
        source: Whether the workflow has a source image.
        upscaler: Name of the upscale model, or "".
        second_stage: Whether GLM-Image's second stage decodes the tokens.
        original: Whether the workflow uses the noise of the original script by the model's authors.
    """

    def __init__(self, name: str) -> None:
        nodes = json.loads((WORKFLOWS / f"{name}.json").read_text(encoding="utf-8"))["nodes"]
        values = {node["type"]: node.get("widgets_values") or [""] for node in reversed(nodes)}
        self.list_node = next((node for node in RESULTS if node in values), "")
        if self.list_node:
            counts = values["ADTTreePrompts"][5:] if "ADTTreePrompts" in values else values[self.list_node]
            count = next(value for value in counts if type(value) is int)
            self.prompt = f"{count} prompts of a list, such as MS-COCO's captions"
        else:
            self.prompt = values["CLIPTextEncode"][0]
        self.drafting = str(next((value for value in values.get("ADTTreeBatchSampler", []) if value in CHOICES), ""))
        self.model: str = values["ADTTreeModelLoader"][0]
        self.dtype: str = values["ADTTreeModelLoader"][1]
        self.source = "LoadImage" in values
        self.upscaler = values.get("UpscaleModelLoader", [""])[0].partition(".")[0]
        self.second_stage = "ADTTreeGLMImageDecode" in values
        self.original = "original script" in values.get("ADTTreeSampler", [])

    def needs(self) -> str:
        """Return the size of the download and, for the model's own dtype, the GPU memory; "" for the bundled model."""
        row = find_published(self.model)
        if row is None:
            return ""
        memory = f", {row.memory[0]} GiB GPU memory" if self.dtype == "auto" else ""
        return f"{row.size} download{memory}"

    def steps(self) -> list[str]:
        """Return the steps of the workflow, in order."""
        model = "the bundled model" if self.model == "bundled" else self.model
        if self.list_node == "ADTTreeBenchmark":
            return [f"Methods in turns with {model}", "figures with intervals"]
        if self.list_node == "ADTTreeTrainDrafter":
            return [f"Images by {model}", "training on their tokens"]
        steps = [f"Tokens by {model}"]
        if self.original:
            steps[0] += " with the noise of its original script"
        if self.drafting not in ("", AUTO):
            steps[0] += f" with {self.drafting}"
        steps.append("its second stage" if self.second_stage else "VAE decode")
        if self.upscaler:
            steps.append(f"upscaling by {self.upscaler}")
        return steps


def font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)


def break_lines(text: str, size: int, width: int, max_lines: int) -> str:
    """Break a text into lines. If it has too many lines, cut it and add an ellipsis.

    Args:
        width: Width of a line in pixels.
        max_lines: Maximum number of lines.
    """
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if font(size).getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    if len(lines) > max_lines:
        lines = [*lines[: max_lines - 1], lines[max_lines - 1].rstrip(".,") + " …"]
    return "\n".join(lines)


def draw_map(draw: ImageDraw.ImageDraw, box: tuple[int, int, int], seed: str) -> None:
    """Draw a random acceptance map: all tokens that one pass has accepted have the same color.

    Args:
        box: Left edge, top edge and side length in pixels.
    """
    left, top, side = box
    rng = random.Random(seed)
    cell = side // GRID
    position = 0
    while position < GRID * GRID:
        tokens = rng.choice(RUN_LENGTHS)
        color = VIRIDIS[min(tokens // 2, len(VIRIDIS) - 1)]
        for index in range(position, min(position + tokens, GRID * GRID)):
            x = left + index % GRID * cell
            y = top + index // GRID * cell
            draw.rectangle((x, y, x + cell - 2, y + cell - 2), fill=color)
        position += tokens


def draw_source(draw: ImageDraw.ImageDraw, box: tuple[int, int, int, int]) -> None:
    """Draw the symbol of a source image: a landscape with a sun."""
    left, top, right, bottom = box
    draw.rectangle(box, fill=(66, 92, 128))
    draw.ellipse((right - 40, top + 12, right - 16, top + 36), fill=VIRIDIS[-1])
    draw.polygon(((left, bottom), (left + 46, top + 34), (left + 92, bottom)), fill=(52, 130, 96))
    draw.polygon(((left + 56, bottom), (left + 104, top + 48), (right, bottom)), fill=(38, 98, 78))


def draw_arrow(draw: ImageDraw.ImageDraw, left: int, right: int, y: int) -> None:
    draw.line((left, y, right - 8, y), fill=GRAY, width=4)
    draw.polygon(((right, y), (right - 14, y - 9), (right - 14, y + 9)), fill=GRAY)


def draw_result(draw: ImageDraw.ImageDraw, workflow: Workflow, seed: str, box: tuple[int, int, int]) -> None:
    """Draw the result of a workflow as one or two acceptance maps.

    With an upscale model, draw a large map and a small copy of it. With the noise of an original script, draw two
    equal maps. Otherwise draw one map.

    Args:
        box: Left edge, top edge and side length in pixels.
    """
    left, top, side = box
    if workflow.upscaler:
        small = side // 4
        draw_map(draw, (left, top, side), seed)
        draw.rectangle((left - 4, top + side - small - 4, left + small + 4, top + side + 4), fill=BACKGROUND)
        draw_map(draw, (left, top + side - small, small), seed)
    elif workflow.original:
        half = (side - 34) // 2
        for number in range(2):
            draw_map(draw, (left + (side - half) // 2, top + number * (half + 34), half), seed)
        draw.text((left + side // 2, top + half + 17), "=", font=font(34), fill="white", anchor="mm")
    else:
        draw_map(draw, box, seed)


def card(title: str, workflow: Workflow) -> Image.Image:
    """Return the card of a workflow, with its title, source image, prompt, result and steps."""
    image = Image.new("RGB", (SIDE, SIDE), BACKGROUND)
    draw = ImageDraw.Draw(image)
    draw.text((MARGIN, 58), title, font=font(38), fill="white")  # below ComfyUI's badge "Node graph"
    inputs = "Image and prompt" if workflow.source else "Prompts" if workflow.list_node else "Prompt"
    draw.text((MARGIN, 108), f"{inputs} to {RESULTS.get(workflow.list_node, 'image')}", font=font(25), fill=VIRIDIS[4])
    top = 146
    bottom = 386
    prompt_top = top
    if workflow.source:
        prompt_top = top + 96
        draw_source(draw, (MARGIN, top, MARGIN + 180, prompt_top - 10))
    draw.rounded_rectangle((MARGIN, prompt_top, MARGIN + 180, bottom), 10, fill=PANEL, outline=OUTLINE, width=2)
    prompt = break_lines(workflow.prompt, 20, 156, max_lines=(bottom - prompt_top - 20) // 26)
    draw.multiline_text((MARGIN + 12, prompt_top + 10), prompt, font=font(20), fill=(225, 228, 238), spacing=5)
    middle = (top + bottom) // 2
    draw_arrow(draw, MARGIN + 188, MARGIN + 218, middle)
    side = bottom - top - 24
    draw_result(draw, workflow, title, (SIDE - MARGIN - side, middle - side // 2, side))
    steps = break_lines(", then ".join(workflow.steps()), 21, SIDE - 2 * MARGIN, max_lines=2 if workflow.needs() else 3)
    draw.multiline_text((MARGIN, 408), steps, font=font(21), fill=GRAY, spacing=8)
    draw.text((MARGIN, 466), workflow.needs(), font=font(21), fill=VIRIDIS[4])
    return image


if __name__ == "__main__":
    for name, title in CARDS.items():
        card(title, Workflow(name)).save(WORKFLOWS / f"{name}.jpg", quality=88, optimize=True, progressive=True)
