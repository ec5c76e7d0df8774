"""Checkpoints that the loader nodes list: first the bundled checkpoints, then those in ComfyUI's model folders.

ComfyUI requests the lists for every `/object_info` and every prompt. Directory listings and configurations are
therefore cached with their modification times, so an unchanged list costs one `stat` per directory.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import folder_paths
import yaml
from comfy.cli_args import args

from ..adt_core import AdtError
from ..adt_core.drafters import DRAFTERS
from ..adt_core.errors import one_line, shown
from ..adt_core.files import LARGEST_JSON, is_device, is_hidden, is_writable, list_visible, parse_json, read_text
from ..adt_core.models import STAGE, Published, find_published, name_of, published, published_at
from ..adt_core.models.glm_pixels import KIND
from ..adt_core.run import default_drafter, is_target_config, is_target_file
from ..adt_core.settings import BUNDLED

# keys of `extra_model_paths.yaml`
MODELS_KEY, DRAFTERS_KEY, METRICS_KEY = "ar_image_models", "ar_image_drafters", "ar_image_metrics"
_FOLDER_NAMES = {MODELS_KEY: "ar_image", DRAFTERS_KEY: "ar_image_drafters", METRICS_KEY: "ar_image_metrics"}
"""Name of the pack's own folder in ComfyUI's folder of models, by key."""
AUTO = "auto"
"""Name of the automatic choice: the published drafter of the model, otherwise the first network in the folders that
fits the model, otherwise a drafter without files."""
NONE = "none"  # name in the lists for quality metrics that stands for no weights
WITHOUT_FILES = (AUTO, BUNDLED, *DRAFTERS)
"""Names in the drafter list that need no files in the drafter folders. They are always listed."""
LONGEST_NAME = 100  # maximum number of characters in the name of a report or a drafter
_MOST_NAMED = 10  # maximum number of models that an error lists
_SHARED = ("ar_image", "LLM", "diffusers", "Janus-Pro")
"""Folders of `models`, or keys of `extra_model_paths.yaml`, where other packs keep complete checkpoints."""
_LARGEST_CONFIG = 8  # MiB; larger files are ignored, because reading them is slow. Anole's configuration has 2 MiB
_DEPTH = 3  # levels below a model folder: <user's folder>/<organisation>/<model>


def register() -> None:
    """Add the pack's folders in `models` to ComfyUI's model folders.

    Users can add further folders in `extra_model_paths.yaml`, with the keys in `_FOLDER_NAMES`.
    """
    for key in _FOLDER_NAMES:
        folder_paths.add_model_folder_path(key, _own(key))


def models() -> dict[str, str]:
    """Return name -> path of the installed models, the bundled one first."""
    return _choices(_model_roots(), _is_target, BUNDLED)


def downloadable() -> list[Published]:
    """Return the published models that are not installed."""
    names = {name_of(Path(name)).lower() for name in models()}
    return [row for row in published() if row.downloads and row.name.lower() not in names]


def offered() -> list[str]:
    """Return the Model Loader's list: installed models, then published ones that can be downloaded."""
    return [*models(), *(row.name for row in downloadable())]


def installed_names() -> dict[str, str]:
    """Return published name -> name in the list, of the models for which the two names differ.

    Workflow templates have the published name. If the model is installed in a folder of its publisher, its name in the
    list is "publisher/model".
    """
    there = {name_of(Path(name)).lower(): name for name in reversed(models())}
    values = {row.name: there.get(row.name.lower(), row.name) for row in published() if row.downloads}
    return {name: value for name, value in values.items() if value != name}


def installed(name: str) -> str | None:
    """Return the path of a model by its name in the list or in a workflow template, or None if it is not installed."""
    paths = models()
    same = (path for path in paths.values() if name_of(Path(path)).lower() == name.lower())
    return paths.get(name) or next(same, None)


def is_own(path: str) -> bool:
    """Return whether a path is in a model folder of this pack, and not only in one of other packs."""
    return any(Path(path).is_relative_to(root) for root in _roots(MODELS_KEY))


