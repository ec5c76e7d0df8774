"""Pictures on disk: PNGs that carry the settings they were made with; and where results may be written."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from PIL import Image, PngImagePlugin
from torch import Tensor

from ..errors import AdtError
from ..files import is_device, opened, parse_json, to_json
from ..version import VERSION

KEY = "adt_tree"
"""Name of the PNG text chunk that holds the settings, as JSON."""
LONGEST_KEYWORD = 79
"""Letters of the name of a text chunk."""
PARAMETERS = "parameters"
"""Name of the text chunk in which many programs look for a prompt and its settings, as text."""
LONGEST_NAME = 255
"""Bytes of a file name, on all usual systems."""
_ODD_DATA = (TypeError, AttributeError, LookupError, ArithmeticError, EOFError, struct.error, zlib.error)
IMAGE_ERRORS = (OSError, SyntaxError, ValueError, Image.DecompressionBombError, *_ODD_DATA)
"""Pillow's ways to say that a file is no sound picture, or would not fit into memory."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""What is read as a picture. Pillow knows more, and starts other programs for some, such as Ghostscript for EPS."""
MAX_IMAGE_MIB = 512
"""MiB of a file that is read as a picture."""
_WHITE = {"I": 65535, "F": 1}
"""Value of white in grey pictures of more than 8 bits, by the first letter of Pillow's mode ("I;16B", "I", "F")."""


@contextmanager
def open_image(source: Path | io.BytesIO, formats: tuple[str, ...] = FORMATS) -> Iterator[Image.Image]:
    """A picture, not decoded yet, in a file or in bytes. Raises one of UNSOUND, also for what is no regular file."""
    with opened(source) if isinstance(source, Path) else source as file:
        size = file.seek(0, io.SEEK_END)
        if size > MAX_IMAGE_MIB * 2**20:
            raise OSError(errno.EFBIG, f"it has {size / 2**20:.0f} MiB, but at most {MAX_IMAGE_MIB} are read")
        file.seek(0)
        with Image.open(file, formats=formats) as image:
            yield image


def to_rgb(image: Image.Image) -> Image.Image:
    """Return a picture in RGB with 8 bits per channel.

    Pillow's own ``convert`` clips grey pictures of more than 8 bits: 16-bit pictures turn white, and floating-point
    pictures black.

    Args:
        image: Picture of any mode. White is 65535 in integers of 16 or 32 bits, and 1.0 in floating point.
    Raises:
        OSError: If values are outside of that range; ``strerror`` names them.
    """
    white = _WHITE.get(image.mode[0])
    if white is None:
        return image.convert("RGB")
    values = np.asarray(image)
    low, high = values.min(), values.max()
    if not -0.5 <= low * (255 / white) <= high * (255 / white) < 255.5:  # false for NaN, too
        found = f"its grey values are from {low:g} to {high:g}, but 0 to {white} was expected"
        raise OSError(errno.EDOM, f"{found}: save it with 8 bits per channel")
    scaled = np.rint(values.astype(np.float32) * (255 / white))
    return Image.fromarray(scaled.astype(np.uint8)).convert("RGB")


def to_uint8(pixels: Tensor) -> np.ndarray:
    """Pixels [3, H, W] in [-1, 1] -> [H, W, 3] bytes."""
    return ((pixels.float().clamp(-1, 1) + 1) * 127.5).round().byte().permute(1, 2, 0).cpu().numpy()


def to_png(pixels: Tensor, settings: dict, texts: dict[str, str] | None = None) -> bytes:
    """Pixels [3, H, W] in [-1, 1] as a PNG. Its text chunks hold ``settings``, the same for other programs, and each of
    ``texts`` under its name."""
    readable = parameters_text(settings, pixels.shape[2], pixels.shape[1])
    info = text_chunks({**({PARAMETERS: readable} if readable else {}), **(texts or {})})
    info.add_itxt(KEY, to_json(settings).decode().rstrip("\n"))
    buffer = io.BytesIO()
    Image.fromarray(to_uint8(pixels)).save(buffer, "PNG", pnginfo=info)
    return buffer.getvalue()


def parameters_text(settings: dict, width: int, height: int) -> str:
    """Settings in the usual words of other programs: the prompt, the negative one if there is any, and a line of names
    and values. "" for settings without a prompt.

    Such a line begins with "Steps". Ours are the image's tokens: as many whatever drafts them.
    """
    prompt, negative = settings.get("prompt"), settings.get("negative")
    if not isinstance(prompt, str) or not prompt:
        return ""
    values = {
        "Steps": settings.get("image_tokens"),
        "Sampler": settings.get("method"),
        "Relaxed": _relaxed(settings),
        "CFG scale": settings.get("guidance"),
        "Seed": settings.get("seed"),
        "Size": f"{width}x{height}",
        "Model": settings.get("model_name"),
        "Temperature": settings.get("temperature"),
        "Top k": settings.get("top_k"),
        "Top p": settings.get("top_p"),
        "Image index": settings.get("image_index") or None,
        "Version": f"ADT-Tree {VERSION}",
    }
    line = ", ".join(f"{name}: {_quoted(value)}" for name, value in values.items() if value is not None)
    lines = prompt, f"Negative prompt: {negative}" if negative else "", line
    return "\n".join(filter(None, lines)).replace("\0", " ")  # which ends such a text


