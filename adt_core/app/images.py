"""Pictures on disk: PNGs that carry the settings they were made with, and files that are never half-written."""

from __future__ import annotations

import hashlib
import io
import json
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image, PngImagePlugin
from torch import Tensor

from ..errors import AdtError

KEY = "adt_tree"
"""Name of the PNG text chunk that holds the settings, as JSON."""


def to_uint8(pixels: Tensor) -> np.ndarray:
    """Pixels [3, H, W] in [-1, 1] -> [H, W, 3] bytes."""
    return ((pixels.float().clamp(-1, 1) + 1) * 127.5).round().byte().permute(1, 2, 0).cpu().numpy()


def save_png(path: Path, pixels: Tensor, settings: dict, texts: dict[str, str] | None = None) -> None:
    """Write :func:`to_png` to a file."""
    write(path, to_png(pixels, settings, texts))


def to_png(pixels: Tensor, settings: dict, texts: dict[str, str] | None = None) -> bytes:
    """Pixels [3, H, W] in [-1, 1] as a PNG. Its text chunks hold ``settings``, and each of ``texts`` under its name."""
    chunk = PngImagePlugin.PngInfo()
    chunk.add_itxt(KEY, json.dumps(settings, ensure_ascii=False))
    for name, text in (texts or {}).items():
        chunk.add_text(name, text)
    buffer = io.BytesIO()
    Image.fromarray(to_uint8(pixels)).save(buffer, "PNG", pnginfo=chunk)
    return buffer.getvalue()


def read_settings(path: Path) -> dict:
    """The settings in a PNG of :func:`to_png`. AdtError if it holds none."""
    try:
        with Image.open(path) as image:
            text = image.info.get(KEY)
    except (OSError, SyntaxError, ValueError) as error:  # Pillow's ways to say that it is no sound picture
        reason = getattr(error, "strerror", None) or "it is damaged or of another format"
        raise AdtError(f"{path} can't be read as a PNG ({reason}).") from error
    settings = None
    with suppress(TypeError, ValueError):
        settings = json.loads(text or "null")
    if not isinstance(settings, dict):
        raise AdtError(
            f"{path} holds no ADT-Tree settings; give a PNG that 'generate' wrote and nothing has saved anew."
        )
    return settings


def is_whole(path: Path) -> bool:
    """Is a PNG complete, and are its checksums right?"""
    try:
        with Image.open(path) as image:
            image.verify()
    except (OSError, SyntaxError, ValueError):
        return False
    return True


def digest(content: object) -> str:
    """A short name for what JSON can hold. The same content has the same name; other content, in practice, another."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def write_json(path: Path, content: dict) -> None:
    """Write ``content`` as JSON."""
    write(path, json.dumps(content, ensure_ascii=False).encode() + b"\n")


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: under another name in the same folder, which is then changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def check_writable(path: Path, option: str) -> None:
    """AdtError, naming ``option``, if ``path`` can't be written. Writes and makes nothing."""
    if path.is_dir():
        raise AdtError(f"{option}: '{path}' is a folder; name a file.")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise AdtError(
            f"{option}: '{path}' can't be written, because '{folder}' is not a folder that you may write to; "
            "choose another."
        )
