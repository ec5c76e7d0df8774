"""Tokenizers of strangers: of a ``tokenizer.json`` only what is checked reaches the library, and no other file is read.

The library can be told to need any amount of memory or time, and then ends the process or panics. So parts of the
published kinds are taken, of bounded size. Truncation, padding, and what is added around a text are left out: the
prompters of the families see to these.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from tokenizers import Encoding, Tokenizer

from ..errors import AdtError, shown, told_by_library
from .checkpoint import read_json
from .patterns import is_fast

_FILES = "text_tokenizer.json", "tokenizer.json"
_MOST_TOKENS, _MOST_MERGES, _MOST_BYTES = 2**20, 2**21, 2**22
"""Of a vocabulary. The bytes are those of all tokens together."""
_LONGEST_TOKEN = 1024
_MOST_STEPS = 16
_LONGEST_REPLACEMENT = 64
"""Bytes that a table of characters may put in the place of a few; of the published one it is 33."""
_LARGEST_SCORE = 1e6

Check = Callable[[Any], bool]


def has_tokenizer(folder: Path) -> bool:
    """Does a checkpoint folder hold a tokenizer?"""
    return any((folder / name).is_file() for name in _FILES)


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder. AdtError if there is none, or if it is of no kind that is read."""
    file = next(filter(Path.is_file, (folder / name for name in _FILES)), None)
    if file is None:
        raise AdtError(f"{folder} has no tokenizer.json; download it from the model's page into that folder.")
    content = json.dumps(checked(read_json(file), file))
    with told_by_library(lambda reason: f"{file} is not a readable tokenizer ({reason}); download it again."):
        return Tokenizer.from_str(content)


def encode(tokenizer: Tokenizer, text: str, model: str) -> Encoding:
    """The tokens of a text, and of nothing around it. AdtError, naming the ``model``, if its tokenizer fails."""
    remedy = f"shorten it, or take the tokenizer.json of {model}'s page"
    with told_by_library(lambda reason: f"prompt could not be read by the tokenizer of {model} ({reason}); {remedy}."):
        return tokenizer.encode(text, add_special_tokens=False)


