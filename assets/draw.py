"""Draws the pack's icon and banner, and the thumbnails of workflows.

    python assets/draw.py            from the top of the repository, after pip install -e .

The thumbnail of the batch is its contact sheet of eight captions; assets/cards.py draws the cards of other models.

The bundled model draws the image. Colors show how many tokens each round decided (viridis: few to many). The
unfinished part is dark, with a draft tree.
"""

from pathlib import Path

import torch
from PIL import Image, ImageChops, ImageDraw, ImageFont

import adt_core
from adt_core.app.images import to_uint8

HERE = Path(__file__).parent
CAPTION, SEED = "A red house on the left of a grassy field under a cloudy sky.", 3
VIRIDIS = [(68, 1, 84), (65, 68, 135), (42, 120, 142), (34, 168, 132), (122, 209, 81), (253, 231, 37)]
DARK, LINE, REJECTED = (24, 27, 38), (44, 49, 66), (120, 126, 148)
DECIDED = 10
"""Rows of the icon that are shown as drawn."""
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
ACCEPTED = ("", "0", "01", "010", "0100")
SEA_SEED = RELAXED_SEED = 0
SEA = "A red sailboat in the middle on a calm lake at sunset."
BEACH = "A red house on the left of a sandy beach under a cloudy sky."
EDGE, GAP = 256, 6
"""Side of each image of a thumbnail with several, and gap between them, in pixels."""


class Painter:
    """Draws with the bundled model."""

    def __init__(self) -> None:
        self.target = adt_core.load_target()
        self.drafter = adt_core.load_drafter("bundled", self.target)

    def decode(self, caption: str, seed: int, **options) -> adt_core.Decoding:
        """Decode an image to the end."""
        prompt = self.target.encode_prompt(caption)
        own = self.target.published
        sampling = adt_core.Sampling(seed, own.temperature, guidance=own.guidance)
        decoding = adt_core.Decoding(self.target, [prompt], sampling=sampling, drafter=self.drafter, **options)
        for _ in decoding:
            pass
        return decoding

    def picture(self, decoding: adt_core.Decoding) -> Image.Image:
        with torch.inference_mode():
            return Image.fromarray(to_uint8(self.target.codec.decode(decoding.grid_codes())[0]))

    def thumbnails(self, house: adt_core.Decoding) -> dict[str, Image.Image]:
        """Of the workflows that run with the bundled model: what they draw, with seeds that show it well.

        house: the decoding of CAPTION with SEED.
        """
        sea = self.picture(self.decode(SEA, SEA_SEED))
        exact = self.picture(self.decode(CAPTION, RELAXED_SEED))
        template = {"lantern": adt_core.Lantern(delta=1.0), "drafting": adt_core.Drafting("adt-tree")}
        relaxed = self.picture(self.decode(CAPTION, RELAXED_SEED, **template))
        first = self.picture(house)
        codes = house.grid_codes().flatten(1)
        continued = [
            self.picture(self.decode(BEACH, seed, prefix=codes[:, : codes.shape[1] // 2])) for seed in (1, 4, 5)
        ]
        return {
            "ADT-Tree text to image (start here)": first.resize((512, 512), Image.Resampling.LANCZOS),
            "ADT-Tree compared with plain decoding": together(sea, sea, ImageChops.difference(sea, sea)),
            "ADT-Tree continue a picture": together(first, *continued),
            "ADT-Tree relaxed acceptance (LANTERN)": together(relaxed, exact, ImageChops.difference(relaxed, exact)),
        }


def together(*images: Image.Image) -> Image.Image:
    """Three or four pictures, two in a row; a third alone stands in the middle."""
    side = 2 * EDGE + GAP
    drawn = Image.new("RGB", (side, side), DARK)
    for number, image in enumerate(images):
        alone = number == 2 and len(images) == 3
        place = (side - EDGE) // 2 if alone else number % 2 * (EDGE + GAP)
        drawn.paste(image.resize((EDGE, EDGE), Image.Resampling.LANCZOS), (place, number // 2 * (EDGE + GAP)))
    return drawn


def tokens(image: Image.Image, cells: list[list[int]], size: int, rows: int, opacity: float) -> Image.Image:
    """Draw the first ``rows`` rows of the image under its map, and the rest dark."""
    side = size / len(cells)
    shown = image.resize((size, size), Image.Resampling.LANCZOS)
    overlay = Image.new("RGB", (size, size), DARK)
    draw = ImageDraw.Draw(overlay)
    for y, row in enumerate(cells[:rows]):
        for x, brought in enumerate(row):
            draw.rectangle(
                (x * side, y * side, (x + 1) * side, (y + 1) * side), fill=VIRIDIS[min(brought, len(VIRIDIS)) - 1]
            )
    shown = Image.blend(shown, overlay, opacity)
    draw = ImageDraw.Draw(shown)
    draw.rectangle((0, rows * side, size, size), fill=DARK)
    for i in range(1, len(cells)):
        line = i * side
        draw.line((line, 0 if opacity else rows * side, line, size), fill=LINE)
        if opacity or i > rows:
            draw.line((0, line, size, line), fill=LINE)
    return shown


def grow(draw: ImageDraw.ImageDraw, x: float, y: float, unit: float) -> None:
    """Draw the draft tree with accepted drafts in bright colors."""
    places = {path: (x + unit * dx, y + unit * dy) for path, (dx, dy) in TREE.items()}
    radius = 0.42 * unit
    for path in sorted(TREE, key=lambda path: path in ACCEPTED):
        colour = VIRIDIS[-1] if path in ACCEPTED else REJECTED
        if path:
            draw.line((*places[path[:-1]], *places[path]), fill=colour, width=round(0.16 * unit))
    for path, (px, py) in places.items():
        colour = VIRIDIS[-1] if path in ACCEPTED else REJECTED
        draw.ellipse(
            (px - radius, py - radius, px + radius, py + radius), fill=colour, outline=DARK, width=round(0.08 * unit)
        )


def icon(image: Image.Image, cells: list[list[int]]) -> Image.Image:
    drawn = tokens(image, cells, 800, DECIDED, 0.0)
    grow(ImageDraw.Draw(drawn), 150, 645, 62)
    return drawn.resize((400, 400), Image.Resampling.LANCZOS)


def banner(image: Image.Image, cells: list[list[int]]) -> Image.Image:
    drawn = Image.new("RGB", (1260, 540), DARK)
    for number, opacity in enumerate((0.55, 0.0)):
        drawn.paste(tokens(image, cells, 330, len(cells), opacity), (510 + 370 * number, 105))
    draw = ImageDraw.Draw(drawn)
    draw.text((60, 86), "ADT-Tree", font=ImageFont.load_default(84), fill="white")
    for line, text in enumerate(("Autoregressive image models,", "several tokens per pass,", "the same image")):
        draw.text((64, 200 + 36 * line), text, font=ImageFont.load_default(26), fill=(200, 204, 218))
    grow(draw, 84, 436, 34)
    return drawn


if __name__ == "__main__":
    painter = Painter()
    done = painter.decode(CAPTION, SEED)
    made = painter.picture(done), done.trace.acceptance_map()
    icon(*made).save(HERE / "icon.png", optimize=True)
    banner(*made).save(HERE / "banner.png", optimize=True)
    for name, drawing in painter.thumbnails(done).items():
        drawing.save(HERE.parent / "workflows" / f"{name}.jpg", quality=88)
