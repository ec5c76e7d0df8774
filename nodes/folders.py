"""Which checkpoints the loader nodes offer: the bundled one, then those in ComfyUI's model folders.

ComfyUI asks for the lists at every ``/object_info`` and every validated prompt. So directory listings and
configurations are remembered with their modification times: where nothing has changed, a list costs one ``stat`` per
directory.
"""

import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import folder_paths

from ..adt_core.app.checkpoints import find_published, is_target_file, names_target, published
from ..adt_core.app.loading import default_drafter
from ..adt_core.drafters import DRAFTERS
from ..adt_core.errors import AdtError, shown
from ..adt_core.files import is_device, parse_json, read_text
from ..adt_core.models.checkpoint import BUNDLED, STAGE, name_of
from ..adt_core.models.downloads import Published
from ..adt_core.models.glm_pixels import KIND

MODELS_KEY, DRAFTERS_KEY = "ar_image_models", "ar_image_drafters"  # by which ComfyUI knows our model folders
AUTO = "auto"
"""The drafter that suits the model: the published one, else the first network in the folders that was made for it, else
one without files."""
WITHOUT_FILES = (AUTO, BUNDLED, *DRAFTERS)
"""Drafters that are always in the list."""
LONGEST_NAME = 100
"""Characters of the name of a report or a drafter."""
NOT_INSTALLED = " (not installed)"
"""End of the names of models in workflows that older versions saved."""
_MOST_NAMED = 10
"""Models that an error lists."""
_SHARED = ("ar_image", "LLM", "diffusers", "Janus-Pro")
"""Folders of `models`, or keys of `extra_model_paths.yaml`, where other packs keep complete checkpoints."""
_LARGEST_CONFIG = 8  # MiB: Anole's has 2, and larger ones would be slow to read
_DEPTH = 3  # levels below a model folder: <organisation>/<model>, and one of the user's own


def register() -> None:
    """Add ``models/ar_image`` and ``models/ar_image_drafters`` to ComfyUI's model folders. The user's
    ``extra_model_paths.yaml`` may add others, under the keys ``ar_image_models`` and ``ar_image_drafters``."""
    folder_paths.add_model_folder_path(MODELS_KEY, os.path.join(folder_paths.models_dir, "ar_image"))
    folder_paths.add_model_folder_path(DRAFTERS_KEY, os.path.join(folder_paths.models_dir, "ar_image_drafters"))


def models() -> dict[str, str]:
    """Name -> path of every model that can be chosen, the bundled one first."""
    return _choices(_model_roots(), _is_target, BUNDLED)


def downloadable() -> list[Published]:
    """Return the published models that are not installed."""
    names = {name_of(Path(name)).lower() for name in models()}
    return [row for row in published() if row.downloads and row.name.lower() not in names]


def offered() -> list[str]:
    """Return the Model Loader's list: installed models, then published ones that can be downloaded."""
    return [*models(), *(row.name for row in downloadable())]


def renamed() -> dict[str, str]:
    """Return value of a saved workflow -> value of the list, for published models.

    Older versions marked models that are not installed, and a model may be in a folder of its makers.
    """
    there = {name_of(Path(name)).lower(): name for name in reversed(models())}
    values = {row.name: there.get(row.name.lower(), row.name) for row in published() if row.downloads}
    return {name + NOT_INSTALLED: value for name, value in values.items()} | {
        name: value for name, value in values.items() if value != name
    }


def plain(name: str) -> str:
    """Return a name without the mark that older versions put behind models that are not installed."""
    return str(name).removesuffix(NOT_INSTALLED)


def installed(name: str) -> str | None:
    """The path of a model of the list, or of a shipped workflow, if it is installed."""
    paths, own = models(), plain(name)
    return paths.get(own) or next((path for path in paths.values() if name_of(Path(path)) == own), None)


def is_published(name: str) -> bool:
    """Is this the name of a published model, with or without the mark?"""
    return find_published(plain(name)) is not None


def find_model(name: str) -> str:
    """The path of a model of the list, or of a shipped workflow. AdtError if there is none, with what to download."""
    path = installed(name)
    if path is not None:
        return path
    raise AdtError(f"model: {missing(name)}")


def missing(name: str) -> str:
    """What is said where a model is not installed: how to get it, if it is a published one."""
    row = find_published(plain(name))
    if row is None:
        problem = f"{shown(name, 200)} is in no folder registered for '{MODELS_KEY}'"
        return f"{problem}; put it there and press R, or choose another: {_named(offered())}."
    return (
        f"'{row.name}' is not installed; set if_missing to 'download' and run again, or {row.how_to_get(home())} and "
        "press R."
    )


def home() -> Path:
    """Return the folder that models are downloaded to."""
    return Path(_roots(MODELS_KEY)[0])


def drafters_home() -> Path:
    """Return the folder that drafters are downloaded to."""
    return Path(_roots(DRAFTERS_KEY)[0])


