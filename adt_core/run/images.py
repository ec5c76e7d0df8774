"""Image files: safe reading, PNGs with embedded settings, and checks of output paths."""

from __future__ import annotations

import errno
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

from ..errors import AdtError, UnknownFormatError, shown
from ..files import file_name_part, inside, is_device, opened, parse_json, path_key, to_json
from ..version import FORMAT, VERSION

KEY = "adt_tree"
"""Keyword of the PNG text chunk with the settings in JSON."""
LONGEST_KEYWORD = 79
"""Maximum length of the keyword of a text chunk."""
PARAMETERS = "parameters"
"""Keyword of the text chunk with prompt and settings in the text format that other image generators use."""
LONGEST_NAME = 255
"""Maximum length of a file name in bytes on all common file systems."""
_DATA_ERRORS = (TypeError, AttributeError, LookupError, ArithmeticError, EOFError, struct.error, zlib.error)
IMAGE_ERRORS = (OSError, SyntaxError, ValueError, Image.DecompressionBombError, *_DATA_ERRORS)
"""Exceptions that Pillow raises for files that are not valid images, or are too large to decode."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""Formats that this module reads. For others, such as EPS, Pillow may start external programs."""
MAX_IMAGE_MIB = 512
"""Maximum size of an image file in MiB."""
_WHITE = {"I": 65535, "F": 1}
"""Value of white in grayscale images of more than 8 bits, by the first letter of Pillow's mode ("I;16B", "I", "F")."""


@contextmanager
def open_image(source: Path | io.BytesIO, formats: tuple[str, ...] = FORMATS) -> Iterator[Image.Image]:
    """Open an image without decoding it. Raise `IMAGE_ERRORS` if it is not valid, too large or no regular file."""
    with opened(source) if isinstance(source, Path) else source as file:
        size = file.seek(0, io.SEEK_END)
        if size > MAX_IMAGE_MIB * 2**20:
            raise OSError(errno.EFBIG, f"it has {size / 2**20:.0f} MiB, but at most {MAX_IMAGE_MIB} are read")
        file.seek(0)
        with Image.open(file, formats=formats) as image:
            yield image


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any Pillow mode to RGB with 8 bits per channel.

    Grayscale images of more than 8 bits are scaled: Pillow's `convert` would clip their values, so most 16-bit images
    would become white. White is 65535 for integers of 16 or 32 bits, and 1.0 for floating-point values.

    Raises:
        OSError: If grey values are below 0 or above white. The attribute `strerror` contains their range.
    """
    white = _WHITE.get(image.mode[0])
    if white is None:
        return image.convert("RGB")
    values = np.asarray(image)
    low = values.min()
    high = values.max()
    if not -0.5 <= low * (255 / white) <= high * (255 / white) < 255.5:  # false for NaN, too
        found = f"its grey values are from {low:g} to {high:g}, but 0 to {white} was expected"
        raise OSError(errno.EDOM, f"{found}: save it with 8 bits per channel")
    scaled = np.rint(values.astype(np.float32) * (255 / white))
    return Image.fromarray(scaled.astype(np.uint8)).convert("RGB")


def to_uint8(pixels: Tensor) -> np.ndarray:
    """Convert pixels [3, H, W] in [-1, 1] to [H, W, 3] uint8."""
    return ((pixels.float().clamp(-1, 1) + 1) * 127.5).round().byte().permute(1, 2, 0).cpu().numpy()


def to_png(pixels: Tensor, settings: dict, texts: Mapping[str, str] | None = None) -> bytes:
    """Encode pixels as a PNG with the settings in two text chunks: JSON for `read_settings`, and `parameters_text`.

    Args:
        pixels: [3, H, W] in [-1, 1], RGB.
        settings: Settings of the image, as values that JSON supports. The PNG also gets the number `FORMAT`.
        texts: Additional text chunks by keyword.
    """
    readable = parameters_text(settings, pixels.shape[2], pixels.shape[1])
    info = text_chunks({**({PARAMETERS: readable} if readable else {}), **(texts or {})})
    info.add_itxt(KEY, to_json({**settings, "format": FORMAT}).decode().rstrip("\n"))
    buffer = io.BytesIO()
    Image.fromarray(to_uint8(pixels)).save(buffer, "PNG", pnginfo=info)
    return buffer.getvalue()


def parameters_text(settings: dict, width: int, height: int) -> str:
    """Return the settings in the text format of other image generators; "" without a prompt.

    The text consists of the prompt, the negative prompt, and one line of names and values such as "Seed: 3". Other
    programs require that this line begins with "Steps", the number of denoising steps of a diffusion model. Here it is
    the number of image tokens, which does not depend on drafting.

    Args:
        width: Width in pixels.
        height: Height in pixels.
    """
    prompt = settings.get("prompt")
    negative = settings.get("negative_prompt")
    if not isinstance(prompt, str) or not prompt:
        return ""
    values = {
        "Steps": settings.get("image_tokens"),
        "Sampler": settings.get("method"),
        "Relaxed": _relaxed(settings),
        "CFG scale": settings.get("guidance_scale"),
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
    return "\n".join(filter(None, lines)).replace("\0", " ")  # a null character would end the chunk


def _relaxed(settings: dict) -> str | None:
    """Return a note on relaxed acceptance (LANTERN), which changes the image of a seed; None if acceptance is exact."""
    if settings.get("lantern_delta") is None and settings.get("lantern_factor") is None:
        return None
    figures = settings.get("figures")
    replaced = figures.get("substitution_rate") if isinstance(figures, dict) else None
    return "LANTERN" if replaced is None else f"LANTERN ({100 * replaced:.1f} % of the tokens replaced)"


def _quoted(value: object) -> str:
    """Return a value as text. Add quotation marks if the text contains a comma, a colon or a line break."""
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if any(letter in text for letter in ",:\n") else text


def text_chunks(texts: Mapping[str, str]) -> PngImagePlugin.PngInfo:
    """Return text chunks for a PNG, by keyword. Lone surrogates, which UTF-8 cannot encode, are escaped."""
    info = PngImagePlugin.PngInfo()
    for name, text in texts.items():
        info.add_text(name, text.encode("utf-8", "backslashreplace").decode())
    return info


def is_keyword(name: str) -> bool:
    """Return whether a name is valid as the keyword of a PNG's text chunk, and differs from `KEY`."""
    return 0 < len(name) <= LONGEST_KEYWORD and name.isprintable() and name != KEY and max(name) < "\u0100"