def _relaxed(settings: dict) -> str | None:
    """How LANTERN drew an image, which is not exactly the seed's then; None for an exact one."""
    if settings.get("lantern_delta") is None and settings.get("lantern_lambda") is None:
        return None
    figures = settings.get("figures")
    replaced = figures.get("substitution_rate") if isinstance(figures, dict) else None
    return "LANTERN" if replaced is None else f"LANTERN ({100 * replaced:.1f} % of the tokens replaced)"


def _quoted(value: object) -> str:
    """A value of such a line: in quotation marks where it has what separates values."""
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if any(letter in text for letter in ",:\n") else text


def text_chunks(texts: Mapping[str, str]) -> PngImagePlugin.PngInfo:
    """Text chunks of a PNG, by name. What has no UTF-8 is spelled out."""
    info = PngImagePlugin.PngInfo()
    for name, text in texts.items():
        info.add_text(name, text.encode("utf-8", "backslashreplace").decode())
    return info


def is_keyword(name: str) -> bool:
    """May a text chunk of a PNG have this name, beside our own?"""
    return 0 < len(name) <= LONGEST_KEYWORD and name.isprintable() and name != KEY and max(name) < "\u0100"


def read_settings(path: Path) -> dict:
    """The settings in a PNG of :func:`to_png`. AdtError if it holds none."""
    try:
        with open_image(path, ("PNG",)) as image:
            text = image.info.get(KEY)
    except IMAGE_ERRORS as error:
        problem = getattr(error, "strerror", None) or "it is damaged or of another format"
        raise AdtError(f"{path} can't be read as a PNG ({problem}).") from error
    settings = None
    with suppress(TypeError, ValueError):
        settings = parse_json(text or "null")
    if not isinstance(settings, dict):
        raise AdtError(
            f"{path} has no ADT-Tree settings; use an original PNG of 'generate', not one that was saved again."
        )
    return settings


def read_pixels(path: Path, size: tuple[int, int]) -> np.ndarray | None:
    """The pixels [H, W, 3] of a PNG, as bytes. None if it is incomplete, has a wrong checksum, or is not so many pixels
    wide and high."""
    try:
        with open_image(path, ("PNG",)) as image:
            image.verify()  # after which Pillow can't read pixels from it
        with open_image(path, ("PNG",)) as image:
            return np.array(image.convert("RGB")) if image.size == size else None
    except IMAGE_ERRORS:
        return None


def digest(content: object) -> str:
    """A short name for what JSON can hold. The same content has the same name; other content, in practice, another."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def check_outputs(outputs: Iterable[tuple[str, Path]], inputs: Iterable[tuple[str, Path]]) -> None:
    """AdtError, naming the option, if a file can't be written, or would replace another result or an input.

    Both are pairs of an option and a path; an input may have several files. Writes and makes nothing.
    """
    inputs = list(inputs)
    taken: dict[object, str] = {}
    files = Counter(option for option, _ in inputs)
    for option, path in inputs:
        taken |= dict.fromkeys(_names(path), option)
    for option, path in outputs:
        check_writable(path, option)
        names = _names(path)
        for other in (taken[name] for name in names if name in taken):
            what = f"{'a' if files[other] > 1 else 'the'} file of `{other}`"
            raise AdtError(f"`{option}`: '{path}' is {what}, which would be overwritten; choose another name.")
        taken |= dict.fromkeys(names, option)


def _names(path: Path) -> set[object]:
    """Two paths that lead to one file have one of these in common."""
    names: set[object] = {os.path.normcase(os.path.realpath(path))}
    with suppress(OSError):  # where the system holds two spellings for the same
        file = os.stat(path)
        if file.st_ino:
            names.add((file.st_dev, file.st_ino))
    return names


def check_writable(path: Path, option: str) -> None:
    """AdtError, naming ``option``, if ``path`` can't be written. Writes and makes nothing."""
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise AdtError(f"`{option}`: the name '{path.name[:40]}...' is too long; use at most {LONGEST_NAME} bytes.")
    if path.is_dir():
        raise AdtError(f"`{option}`: '{path}' is a folder; name a file.")
    if is_device(path.name) or path.exists() and not path.is_file():
        raise AdtError(f"`{option}`: '{path}' is a device or a pipe; name a file.")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise AdtError(
            f"`{option}`: '{path}' can't be written, because '{folder}' is not a folder with write access; "
            "choose another."
        )
