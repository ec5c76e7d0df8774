"""Choice of the files in a folder that are the weights of its model.

Other files of weights may lie there: image decoders, other versions, files of other models. None of them may be mixed
into the model or replace parts of it.
"""

from __future__ import annotations

import re
from pathlib import Path

from ...errors import AdtError
from .json_files import read_json

_PART = re.compile(r"(.*)-(\d{1,5})-of-(\d{1,5})((?:\.\w+)*)(\.\w+)")
"""The name of a part of the weights, such as model-00001-of-00003.safetensors."""
_CODEC = re.compile(r"(vqgan|movqgan_\w+|vq_ds\d+\w*)\.safetensors")
"""Image decoders, which the families look for by name and may find in the model's own folder."""
_SHOWN = 4
"""How many files a sentence lists."""


def weight_files(folder: Path) -> list[Path]:
    """Return the files of weights of the model in a folder, without opening them; [] if there are none.

    An index chooses them; without one it is the file, or the parts, named ``model`` (of pickles ``pytorch_model``);
    else the only set. Pickles count only if no safetensors file besides an image decoder is there.

    Raises:
        AdtError: If files are missing, or several sets are there and nothing chooses one.
    """
    safetensors, pickles = sorted(folder.glob("*.safetensors")), sorted(folder.glob("pytorch_model*.bin"))
    models = [file for file in safetensors if not _CODEC.fullmatch(file.name)]
    is_pickled = bool(pickles) and not models
    stem, suffix = ("pytorch_model", ".bin") if is_pickled else ("model", ".safetensors")
    index = folder / f"{stem}{suffix}.index.json"
    if index.is_file() or index.is_symlink():
        return _indexed(index)
    sets = _sets(pickles if is_pickled else models or safetensors)
    indexes = list(folder.glob(f"*{suffix}.index.json"))
    if not any(name == stem for name, _ in sets) and len(indexes) == 1:
        return _indexed(indexes[0])
    return _only_set(folder, stem, sets)


def _indexed(index: Path) -> list[Path]:
    """Return the files that an index names."""
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(name, str) for name in listed.values()):
        raise AdtError(f"{index} lists no weights files; download it again.")
    folder, names = index.parent, set(listed.values())
    missing = names - {file.name for file in folder.iterdir()}
    if missing:
        raise AdtError(f"{folder} lacks {_few(missing)}, named in its index; download the missing files.")
    return [folder / name for name in sorted(names)]


def _sets(files: list[Path]) -> dict[tuple[str, str], list[Path]]:
    """Return files by the name of their set, and by how many parts it has: "" for a file that is no part.

    model-00001-of-00002.fp16.safetensors belongs to ("model.fp16", "00002").
    """
    sets: dict[tuple[str, str], list[Path]] = {}
    for file in files:
        part = _PART.fullmatch(file.name)
        key = (part[1] + part[4], part[3]) if part else (file.stem, "")
        sets.setdefault(key, []).append(file)
    return sets


def _only_set(folder: Path, stem: str, sets: dict[tuple[str, str], list[Path]]) -> list[Path]:
    """Return the set named ``stem``, a file before parts; else the only set.

    Raises:
        AdtError: If several sets could be it, or parts of it are missing.
    """
    if (stem, "") in sets:
        return sets[stem, ""]
    named = {key: files for key, files in sets.items() if key[0] == stem} or sets
    if len(named) > 1:
        first = [files[0].name for files in named.values()]
        problem = f"contains several sets of weights ({_few(set(first))}), and no file name or index selects one"
        remedy = f"keep only one set in the folder, or rename the right file to {stem}"
        raise AdtError(f"{folder} {problem}; {remedy}{Path(first[0]).suffix}.")
    return next((_complete(folder, files) for files in named.values()), [])


def _complete(folder: Path, files: list[Path]) -> list[Path]:
    """Return the files of a set. AdtError if one of its parts is missing."""
    part = _PART.fullmatch(files[0].name)
    if part:
        digits = len(part[2])
        wanted = {
            f"{part[1]}-{number:0{digits}}-of-{part[3]}{part[4]}{part[5]}" for number in range(1, int(part[3]) + 1)
        }
        absent = wanted - {file.name for file in files}
        if absent:
            raise AdtError(f"{folder} lacks {_few(absent)}; download the missing files.")
    return files


def _few(names: set[str]) -> str:
    """Return the first of these names, and how many more there are: a sentence with all of them would be cut off."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(name[:80] for name in sorted(names)[:_SHOWN]) + more