def is_published(name: str) -> bool:
    """Return whether a name is in the table of published models."""
    return find_published(name) is not None


def find_model(name: str) -> str:
    """Return the path of a model as `installed` does. Raise AdtError with instructions if it is not installed."""
    if path := installed(name):
        return path
    raise missing(name, "model")


def missing(name: str, input_id: str) -> AdtError:
    """Return the error for a model that is not installed, with instructions for a published model."""
    row = find_published(name)
    if row is None:
        return AdtError(
            "model.no_folder", input=input_id, name=shown(name, 200), folder=MODELS_KEY, others=_named(offered())
        )
    return AdtError("model.not_there", input=input_id, name=row.name, remedy=row.how_to_get(home()))


def home() -> Path:
    """Return the folder that models are downloaded to."""
    return _home(MODELS_KEY)


def drafters_home() -> Path:
    """Return the folder that drafters are downloaded to."""
    return _home(DRAFTERS_KEY)


def _named(names: list[str]) -> str:
    """Return a text with the first names of a list and the number of the remaining names."""
    rest = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def drafters() -> dict[str, str]:
    """Return name -> path of the drafters: first `WITHOUT_FILES`, with the name as path, then the installed ones."""
    return _choices(_roots(DRAFTERS_KEY), lambda path: True, *WITHOUT_FILES)


def glm_transformers() -> dict[str, str]:
    """Return name -> path of the transformers for GLM-Image's second stage.

    Folders with the files that the publisher provides are first, then single files in `models/diffusion_models`.
    """
    return _choices(_model_roots(), lambda path: _config(path).get("_class_name") == KIND) | files("diffusion_models")


def files(key: str) -> dict[str, str]:
    """Return name -> path of the safetensors files in the model folders that ComfyUI registers under a key."""
    listed = folder_paths.get_filename_list(key)
    names = [name for name in listed if name.endswith(".safetensors") and not is_hidden(name)]
    return {name: folder_paths.get_full_path_or_raise(key, name) for name in names}


def metrics() -> dict[str, str]:
    """Return name -> path of the files and folders for quality metrics. The first name, `NONE`, has no path."""
    paths = {NONE: ""}
    for root in _roots(METRICS_KEY):
        for path in list_visible(Path(root), "*"):
            paths.setdefault(path.name, str(path))
    return paths


def new_drafter(name: str) -> Path:
    """Return the folder in which to save a new drafter of this name, so that the Drafter Loader lists the drafter.

    If a folder of this name exists, the training in it is continued.
    """
    folders = [Path(root, name) for root in _roots(DRAFTERS_KEY)]
    return next(filter(Path.is_dir, folders), drafters_home() / name)


def check_name(name: str, input_id: str = "name") -> None:
    """Raise AdtError if the name of a new file or folder is not a plain one that all operating systems accept."""
    unfit = any(letter in '<>:"/\\|?*' or not letter.isprintable() for letter in name) or len(name) > LONGEST_NAME
    if unfit or not name.strip() or name.startswith(".") or is_device(name):
        raise AdtError("name.invalid", input=input_id, name=shown(name))


def drafter_for(model: str) -> str:
    """Return the name or path of the drafter that `AUTO` selects. `model` is the path of the target model."""
    row = published_at(model)
    wanted = row.drafter.folder if row is not None and row.drafter is not None else None
    return next((path for path in drafters().values() if os.path.basename(path) == wanted), default_drafter(model))


def resolve(choices: dict[str, str], name: str, what: str, key: str) -> str:
    """Return the path of a chosen name. Raise AdtError if `choices` (name -> path) does not have the name."""
    if name not in choices:
        raise AdtError("file.gone", input=what, name=name, key=key)
    return choices[name]


def fingerprint(path: str) -> str:
    """Return a string that changes when the files of a checkpoint change. `path` may be a drafter without files."""
    if path == AUTO:  # the automatic choice depends on the contents of all folders
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