def checked(content: dict, file: Path) -> dict:
    """What the library is given of a ``tokenizer.json``. AdtError if that is of no published kind, or is absurd."""
    model = content.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(kind, str) or kind not in _MODELS:
        _refuse(file, f"its model is {shown(kind)}, and {' or '.join(_MODELS)} was expected")
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or len(added) > _MOST_TOKENS:
        _refuse(file, "its added_tokens are no list of tokens")
    tokens = [_fields(one, _ADDED_TOKEN, "added_tokens", file) for one in added]
    if _too_long(token.get("content") for token in tokens):
        _refuse(file, "its added_tokens are too long")
    return {
        "version": "1.0",
        "added_tokens": tokens,
        "normalizer": _steps(content.get("normalizer"), "normalizer", "normalizers", _NORMALIZERS, file),
        "pre_tokenizer": _steps(content.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers", _PRE_TOKENIZERS, file),
        "model": {"type": kind, **_fields(_without_type(model), _MODELS[kind], "model", file)},
    }


def _refuse(file: Path, problem: str) -> NoReturn:
    raise AdtError(f"{file} can't be used, {problem}; take the tokenizer.json of the model's page.")


def _without_type(part: dict) -> dict:
    return {name: value for name, value in part.items() if name != "type"}


def _fields(part: Any, known: dict[str, Check], where: str, file: Path) -> dict:
    """A part of the file, with all of its fields. AdtError if one is unknown, or is not as it should be."""
    if not isinstance(part, dict):
        _refuse(file, f"it has {shown(part)} in its {where}")
    wrong = next((name for name, value in part.items() if name not in known or not known[name](value)), None)
    if wrong is not None:
        _refuse(file, f"{wrong!r} in its {where} is {shown(part[wrong])}, which no model here has")
    return part


def _steps(part: Any, where: str, inside: str, known: dict[str, dict[str, Check]], file: Path) -> dict | None:
    """What is done to a text, one step after another. Few kinds may come twice, since the others make it longer."""
    if part is None:
        return None
    is_list = isinstance(part, dict) and part.get("type") == "Sequence"
    steps = part.get(inside) if is_list and isinstance(part, dict) else [part]
    if not isinstance(steps, list) or len(steps) > _MOST_STEPS:
        _refuse(file, f"its {where} has not 0 to {_MOST_STEPS} steps")
    kinds: list[Any] = [step.get("type") if isinstance(step, dict) else None for step in steps]
    unknown = [kind for kind in kinds if not isinstance(kind, str) or kind not in known]
    if unknown:
        _refuse(file, f"its {where} is {shown(unknown[0])}, which no model here has")
    if any(kinds.count(kind) > 1 and kind not in _REPEATED for kind in kinds):
        _refuse(file, f"its {where} does the same twice")
    if len(_LENGTHENING.intersection(kinds)) > 1:
        _refuse(file, f"its {where} makes texts longer in two ways")
    found = [
        {"type": kind, **_fields(_without_type(step), known[kind], f"{where} {kind}", file)}
        for kind, step in zip(kinds, steps)
    ]
    return {"type": "Sequence", inside: found} if is_list else found[0]


def _too_long(tokens: Iterable[object]) -> bool:
    """Is one of these no token, or too long, or are all together?"""
    lengths = [len(one.encode("utf-8", "surrogatepass")) if isinstance(one, str) else _MOST_BYTES for one in tokens]
    return max(lengths, default=0) > _LONGEST_TOKEN or sum(lengths) > _MOST_BYTES


def _switch(value: object) -> bool:
    return type(value) is bool


def _nothing(value: object) -> bool:
    return value is None or value == "" or (type(value) in (int, float) and value == 0)


def _words(*choices: str) -> Check:
    return lambda value: isinstance(value, str) and value in choices


def _text(least: int, most: int) -> Check:
    return lambda value: isinstance(value, str) and least <= len(value) <= most


def _token_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST_TOKENS


def _pattern(value: Any) -> bool:
    """{"String": a text} or {"Regex": a pattern}."""
    if not isinstance(value, dict) or len(value) != 1:
        return False
    ((kind, said),) = value.items()
    return isinstance(said, str) and (is_fast(said) if kind == "Regex" else kind == "String" and 1 <= len(said) <= 64)


def _charsmap(value: object) -> bool:
    """A table of characters, as sentencepiece makes it: the length of a trie, the trie, and texts that end in zeros."""
    try:
        table = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        return False
    texts = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
    return len(texts) > 1 and max(map(len, texts)) <= _LONGEST_REPLACEMENT


def _vocabulary(value: Any) -> bool:
    """{token: id}"""
    usable = isinstance(value, dict) and len(value) <= _MOST_TOKENS
    return usable and all(map(_token_id, value.values())) and not _too_long(value)


def _merges(value: Any) -> bool:
    """["a b", ...] or [["a", "b"], ...]"""
    if not isinstance(value, list) or len(value) > _MOST_MERGES:
        return False
    pairs = () if set(map(type, value)) == {str} else value
    return all(isinstance(pair, list) and len(pair) == 2 and all(type(x) is str for x in pair) for pair in pairs)


def _scored(value: Any) -> bool:
    """[[token, score], ...]"""
    if not isinstance(value, list) or len(value) > _MOST_TOKENS:
        return False
    pairs = [pair for pair in value if isinstance(pair, list) and len(pair) == 2]
    numbers = all(type(score) in (int, float) and abs(score) <= _LARGEST_SCORE for _, score in pairs)
    return len(pairs) == len(value) and numbers and not _too_long(token for token, _ in pairs)


_BEHAVIORS = _words("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
_ADDED_TOKEN: dict[str, Check] = {
    "id": _token_id,
    "content": _text(1, _LONGEST_TOKEN),
    **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), _switch),
}
_NORMALIZERS: dict[str, dict[str, Check]] = {
    **{kind: {} for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")},
    "Strip": {"strip_left": _switch, "strip_right": _switch},
    "Prepend": {"prepend": _text(0, 4)},
    "Replace": {"pattern": _pattern, "content": _text(0, 1)},
    "Precompiled": {"precompiled_charsmap": _charsmap},
}
_PRE_TOKENIZERS: dict[str, dict[str, Check]] = {
    "ByteLevel": dict.fromkeys(("add_prefix_space", "trim_offsets", "use_regex"), _switch),
    "Split": {"pattern": _pattern, "behavior": _BEHAVIORS, "invert": _switch},
    "Digits": {"individual_digits": _switch},
    "Punctuation": {"behavior": _BEHAVIORS},
    "WhitespaceSplit": {},
    "Metaspace": {
        "replacement": _text(1, 1),
        "str_rep": _text(1, 1),
        "prepend_scheme": _words("first", "never", "always"),
        **dict.fromkeys(("add_prefix_space", "split"), _switch),
    },
}
_REPEATED = ("Replace", "Split")
_LENGTHENING = {"NFC", "NFD", "NFKC", "NFKD", "Precompiled"}
"""Normalizers that make a text up to 20 times as long. One after another, they make of a prompt millions of tokens."""
_MODELS: dict[str, dict[str, Check]] = {
    "BPE": {
        "vocab": _vocabulary,
        "merges": _merges,
        "unk_token": lambda value: value is None or _text(1, _LONGEST_TOKEN)(value),
        **dict.fromkeys(("dropout", "continuing_subword_prefix", "end_of_word_suffix"), _nothing),
        **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), _switch),
    },
    "WordLevel": {"vocab": _vocabulary, "unk_token": _text(1, _LONGEST_TOKEN)},
    "Unigram": {
        "vocab": _scored,
        "unk_id": lambda value: value is None or _token_id(value),
        "byte_fallback": _switch,
    },
}