def _named(names: list[str]) -> str:
    """Return the first names of a list, with the number of the others."""
    rest = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def drafters() -> dict[str, str]:
    """Name -> path of every drafter that can be chosen: the one that suits the model, the bundled one, those that need
    no files, and folders."""
    return _choices(_roots(DRAFTERS_KEY), lambda path: True, *WITHOUT_FILES)


def glm_transformers() -> dict[str, str]:
    """Name -> path of every transformer of GLM-Image's second stage: folders as published, then single files."""
    return _choices(_model_roots(), lambda path: _config(path).get("_class_name") == KIND) | files("diffusion_models")


def files(key: str) -> dict[str, str]:
    """Name -> path of every safetensors file in ComfyUI's own folders of this name."""
    names = [name for name in folder_paths.get_filename_list(key) if name.endswith(".safetensors")]
    return {name: folder_paths.get_full_path_or_raise(key, name) for name in names}


def new_drafter(name: str) -> Path:
    """Where a drafter of this name is put, to be found by its name from then on."""
    return Path(_roots(DRAFTERS_KEY)[0], name)


def check_name(name: str) -> None:
    """Raises AdtError for a name that is not a plain file name."""
    unfit = any(letter in '<>:"/\\|?*' or not letter.isprintable() for letter in name) or len(name) > LONGEST_NAME
    if unfit or not name.strip() or name.startswith(".") or is_device(name):
        raise AdtError(f"name: {shown(name)} can't be the name of a file; use letters, digits, spaces and hyphens.")


def drafter_for(model: str) -> str:
    """What 'auto' stands for with the model at this path: a name or a path."""
    row = find_published(name_of(Path(model)))
    wanted = row.drafter.folder if row is not None and row.drafter is not None else None
    return next((path for path in drafters().values() if os.path.basename(path) == wanted), default_drafter(model))


def resolve(choices: dict[str, str], name: str, what: str, key: str) -> str:
    """The path of a chosen name. what: the input, and key: its model folders, for the AdtError if the path has gone
    since the list was made."""
    if name not in choices:
        raise AdtError(
            f"{what}: '{name}' is no longer in any folder registered for '{key}'; "
            "put it back, or press R and choose another."
        )
    return choices[name]


def fingerprint(path: str) -> str:
    """Another string when the checkpoint's files have changed, so that a replaced checkpoint is loaded again."""
    if path == AUTO:  # it depends on what lies in the folders
        return repr([*models(), *((name, fingerprint(path)) for name, path in drafters().items() if path != AUTO)])
    if path == BUNDLED or path in DRAFTERS:
        return path
    if os.path.isfile(path):
        return repr((os.path.getsize(path), os.stat(path).st_mtime_ns))
    with os.scandir(path) as entries:
        return repr(sorted((e.name, e.stat().st_size, e.stat().st_mtime_ns) for e in entries if e.is_file()))


def _model_roots() -> list[str]:
    return [root for key in (MODELS_KEY, *_SHARED) for root in _roots(key)]


def _roots(key: str) -> list[str]:
    if key in folder_paths.folder_names_and_paths:
        return folder_paths.get_folder_paths(key)
    return [os.path.join(folder_paths.models_dir, key)]


def _choices(roots: list[str], wanted: Callable[[str], bool], *names: str) -> dict[str, str]:
    """These names, and all checkpoints below the roots whose path is wanted."""
    paths = {name: name for name in names}
    for root in roots:
        for path in filter(wanted, _checkpoints(root, _DEPTH)):
            whole = os.path.dirname(path) if os.path.basename(path) == STAGE else path
            name = os.path.relpath(whole, root) if whole != root else os.path.basename(root)
            paths.setdefault(Path(name).as_posix(), path)
    return paths


def _is_target(path: str) -> bool:
    return is_target_file(os.path.basename(path)) or names_target(_config(path))


def _config(path: str) -> dict:
    """The ``config.json`` of a checkpoint; {} if it has none that can be read."""
    file = os.path.join(path, "config.json")
    return _read_config(file, _mtime(file))


def _checkpoints(folder: str, depth: int) -> Iterator[str]:
    """Folders at or below this one that hold a ``config.json``, and files that are a whole target. Nothing below such
    a folder."""
    is_checkpoint, children, files = _listing(folder, _mtime(folder))
    yield from files
    if is_checkpoint:
        yield folder
    elif depth > 0:
        for child in children:
            yield from _checkpoints(child, depth - 1)


def _mtime(path: str) -> int:
    """Time of the last change, in nanoseconds; 0 if there is no such path."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=4096)
def _listing(folder: str, mtime: int) -> tuple[bool, tuple[str, ...], tuple[str, ...]]:
    """Whether the folder holds a ``config.json``; paths of the folders in it; paths of files that are whole targets."""
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name.lower())
    except OSError:
        return False, (), ()
    folders = tuple(e.path for e in listed if e.is_dir() and not e.name.startswith("."))
    files = tuple(e.path for e in listed if is_target_file(e.name) and e.is_file())
    return any(e.name == "config.json" and e.is_file() for e in listed), folders, files


@lru_cache(maxsize=256)
def _read_config(path: str, mtime: int) -> dict:
    try:
        config = parse_json(read_text(Path(path), _LARGEST_CONFIG))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