def _own(key: str) -> str:
    return os.path.join(folder_paths.models_dir, _FOLDER_NAMES[key])


def _home(key: str) -> Path:
    """Return the folder for new files: one that the user has marked as default, otherwise the pack's own.

    If it is not writable, for example because it is on a read-only network share, the next writable folder is returned.
    """
    marked = _default_folders(key)
    roots = [Path(root) for root in sorted(_roots(key), key=lambda root: (root not in marked, root != _own(key)))]
    return next(filter(is_writable, roots), roots[0])


def _default_folders(key: str) -> set[str]:
    """Return the folders for a key in sections of `extra_model_paths.yaml` with `is_default`.

    ComfyUI reads the file before it loads the pack, and does not keep the mark.
    """
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


def _choices(roots: list[str], wanted: Callable[[str], bool], *names: str) -> dict[str, str]:
    """Return name -> path of all choices of an input.

    Args:
        wanted: Function that gets the path of a checkpoint and returns whether to list the checkpoint.
        *names: Choices without files, which are listed first. Their path is the name.
    """
    paths = {name: name for name in names}
    for root in roots:
        for path in filter(wanted, _checkpoints(root, _DEPTH)):
            # For GLM-Image, `path` is the subfolder with the first stage. The list has the name of the parent folder.
            folder = os.path.dirname(path) if os.path.basename(path) == STAGE else path
            name = os.path.relpath(folder, root) if folder != root else os.path.basename(root)
            paths.setdefault(Path(name).as_posix(), path)
    return paths


def _is_target(path: str) -> bool:
    return is_target_file(os.path.basename(path)) or is_target_config(_config(path))


def _config(path: str) -> dict:
    """Return the `config.json` of a checkpoint, or {} if it cannot be read."""
    file = os.path.join(path, "config.json")
    return _read_config(file, _mtime(file))


def _checkpoints(folder: str, depth: int) -> Iterator[str]:
    """Yield the paths of the checkpoints below a folder.

    A checkpoint is a file with a complete target model, or a folder with a `config.json`. The subfolders of such a
    folder are not searched.
    """
    is_checkpoint, children, files = _listing(folder, _mtime(folder))
    yield from files
    if is_checkpoint:
        yield folder
    elif depth > 0:
        for child in children:
            yield from _checkpoints(child, depth - 1)


def _mtime(path: str) -> int:
    """Return the modification time in nanoseconds, or 0 if the path does not exist."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=4096)
def _listing(folder: str, mtime: int) -> tuple[bool, tuple[str, ...], tuple[str, ...]]:
    """List a folder.

    Args:
        mtime: Modification time of the folder. It is a part of the cache key, so a changed folder is read again.

    Returns:
        Whether the folder contains a `config.json`, the paths of its subfolders, and the paths of its files that are
        complete target models.
    """
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name.lower())
    except OSError:
        return False, (), ()
    folders = tuple(e.path for e in listed if e.is_dir() and not is_hidden(e.name) and not _is_loop(e))
    files = tuple(e.path for e in listed if is_target_file(e.name) and e.is_file())
    return any(e.name == "config.json" and e.is_file() for e in listed), folders, files


def _is_loop(entry: os.DirEntry) -> bool:
    """Return whether an entry is a link to a folder that contains it, and log a remark."""
    if not entry.is_symlink():
        return False
    target = Path(os.path.realpath(entry.path))
    is_loop = Path(os.path.realpath(os.path.dirname(entry.path))).is_relative_to(target)
    if is_loop:
        logging.warning("ADT-Tree: the folder %s links to itself and is not searched.", one_line(entry.path))
    return is_loop


@lru_cache(maxsize=256)
def _read_config(path: str, mtime: int) -> dict:
    """Return the contents of a `config.json`, or {} if it cannot be read. For `mtime`, see `_listing`."""
    try:
        config = parse_json(read_text(Path(path), _LARGEST_CONFIG))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
