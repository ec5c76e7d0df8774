"""Draw the pack's icon and banner, and the thumbnails of workflows that use the bundled model.

    python docs/assets/draw.py            run this in the root of the repository, after pip install -e .

docs/assets/cards.py draws the thumbnails of workflows with other models. The thumbnail of the batch template is not
drawn here. It is the contact sheet that this template makes of eight captions.

Icon and banner show an image of the bundled model and a draft tree. The icon shows an unfinished image, whose missing
rows are dark. The banner also shows the acceptance map, in which the color of a token means the number of tokens that
its pass accepted, from few (dark) to many (yellow).
"""

from pathlib import Path

import torch
from PIL import Image, ImageChops, ImageDraw, ImageFont

import adt_core
from adt_core.run.images import to_uint8

HERE = Path(__file__).parent
CAPTION = "A red house on the left of a grassy field under a cloudy sky."
SEED = 3
SEA = "A red sailboat in the middle on a calm lake at sunset."
SEA_SEED = 0
BEACH = "A red house on the left of a sandy beach under a cloudy sky."
BEACH_SEEDS = (1, 4, 5)
BLUE = "A blue house on the left of a grassy field under a cloudy sky."
BLUE_SEEDS = (1, 4)
MASKED = slice(3, 14), slice(0, 10)
"""Rows and columns of cells that the thumbnail of inpainting generates again."""
RELAXED_SEED = 0
"""Seed for CAPTION in the thumbnail of relaxed acceptance (LANTERN)."""

VIRIDIS = [(68, 1, 84), (65, 68, 135), (42, 120, 142), (34, 168, 132), (122, 209, 81), (253, 231, 37)]
DARK = (24, 27, 38)
LINE = (44, 49, 66)
REJECTED = (120, 126, 148)
FINISHED_ROWS = 10
"""Number of token rows that the icon shows as finished."""
TILE = 256
"""Width and height in pixels of each image in a thumbnail with several images."""
GAP = 6
"""Space in pixels between the images of a thumbnail."""

TREE = {
    "": (0.0, 0.0),
    "0": (1.6, -1.5),
    "1": (1.6, 1.6),
    "00": (3.4, -2.4),
    "01": (3.4, -0.6),
    "10": (3.4, 1.6),
    "010": (5.2, -1.3),
    "011": (5.2, 0.3),
    "0100": (7.0, -1.3),
}
"""Nodes of the drawn draft tree: path from the root -> position (right, down) relative to the root.

For example, "01" is the second child of the first child of the root "". The unit is arbitrary, see `draw_tree`."""
ACCEPTED = ("", "0", "01", "010", "0100")


