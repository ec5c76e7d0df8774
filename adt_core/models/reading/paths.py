"""Paths of checkpoints: the folder or file that a path refers to, its name, and the weights files in it.

A folder may also contain image decoders, other versions of the weights, and files of other models. The loader must not
mix tensors of such files into the model.

A set is a group of files that contains all weights of a model: one file, or several shards.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ...errors import AdtError
from ...files import check_utf8, list_visible, read_text
from ...settings import BUNDLED
from .fields import read_json
from .file_checks import PICKLES, refuse_dangling

STAGE = "vision_language_encoder"
"""Folder of the first of two stages, in a checkpoint with the layout of diffusers (GLM-Image)."""
_BUNDLED_FOLDER = Path(__file__).parents[2] / BUNDLED
_PART = re.compile(r"(.*)-(\d{1,5})-of-(\d{1,5})((?:\.\w+)*)(\.\w+)")
"""Name of a shard of the weights, such as model-00001-of-00003.safetensors."""
_CODEC = re.compile(r"(vqgan|movqgan_\w+|vq_ds\d+\w*)\.safetensors")
"""Names of codec files. A codec in a model's folder is not one of the model's weights files. Families find it by its
name."""
_LISTED_FILES = 4  # maximum number of file names in an error message


def resolve(path: str | Path, role: str) -> Path:
    """Return the folder or file of the checkpoint that a user's path refers to.

    Args:
        path: "bundled", a folder or a file, as entered by the user.
        role: "target" or "drafter".

    Raises:
        AdtError: If the path does not exist, or is a weights file that does not belong to the model in its folder.
    """
    place = _BUNDLED_FOLDER / role if str(path) == BUNDLED else Path(os.path.expanduser(path))
    if not place.exists():
        refuse_dangling(place)
        bare = str(path).strip("\"'")
        if bare and os.path.exists(os.path.expanduser(bare)):
            raise AdtError("path.quoted", role=role, path=path)
        names = "'bundled', 'jacobi'" if role == "drafter" else "'bundled'"
        raise AdtError("path.missing", role=role, path=path, names=names)
    check_utf8(place, f"{role} {str(path)!r}")
    folder = _complete_folder(place)
    if folder != place and place.suffix in (".safetensors", *PICKLES) and place not in weight_files(folder):
        raise AdtError("path.not_weights", role=role, path=path, folder=folder)
    place = _newest_snapshot(folder) if (folder / "snapshots").is_dir() else folder
    return place / STAGE if is_there(place / STAGE / "config.json") else place


def is_there(file: Path) -> bool:
    """Return whether a path is a file or a symbolic link. If a link's target is missing, the reader raises an error."""
    return file.is_file() or file.is_symlink()


def _complete_folder(path: Path) -> Path:
    """Return the folder of a checkpoint, given one of its files, such as model.safetensors.

    For the folder ``snapshots`` in Hugging Face's cache, return the folder ``models--...`` that contains it. Return any
    other path unchanged.
    """
    if path.name == "snapshots" and path.parent.name.startswith("models--"):
        return path.parent
    is_part = path.name == "config.json" or path.name.startswith(("model", "pytorch_model"))
    return path.parent if is_part and path.is_file() and (path.parent / "config.json").is_file() else path


def _newest_snapshot(cache: Path) -> Path:
    """Return a snapshot in a ``models--...`` folder: the one that ``refs/main`` names, or else the newest one."""
    folders = filter(Path.is_dir, (cache / "snapshots").iterdir())
    snapshots = sorted(folders, key=lambda folder: folder.stat().st_mtime)
    if not snapshots:
        raise AdtError("cache.unfinished", path=cache)
    main = cache / "refs" / "main"
    named = read_text(main, 1, errors="replace").strip() if main.is_file() else ""
    return next((folder for folder in snapshots if folder.name == named), snapshots[-1])


def name_of(path: Path) -> str:
    """Return the name of a checkpoint's folder or file. In Hugging Face's cache, return the repository's name."""
    name = _outer(path).name
    return name.rpartition("--")[2] if name.startswith("models--") else name


def home_of(path: Path) -> Path:
    """Return the folder that contains a checkpoint, and usually other checkpoints."""
    return _outer(path).parent


