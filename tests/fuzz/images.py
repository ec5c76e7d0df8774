"""Fuzzers for PNGs with unexpected settings, and for damaged or unusual images."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from adt_core import Pipeline, cli
from adt_core.app import generate
from adt_core.app.args import GenerateArgs, InputArgs, OutputArgs
from adt_core.app.continuation import open_rgb, to_pixels
from adt_core.errors import AdtError
from adt_core.models.load import load_target
from adt_core.run.images import KEY, read_settings
from adt_core.run.jobs import JobList, PromptEntry
from adt_core.run.store import Identity, PngStore
from tests.tiny import write_tiny_checkpoint

from .strategies import ODD, TEXTS, as_json, changed, damaged

MODES = ["RGB", "RGBA", "L", "LA", "P", "1", "I", "I;16", "F", "CMYK", "YCbCr"]
FORMATS = ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "ICO", "PPM", "TGA"]


def settings_of_pngs(folder: Path) -> Callable:
    """Replace any setting of a PNG by any JSON value. Generate the image again, and find the PNG in a list's folder."""
    target = load_target(write_tiny_checkpoint(folder / "target"))
    required = ["generate", "--prompt", "a cat", "--model", "target", "--drafter", "jacobi", "--output", "out.png"]
    assert cli.main([*required, "--method", "eagle2", "--depth", "4"]) == 0
    pipeline = Pipeline(target)
    store = PngStore(JobList([PromptEntry("1", "a cat")], pipeline.recipe), folder, Identity.of(pipeline))
    sound = read_settings(folder / "out.png")
    path = folder / "000001.png"
    remade = ["generate", "--from-png", str(path), "--output", "again.png"]

    def try_input(data) -> None:
        settings = changed(data.draw, sound)
        for _ in range(data.draw(st.integers(0, 2))):
            settings = changed(data.draw, settings)
        write(path, data, as_json(settings))
        has_models = data.draw(st.booleans())
        is_run = not data.draw(st.integers(0, 3))
        with contextlib.suppress(AdtError):
            store.missing()
        _, options = cli.parse([*remade, *(["--model", "target", "--drafter", "jacobi"] if has_models else [])])
        plan = generate.plan(GenerateArgs(OutputArgs.of(options), InputArgs.of(options), options))
        if has_models and is_run:
            generate.run(plan)

    def write(path: Path, data, text: str) -> None:
        chunk = PngImagePlugin.PngInfo()
        add = chunk.add_itxt if data.draw(st.booleans()) else chunk.add_text
        try:
            add(KEY, text)
        except UnicodeError:
            chunk.add_itxt(KEY, "{}")
        Image.new("RGB", (8, 8)).save(path, "PNG", pnginfo=chunk)
        if not data.draw(st.integers(0, 4)):
            path.write_bytes(damaged(data.draw, path.read_bytes()))

    return try_input


def pictures(folder: Path) -> Callable:
    """Open images of all formats and sizes, complete and damaged, and files that aren't images."""
    path = folder / "photo"

    def content(draw: Callable) -> bytes:
        size = draw(st.integers(1, 40)), draw(st.integers(1, 40))
        image = Image.new(draw(st.sampled_from(MODES)), size)
        kind = draw(st.sampled_from(FORMATS))
        buffer = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = draw(st.integers(0, 300))  # orientation
        options = {"exif": exif} if kind in ("PNG", "JPEG", "WEBP", "TIFF") else {}
        try:
            image.save(buffer, kind, **options)
        except (OSError, KeyError, ValueError):  # the format doesn't support the image mode
            image.convert("RGB").save(buffer, kind)
        return buffer.getvalue()

    def try_input(data) -> None:
        made = content(data.draw) if data.draw(st.integers(0, 9)) else as_json(data.draw(ODD | TEXTS)).encode()
        path.write_bytes(damaged(data.draw, made) if data.draw(st.booleans()) else made)
        with contextlib.suppress(AdtError):
            read_settings(path)
        pixels = to_pixels(open_rgb(path, "--continue-from"), 16, 24)
        assert pixels.shape == (1, 3, 16, 24) and pixels.isfinite().all()

    return try_input
