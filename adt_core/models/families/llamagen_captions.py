"""Cleaning of prompts for LlamaGen's text encoder.

LlamaGen was trained with captions from web pages, cleaned twice with the method of DeepFloyd IF and PixArt. Prompts are
cleaned in the same way. The method has three lists of regular expressions with replacements, which run in order. They
remove links, file names and other remains of web pages, and replace typographic variants, such as curly quotation
marks.
"""

from __future__ import annotations

import html
import re
from types import ModuleType
from urllib.parse import unquote_plus

from ...errors import AdtError, pip_install

_FORMATS = "png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4"
_DOMAIN = r"[a-zA-Z0-9.\-]+[.](?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@)"
_DASHES = (
    "\u002d\u058a\u05be\u1400\u1806\u2010-\u2015"
    "\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0\ufe31\ufe32\ufe58\ufe63\uff0d"
)

_LINKS = (
    ("<person>", "person"),
    (rf"\b(?:https?:(?:/{{1,3}}|[a-zA-Z0-9%])|{_DOMAIN})", ""),
    (rf"\b(?:www:(?:/{{1,3}}|[a-zA-Z0-9%])|{_DOMAIN})", ""),
)
"""Replacements that run before HTML tags are removed."""

_TYPOGRAPHY = (
    (r"@\w+\b", ""),  # nicknames
    ("[\u31c0-\u9fff]+", ""),  # CJK strokes, phonetic extensions, enclosed letters, ideographs, hexagrams
    (f"[{_DASHES}]+", "-"),
    ("[`\u00b4\u00ab\u00bb\u201c\u201d\u00a8]", '"'),
    ("[\u2018\u2019]", "'"),
    ("&quot;?", ""),
    ("&amp", ""),
    (r"\d{1,3}(?:\.\d{1,3}){3}", " "),  # IP addresses
    (r"\d:\d\d\s+$", ""),  # article ids
    (r"\\n", " "),
    (r"#\d{1,3}\b", ""),
    (r"#\d{5,}\b", ""),
    (r"\b\d{6,}\b", ""),
    (rf"\S+\.(?:{_FORMATS})", ""),
    ("[\"']{2,}", '"'),
    (r"\.{2,}", " "),
    ("[#\u00ae\u2022\u00a9\u2122&@\u00b7\u00ba\u00bd\u00be\u00bf\u00a1\u00a7~()\\[\\]{}|\\\\/*]+", " "),
    (r"\s+\.\s+", " "),
)
"""Replacements that run after HTML tags are removed."""

_JUNK = (
    (r"\b[a-zA-Z]{1,3}\d{3,15}\b", ""),  # product numbers: this rule and the next two
    (r"\b[a-zA-Z]+\d+[a-zA-Z]+\b", ""),
    (r"\b\d+[a-zA-Z]+\d+\b", ""),
    (r"(?:worldwide\s+)?(?:free\s+)?shipping", ""),
    (r"(?:free\s)?download(?:\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (rf"\b(?:{_FORMATS})(?:\simages?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b", " "),
    ("\\b\\d+\\.?\\d*[x\u0445\u00d7]\\d+\\.?\\d*\\b", ""),  # sizes, such as 20x30
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
    ("^[\"']([\\w\\W]+)[\"']$", r"\1"),  # quotation marks around the complete text
    ("^['_,\\-:;]", ""),
    ("['_,\\-:+]$", ""),
    (r"^\.\S+$", ""),
)
"""Replacements that run last, after ftfy has repaired characters that were decoded wrongly."""

_MAX_JOINTS = 3  # with more hyphens and underscores, all become spaces, as in words-joined-in-this-way


def clean(caption: str) -> str:
    """Return a prompt in lower case, without links, file names and Chinese characters; "" if nothing remains."""
    return _once(_once(caption))


def _once(text: str) -> str:
    ftfy, soup = libraries()
    text = _apply(_LINKS, unquote_plus(text).strip().lower())
    text = text if "<" in text else f"{text}\n"  # else Beautiful Soup warns if it looks like a file name
    text = _apply(_TYPOGRAPHY, soup.BeautifulSoup(text, features="html.parser").text.removesuffix("\n"))
    if len(re.findall("[-_]", text)) > _MAX_JOINTS:
        text = re.sub("[-_]", " ", text)
    text = html.unescape(html.unescape(ftfy.fix_text(text))).strip()
    return _apply(_JUNK, text).strip()


def _apply(rules: tuple[tuple[str, str], ...], text: str) -> str:
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text)
    return text


PACKAGES = "ftfy beautifulsoup4"


def libraries() -> tuple[ModuleType, ModuleType]:
    """Return the modules ftfy and bs4 (Beautiful Soup), or raise an AdtError if one of them is not installed."""
    try:
        import bs4
        import ftfy
    except ImportError as error:
        raise AdtError("llamagen.no_library", library=error.name, command=pip_install(PACKAGES)) from error
    return ftfy, bs4