def read_settings(path: Path) -> dict:
    """Return the settings in a PNG that `to_png` has encoded.

    Raises:
        AdtError: If the file cannot be read as a PNG, or contains no settings.
        UnknownFormatError: If the settings have another format number.
    """
    try:
        with open_image(path, ("PNG",)) as image:
            text = image.info.get(KEY)
    except IMAGE_ERRORS as error:
        problem = getattr(error, "strerror", None) or "it is damaged or of another format"
        raise AdtError("png.unreadable", path=path, reason=problem) from error
    settings = None
    with suppress(TypeError, ValueError):
        settings = parse_json(text or "null")
    if not isinstance(settings, dict):
        raise AdtError("png.no_settings", path=path)
    if (found := settings.get("format")) != FORMAT:
        raise UnknownFormatError("png.other_format", path=path, found=shown(found), own=FORMAT)
    return settings


def is_intact(path: Path, size: tuple[int, int]) -> bool:
    """Return whether a PNG has valid checksums and this width and height. Its pixels are not decoded."""
    try:
        with open_image(path, ("PNG",)) as image:
            image.verify()
            return image.size == size
    except IMAGE_ERRORS:
        return False


def read_pixels(path: Path, size: tuple[int, int]) -> np.ndarray | None:
    """Return the pixels of a PNG, [H, W, 3] uint8; None if it is damaged or has another width and height."""
    if not is_intact(path, size):
        return None
    try:
        with open_image(path, ("PNG",)) as image:
            return np.array(image.convert("RGB"))
    except IMAGE_ERRORS:
        return None


def check_outputs(outputs: Iterable[tuple[str, Path]], inputs: Iterable[tuple[str, Path]]) -> None:
    """Check that all output files can be written, and that no output replaces an input or another output.

    The check creates no files.

    Args:
        outputs: Pairs of an option's name and the path of an output file.
        inputs: Pairs of an option's name and the path of an input file. An option with several files has several pairs.

    Raises:
        AdtError: If an output cannot be written or would replace another file. The message names the option.
    """
    inputs = list(inputs)
    taken: dict[object, str] = {}
    files = Counter(option for option, _ in inputs)
    for option, path in inputs:
        taken |= dict.fromkeys(_identities(path), option)
    for option, path in outputs:
        check_writable(path, option)
        names = _identities(path)
        for other in (taken[name] for name in names if name in taken):
            key = "file.overwrites_one" if files[other] > 1 else "file.overwrites"
            raise AdtError(key, input=option, path=path, other=other)
        taken |= dict.fromkeys(names, option)


def _identities(path: Path) -> set[object]:
    """Return keys that identify a file. If two paths lead to the same file, their results share at least one key."""
    names: set[object] = {path_key(path)}
    with suppress(OSError):  # if the file exists, its inode number is the same for every spelling of the path
        file = os.stat(path)
        if file.st_ino:
            names.add((file.st_dev, file.st_ino))
    return names


def check_writable(path: Path, option: str) -> None:
    """Raise AdtError if the file of an option cannot be written. The check creates no file."""
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise AdtError("file.long_name", input=option, name=path.name[:40], most=LONGEST_NAME)
    if path.is_dir():
        raise AdtError("file.is_folder", input=option, path=path)
    if is_device(path.name) or path.exists() and not path.is_file():
        raise AdtError("file.is_device", input=option, path=path)
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise AdtError("folder.not_writable", input=option, path=path, folder=folder)


def named_folder(root: Path, unique: str, name: str, usual: str) -> Path:
    """Return the path `root`/NAME-UNIQUE, for example `root`/janus-1b-3f2a90c4d1e7. NAME is `name`, or else `usual`.

    Raises:
        AdtError: If the path contains a link.
    """
    return inside(root, "-".join(filter(None, (file_name_part(name or usual), unique))))