def _outer(path: Path) -> Path:
    """Return a checkpoint's own folder or file; for one in Hugging Face's cache, its folder ``models--...``."""
    path = _complete_folder(path)
    path = path.parent if path.name == STAGE else path
    return path.parents[1] if path.parent.name == "snapshots" else path


def weight_files(folder: Path) -> list[Path]:
    """Return the weights files of the model in a folder, without opening the weights files; [] if there are none.

    The first of these rules that applies selects the files:

    1. the index ``model.safetensors.index.json``: the files that it names;
    2. the single file or the shards named ``model``;
    3. the only index with another name: the files that it names;
    4. the only set in the folder.

    If the folder contains no safetensors files except codecs, the rules apply to pickles, with the name
    ``pytorch_model`` and the suffix ``.bin``.

    Raises:
        AdtError: If files are missing, or if no rule selects one of several sets.
    """
    safetensors = list_visible(folder, "*.safetensors")
    pickles = list_visible(folder, "pytorch_model*.bin")
    models = [file for file in safetensors if not _CODEC.fullmatch(file.name)]
    is_pickled = bool(pickles) and not models
    stem, suffix = ("pytorch_model", ".bin") if is_pickled else ("model", ".safetensors")
    index = folder / f"{stem}{suffix}.index.json"
    if is_there(index):
        return _indexed(index)
    sets = _sets(pickles if is_pickled else models or safetensors)
    indexes = list_visible(folder, f"*{suffix}.index.json")
    if not any(name == stem for name, _ in sets) and len(indexes) == 1:
        return _indexed(indexes[0])
    return _only_set(folder, stem, sets)


def _indexed(index: Path) -> list[Path]:
    """Return the files that an index names, or raise an AdtError if one of them is missing."""
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(name, str) for name in listed.values()):
        raise AdtError("index.empty", index=index)
    folder = index.parent
    names = set(listed.values())
    missing = names - {file.name for file in folder.iterdir()}
    if missing:
        raise AdtError("index.missing_files", folder=folder, missing=_abridged(missing))
    return [folder / name for name in sorted(names)]


def _sets(files: list[Path]) -> dict[tuple[str, str], list[Path]]:
    """Group files by set. Each key is a set's name and number of shards, which is "" for a file that is no shard.

    For example, model-00001-of-00002.fp16.safetensors belongs to ("model.fp16", "00002").
    """
    sets: dict[tuple[str, str], list[Path]] = {}
    for file in files:
        part = _PART.fullmatch(file.name)
        key = (part[1] + part[4], part[3]) if part else (file.stem, "")
        sets.setdefault(key, []).append(file)
    return sets


def _only_set(folder: Path, stem: str, sets: dict[tuple[str, str], list[Path]]) -> list[Path]:
    """Return the files of the set named ``stem``, or of the only set if none has this name; [] if there is no set.

    A single file named ``stem`` is preferred to shards of this name.

    Raises:
        AdtError: If several sets are possible, or if shards are missing.
    """
    if (stem, "") in sets:
        return sets[stem, ""]
    named = {key: files for key, files in sets.items() if key[0] == stem} or sets
    if len(named) > 1:
        first = [files[0].name for files in named.values()]
        raise AdtError(
            "weights.several_sets", folder=folder, suffix=Path(first[0]).suffix, stem=stem, names=_abridged(set(first))
        )
    files = next(iter(named.values()), [])
    absent = missing_shards({file.name for file in files})
    if absent:
        raise AdtError("index.missing_parts", folder=folder, missing=_abridged(absent))
    return files


def missing_shards(names: set[str]) -> set[str]:
    """Return the names of the missing shards of the first set that lacks shards, among the names of weights files."""
    complete: set[str] = set()
    for part in filter(None, map(_PART.fullmatch, sorted(names))):
        if part[0] not in complete:
            digits = len(part[2])
            wanted = {f"{part[1]}-{n:0{digits}}-of-{part[3]}{part[4]}{part[5]}" for n in range(1, int(part[3]) + 1)}
            if wanted - names:
                return wanted - names
            complete |= wanted
    return set()


def _abridged(names: set[str]) -> str:
    """Return the first names, and the number of the others, so that an error message does not become too long."""
    more = f" and {len(names) - _LISTED_FILES} more" if len(names) > _LISTED_FILES else ""
    return ", ".join(name[:80] for name in sorted(names)[:_LISTED_FILES]) + more
