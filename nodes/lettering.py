"""Text of any language in a picture: each letter in the first of the system's fonts that has it."""

import unicodedata
from bisect import bisect_right
from contextlib import suppress
from functools import lru_cache
from itertools import groupby

from PIL import ImageDraw, ImageFont

_FONTS = (
    "DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "arial.ttf", "Arial.ttf", "segoeui.ttf",
    "NotoSansCJK-Regular.ttc", "NotoSansCJKsc-Regular.otf", "SourceHanSans-Regular.ttc", "wqy-microhei.ttc",
    "msyh.ttc", "simsun.ttc", "YuGothM.ttc", "meiryo.ttc", "msgothic.ttc", "malgun.ttf", "PingFang.ttc",
    "Hiragino Sans GB.ttc", "AppleSDGothicNeo.ttc", "Arial Unicode.ttf", "seguiemj.ttf", "seguisym.ttf",
    "NotoEmoji-Regular.ttf", "Symbola.ttf", "Apple Symbols.ttf",
)  # fmt: skip
"""Files that Linux, Windows and macOS have in their font folders, for everyday letters first."""
_NOBODY_S = "\U0010fffe"
"""Not a letter: every font draws its sign for a missing letter here."""
MISSING = "\N{WHITE SQUARE}"
"""Stands for a letter that no font has."""

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


class Lettering:
    """Draws lines of text, ``size`` pixels high."""

    def __init__(self, size: int):
        self._fonts = _fonts(size)
        self._of: dict[str, Font | None] = {}

    def readable(self, text: str) -> str:
        """The text in letters that there are: an emoji that no font has by its name, any other letter as MISSING."""
        return "".join(self._readable(letter) for letter in text)

    def length(self, text: str) -> float:
        """Pixels that a readable text is wide."""
        return sum(font.getlength(part) for font, part in self._parts(text))

    def wrap(self, text: str, width: int, lines: int) -> list[str]:
        """A readable text in at most ``lines`` lines of ``width`` pixels, broken between words where that is possible.
        One that does not fit ends in three dots."""
        wrapped: list[str] = []
        rest = " ".join(text.split())[: lines * width + 1]  # no letter is narrower than a pixel
        while rest and len(wrapped) < lines:
            last = len(wrapped) == lines - 1
            fits = self._fitting(rest, width, "..." if last else "")
            if fits < len(rest) and not last and " " in rest[: fits + 1]:
                fits = rest.rindex(" ", 0, fits + 1)
            wrapped.append(rest[:fits].rstrip() + ("..." if last and fits < len(rest) else ""))
            rest = rest[fits:].lstrip()
        return wrapped

    def _fitting(self, text: str, width: float, ending: str) -> int:
        """How many letters of a text fit into so many pixels: all, or at least one, with an ending behind them."""
        if self.length(text) <= width:
            return len(text)
        return max(1, bisect_right(range(1, len(text)), width, key=lambda count: self.length(text[:count] + ending)))

    def draw(self, on: ImageDraw.ImageDraw, left: float, top: float, text: str, ink: tuple[int, int, int]) -> None:
        """Draw a readable text, whose letters stand on one line whatever their fonts are."""
        base = top + max((_ascent(font) for font, _ in self._parts(text)), default=0)
        for font, part in self._parts(text):
            on.text((left, base - _ascent(font)), part, ink, font)
            left += font.getlength(part)

    def _parts(self, text: str) -> list[tuple[Font, str]]:
        """The text in parts of one font each."""
        parts = groupby(text, lambda letter: self._font(letter) or self._fonts[0])
        return [(font, "".join(letters)) for font, letters in parts]

    def _readable(self, letter: str) -> str:
        if letter.isspace() or self._font(letter) is not None:
            return letter
        kind = unicodedata.category(letter)
        if kind in ("Cf", "Mn", "Me"):  # joiners, variants and skin tones only change what stands before them
            return ""
        name = unicodedata.name(letter, "") if kind in ("So", "Sk") else ""
        return f"[{name.lower()}]" if name else MISSING

    def _font(self, letter: str) -> Font | None:
        if letter not in self._of:
            self._of[letter] = next((font for font in self._fonts if _has(font, letter)), None)
        return self._of[letter]


@lru_cache(maxsize=4)
def _fonts(size: int) -> tuple[Font, ...]:
    """What there is of the list, and Pillow's own at the end, which is always there."""
    fonts: list[Font] = []
    for name in _FONTS:
        with suppress(OSError):
            fonts.append(ImageFont.truetype(name, size))
    return (*fonts, ImageFont.load_default(size))


def _has(font: Font, letter: str) -> bool:
    return letter.isspace() or bytes(font.getmask(letter)) != bytes(font.getmask(_NOBODY_S))


def _ascent(font: Font) -> int:
    return font.getmetrics()[0] if isinstance(font, ImageFont.FreeTypeFont) else 0