class Painter:
    """The bundled model with its drafter."""

    def __init__(self) -> None:
        self.pipeline = adt_core.Pipeline.load("bundled", device="cpu")

    def decode(self, caption: str, kept: torch.Tensor | None = None, **options) -> adt_core.Decoding:
        """Decode an image with the published sampling settings.

        Args:
            kept: [1, P], codes of the first P cells of the image; -1 for cells to generate.
            **options: Options of a recipe, such as the seed.
        """
        return self.pipeline.with_options(**options).decoding([caption], kept=kept).run()

    def image(self, decoding: adt_core.Decoding) -> Image.Image:
        with torch.inference_mode():
            return Image.fromarray(to_uint8(decoding.target.pixels(decoding.grid_codes())[0]))

    def thumbnails(self, house: adt_core.Decoding) -> dict[str, Image.Image]:
        """Return the thumbnails by the name of the workflow.

        The seeds in this file were chosen so that each thumbnail shows well what the workflow does.
        """
        seas = [self.decode(SEA, seed=SEA_SEED, method=method) for method in ("adt-tree", "no-drafting")]
        exact = self.image(self.decode(CAPTION, seed=RELAXED_SEED))
        relaxed = self.image(self.decode(CAPTION, seed=RELAXED_SEED, method="adt-tree", lantern_delta=1.0))
        first = self.image(house)
        codes = house.grid_codes().flatten(1)
        upper_half = codes[:, : codes.shape[1] // 2]
        continued = [self.image(self.decode(BEACH, upper_half, seed=seed)) for seed in BEACH_SEEDS]
        mask = torch.zeros(house.target.grid, dtype=torch.bool)
        mask[MASKED] = True
        outside = house.target.kept(house.grid_codes(), mask[None])
        inpainted = [self.image(self.decode(BLUE, outside, seed=seed)) for seed in BLUE_SEEDS]
        return {
            "ADT-Tree text to image (start here)": first.resize((512, 512), Image.Resampling.LANCZOS),
            "ADT-Tree compared with no drafting": compared(
                *map(self.image, seas), *(len(sea.trace.rounds) for sea in seas)
            ),
            "ADT-Tree continue a picture": tiled(first, *continued),
            "ADT-Tree inpaint with MaskEditor": tiled(first, masked(first, mask), *inpainted),
            "ADT-Tree relaxed acceptance (LANTERN)": tiled(relaxed, exact, ImageChops.difference(relaxed, exact)),
        }


def tiled(*images: Image.Image) -> Image.Image:
    """Return up to four images as one image with two per row. If there are three, the third is centered."""
    side = 2 * TILE + GAP
    canvas = Image.new("RGB", (side, side), DARK)
    for number, image in enumerate(images):
        left = number % 2 * (TILE + GAP)
        if number == 2 and len(images) == 3:
            left = (side - TILE) // 2
        canvas.paste(image.resize((TILE, TILE), Image.Resampling.LANCZOS), (left, number // 2 * (TILE + GAP)))
    return canvas


def masked(image: Image.Image, mask: torch.Tensor) -> Image.Image:
    """Return an image of which the masked cells are covered, as in MaskEditor."""
    cover = Image.fromarray(mask.byte().numpy() * 200).resize(image.size, Image.Resampling.NEAREST)
    return Image.composite(Image.new("RGB", image.size, DARK), image, cover)


def compared(drafted: Image.Image, plain: Image.Image, drafted_passes: int, plain_passes: int) -> Image.Image:
    """Return two equal images side by side. Below them are two bars, whose lengths are the numbers of model passes."""
    assert ImageChops.difference(drafted, plain).getbbox() is None
    canvas = tiled(drafted, plain)
    draw = ImageDraw.Draw(canvas)
    right = canvas.width - 2 * GAP
    draw.text((2 * GAP, 276), "A and B: the same image", font=ImageFont.load_default(36), fill="white")
    rows = ("A: with drafts", drafted_passes, VIRIDIS[-2]), ("B: without", plain_passes, REJECTED)
    for number, (name, passes, color) in enumerate(rows):
        top = 340 + 86 * number
        length = (right - 2 * GAP) * passes / max(drafted_passes, plain_passes)
        draw.text(
            (2 * GAP, top), f"{name}, {passes} passes of the model", font=ImageFont.load_default(26), fill="white"
        )
        draw.rectangle((2 * GAP, top + 38, 2 * GAP + length, top + 62), fill=color)
    return canvas


def unfinished(image: Image.Image, cells: list[list[int]], size: int, rows: int, opacity: float) -> Image.Image:
    """Return an image as it looks before it is finished: with its acceptance map on top, and with missing rows in dark.

    Args:
        cells: Acceptance map: for each token of each row, the number of tokens that its pass accepted.
        size: Width and height of the result in pixels.
        opacity: Opacity of the map, from 0 to 1.
    """
    side = size / len(cells)
    overlay = Image.new("RGB", (size, size), DARK)
    draw = ImageDraw.Draw(overlay)
    for y, row in enumerate(cells[:rows]):
        for x, tokens in enumerate(row):
            color = VIRIDIS[min(tokens, len(VIRIDIS)) - 1]
            draw.rectangle((x * side, y * side, (x + 1) * side, (y + 1) * side), fill=color)
    result = Image.blend(image.resize((size, size), Image.Resampling.LANCZOS), overlay, opacity)
    draw = ImageDraw.Draw(result)
    draw.rectangle((0, rows * side, size, size), fill=DARK)
    for i in range(1, len(cells)):
        line = i * side
        draw.line((line, 0 if opacity else rows * side, line, size), fill=LINE)
        if opacity or i > rows:
            draw.line((0, line, size, line), fill=LINE)
    return result


def draw_tree(draw: ImageDraw.ImageDraw, x: float, y: float, unit: float) -> None:
    """Draw the draft tree. Accepted drafts have a bright color.

    Args:
        x: Position of the root in pixels, from the left.
        y: Position of the root in pixels, from the top.
        unit: Pixels per unit of the positions in TREE.
    """
    positions = {path: (x + unit * dx, y + unit * dy) for path, (dx, dy) in TREE.items()}
    colors = {path: VIRIDIS[-1] if path in ACCEPTED else REJECTED for path in TREE}
    radius = 0.42 * unit
    for path in sorted(TREE, key=lambda path: path in ACCEPTED):
        if path:
            draw.line((*positions[path[:-1]], *positions[path]), fill=colors[path], width=round(0.16 * unit))
    for path, (px, py) in positions.items():
        circle = (px - radius, py - radius, px + radius, py + radius)
        draw.ellipse(circle, fill=colors[path], outline=DARK, width=round(0.08 * unit))


def icon(image: Image.Image, cells: list[list[int]]) -> Image.Image:
    canvas = unfinished(image, cells, 800, FINISHED_ROWS, 0.0)
    draw_tree(ImageDraw.Draw(canvas), 150, 645, 62)
    return canvas.resize((400, 400), Image.Resampling.LANCZOS)


def banner(image: Image.Image, cells: list[list[int]]) -> Image.Image:
    canvas = Image.new("RGB", (1260, 540), DARK)
    for number, opacity in enumerate((0.55, 0.0)):
        canvas.paste(unfinished(image, cells, 330, len(cells), opacity), (510 + 370 * number, 105))
    draw = ImageDraw.Draw(canvas)
    draw.text((60, 86), "ADT-Tree", font=ImageFont.load_default(84), fill="white")
    for line, text in enumerate(("Autoregressive image models,", "several tokens per pass,", "the same image")):
        draw.text((64, 200 + 36 * line), text, font=ImageFont.load_default(26), fill=(200, 204, 218))
    draw_tree(draw, 84, 436, 34)
    return canvas


def main() -> None:
    """Write the icon, the banner and the thumbnails."""
    painter = Painter()
    house = painter.decode(CAPTION, seed=SEED)
    image = painter.image(house)
    cells = house.trace.acceptance_map()
    icon(image, cells).save(HERE / "icon.png", optimize=True)
    banner(image, cells).save(HERE / "banner.png", optimize=True)
    for name, thumbnail in painter.thumbnails(house).items():
        thumbnail.save(HERE.parents[1] / "workflows" / f"{name}.jpg", quality=88, optimize=True, progressive=True)


if __name__ == "__main__":
    main()
