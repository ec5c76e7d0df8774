"""Folders that `extra_model_paths.yaml` marks with `is_default`.

ComfyUI reads the file before it loads the pack, and does not keep the mark.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import folder_paths
import yaml
from comfy.cli_args import args

from ..adt_core.files import LARGEST_JSON, read_text


def default_folders(key: str) -> set[str]:
    """Return the folders for a key in sections with `is_default`, as ComfyUI registers them."""
    return {
        os.path.normpath(os.path.join(base, line))
        for section, base in _sections()
        if section.get("is_default")
        for line in str(section.get(key, "")).split("\n")
        if line
    }


def _sections() -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each section of the files that ComfyUI has read, with the folder that its paths are relative to."""
    usual = Path(os.path.realpath(folder_paths.__file__)).with_name("extra_model_paths.yaml")
    for file in (usual, *map(Path, chain(*args.extra_model_paths_config or []))):
        content = None
        with suppress(OSError, ValueError, yaml.YAMLError):
            content = yaml.safe_load(read_text(file, LARGEST_JSON))
        for section in content.values() if isinstance(content, dict) else ():
            if isinstance(section, dict):
                base = os.path.expandvars(os.path.expanduser(str(section.get("base_path", ""))))
                yield section, os.path.join(file.absolute().parent, base)
