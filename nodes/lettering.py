"""Text of any language in an image. Each character is drawn with the first system font that contains the character."""

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
"""Font files of Linux, Windows and macOS, fonts with Latin letters first."""
_NONCHARACTER = "\U0010fffe"  # unassigned code point, for which every font draws its missing-glyph sign
MISSING = "\N{WHITE SQUARE}"  # replacement for a character that no font has

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


class Lettering:
    """Text renderer with font fallback.

    Args:
        size: Font size in pixels.
    """

    def __init__(self, size: int):
        self._fonts = _fonts(size)
        self._font_of: dict[str, Font | None] = {}

    def readable(self, text: str) -> str:
        """Replace characters that no font contains: an emoji by its name in brackets, other characters by `MISSING`."""
        return "".join(self._readable(letter) for letter in text)

    def length(self, text: str) -> float:
        """Return the width of a readable text in pixels."""
        return sum(font.getlength(part) for font, part in self._parts(text))

    def wrap(self, text: str, width: int, lines: int) -> list[str]:
        """Break a readable text into lines, between words if possible.

        Args:
            width: Maximum width of a line in pixels.
            lines: Maximum number of lines. A longer text ends in three dots.
        """
        wrapped: list[str] = []
        # A letter is at least one pixel wide, so at most `lines * width` letters fit. One more letter is kept, so that
        # a text that does not fit ends in three dots.
        rest = " ".join(text.split())[: lines * width + 1]
        while rest and len(wrapped) < lines:
            last = len(wrapped) == lines - 1
            fits = self._fitting(rest, width, "..." if last else "")
            if fits < len(rest) and not last and " " in rest[: fits + 1]:
                fits = rest.rindex(" ", 0, fits + 1)
            wrapped.append(rest[:fits].rstrip() + ("..." if last and fits < len(rest) else ""))
            rest = rest[fits:].lstrip()
        return wrapped

    def _fitting(self, text: str, width: float, ending: str) -> int:
        """Return how many characters of a text, at least 1, fit into `width` pixels, with the ending of a cut text."""
        if self.length(text) <= width:
            return len(text)
        return max(1, bisect_right(range(1, len(text)), width, key=lambda count: self.length(text[:count] + ending)))

    def draw(self, on: ImageDraw.ImageDraw, left: float, top: float, text: str, ink: tuple[int, int, int]) -> None:
        """Draw a readable text, with the characters of all fonts on one baseline.

        Args:
            left: Left edge of the text in pixels.
            top: Top edge of the text in pixels. Only the tallest font of the text reaches this edge.
        """
        base = top + max((_ascent(font) for font, _ in self._parts(text)), default=0)
        for font, part in self._parts(text):
            on.text((left, base - _ascent(font)), part, ink, font)
            left += font.getlength(part)

    def _parts(self, text: str) -> list[tuple[Font, str]]:
        """Split a text into runs of one font each."""
        parts = groupby(text, lambda letter: self._font(letter) or self._fonts[0])
        return [(font, "".join(letters)) for font, letters in parts]

    def _readable(self, letter: str) -> str:
        if letter.isspace() or self._font(letter) is not None:
            return letter
        kind = unicodedata.category(letter)
        if kind in ("Cf", "Mn", "Me"):  # joiners, variation selectors and marks only modify other characters
            return ""
        name = unicodedata.name(letter, "") if kind in ("So", "Sk") else ""
        return f"[{name.lower()}]" if name else MISSING

    def _font(self, letter: str) -> Font | None:
        if letter not in self._font_of:
            self._font_of[letter] = next((font for font in self._fonts if _has(font, letter)), None)
        return self._font_of[letter]


@lru_cache(maxsize=4)
def _fonts(size: int) -> tuple[Font, ...]:
    """Return the installed fonts of the list, followed by Pillow's own, which is always available."""
    fonts: list[Font] = []
    for name in _FONTS:
        with suppress(OSError):
            fonts.append(ImageFont.truetype(name, size))
    return (*fonts, ImageFont.load_default(size))


def _has(font: Font, letter: str) -> bool:
    return letter.isspace() or bytes(font.getmask(letter)) != bytes(font.getmask(_NONCHARACTER))


def _ascent(font: Font) -> int:
    return font.getmetrics()[0] if isinstance(font, ImageFont.FreeTypeFont) else 0
