"""Tokenizers of strangers: of a ``tokenizer.json`` only what is checked reaches the library, and no other file is read.

The library can be told to need any amount of memory or time, and then ends the process or panics. So parts of the
published kinds are taken, of bounded size. Truncation, padding, and what is added around a text are left out: the
prompters of the families see to these.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from tokenizers import Encoding, Tokenizer

from ...errors import AdtError, shown, wrap_library_errors
from ...untrusted import SWITCH, Kind, list_of, mapping, number, one_of, optional, row, text, whole_number
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


def has_tokenizer(folder: Path) -> bool:
    """Does a checkpoint folder hold a tokenizer?"""
    return any((folder / name).is_file() for name in _FILES)


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder. AdtError if there is none, or if it is of no kind that is read."""
    files = [folder / name for name in _FILES]
    file = next((file for file in files if file.is_file() or file.is_symlink()), None)
    if file is None:
        raise AdtError(f"{folder} has no tokenizer.json; download it from the model's page to this folder.")
    return made_of(read_json(file), file)


def made_of(tokenizer: dict, file: Path) -> Tokenizer:
    """The tokenizer that a ``tokenizer.json`` describes, which is ``file`` or in it. AdtError as above."""
    content = json.dumps(_checked(tokenizer, file))
    with wrap_library_errors(lambda reason: f"{file} is not a readable tokenizer ({reason}); download it again."):
        return Tokenizer.from_str(content)


def encode(tokenizer: Tokenizer, text: str, model: str) -> Encoding:
    """The tokens of a text, and of nothing around it. AdtError, naming the ``model``, if its tokenizer fails."""
    remedy = f"shorten it, or use the tokenizer.json published with {model}"
    with wrap_library_errors(
        lambda reason: f"prompt could not be tokenized by the tokenizer of {model} ({reason}); {remedy}."
    ):
        return tokenizer.encode(text, add_special_tokens=False)


def _checked(content: dict, file: Path) -> dict:
    """What the library is given of a ``tokenizer.json``. AdtError if that is of no published kind, or is absurd."""
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or len(added) > _MOST_TOKENS:
        _refuse(file, "its added_tokens are not a list of tokens")
    tokens = [_fields(token, _ADDED_TOKEN, "added_tokens", file) for token in added]
    if _too_long(token.get("content") for token in tokens):
        _refuse(file, "its added_tokens are too long")
    kind = _kind(content.get("model"))
    if not one_of(*_MODELS).fits(kind):
        _refuse(file, f"its model is {shown(kind)}, but {' or '.join(_MODELS)} was expected")
    return {
        "version": "1.0",
        "added_tokens": tokens,
        "normalizer": _steps(content.get("normalizer"), "normalizer", "normalizers", _NORMALIZERS, file),
        "pre_tokenizer": _steps(content.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers", _PRE_TOKENIZERS, file),
        "model": _typed(content["model"], kind, _MODELS, "model", file),
    }


def _refuse(file: Path, problem: str) -> NoReturn:
    raise AdtError(f"{file} can't be used because {problem}; use the tokenizer.json published with the model.")


def _kind(part: object) -> Any:
    """What a part says that it is."""
    return part.get("type") if isinstance(part, dict) else None


def _fields(part: Any, kinds: dict[str, Kind], where: str, file: Path) -> dict:
    """A part of the file. AdtError if one of its fields is unknown, or is not as it should be."""
    if not isinstance(part, dict):
        _refuse(file, f"its {where} contains {shown(part)}, which is not an object")
    for name, value in part.items():
        if name not in kinds or not kinds[name].fits(value):
            _refuse(file, f"{name!r} in its {where} is {shown(value)}, which is not supported")
    return part


def _typed(part: dict, kind: str, kinds: dict[str, dict[str, Kind]], where: str, file: Path) -> dict:
    """The same of a part that says which of the ``kinds`` it is, and so which fields it may have."""
    return _fields(part, {"type": one_of(kind), **kinds[kind]}, where, file)


def _steps(part: Any, where: str, inside: str, kinds: dict[str, dict[str, Kind]], file: Path) -> dict | None:
    """What is done to a text, one step after another. Few kinds may come twice, since the others make it longer."""
    if part is None:
        return None
    is_list = _kind(part) == "Sequence"
    steps = part.get(inside) if is_list else [part]
    if not isinstance(steps, list) or len(steps) > _MOST_STEPS:
        _refuse(file, f"its {where} is not a list of 0 to {_MOST_STEPS} steps")
    names = [_kind(step) for step in steps]
    for name in names:
        if not one_of(*kinds).fits(name):
            _refuse(file, f"its {where} is {shown(name)}, which is not supported")
        if names.count(name) > 1 and name not in _REPEATED:
            _refuse(file, f"its {where} contains {name} twice")
    if len(_LENGTHENING.intersection(names)) > 1:
        _refuse(file, f"its {where} has two steps that lengthen the text")
    checked = [_typed(step, name, kinds, f"{where} {name}", file) for name, step in zip(names, steps)]
    return {"type": "Sequence", inside: checked} if is_list else checked[0]


def _too_long(tokens: Iterable[object]) -> bool:
    """Is one of these no token, or too long, or are all together?"""
    lengths = [len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else _MOST_BYTES for text in tokens]
    return max(lengths, default=0) > _LONGEST_TOKEN or sum(lengths) > _MOST_BYTES


def _is_nothing(value: object) -> bool:
    return value is None or value == "" or (type(value) in (int, float) and value == 0)


def _is_pattern(value: Any) -> bool:
    """{"String": a text} or {"Regex": a pattern}."""
    if not isinstance(value, dict) or len(value) != 1:
        return False
    ((kind, pattern),) = value.items()
    if not isinstance(pattern, str):
        return False
    return is_fast(pattern) if kind == "Regex" else kind == "String" and 1 <= len(pattern) <= 64


def _is_charsmap(value: object) -> bool:
    """A table of characters, as sentencepiece makes it: the length of a trie, the trie, and texts that end in zeros."""
    try:
        table = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        return False
    texts = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
    return len(texts) > 1 and max(map(len, texts)) <= _LONGEST_REPLACEMENT


def _special(fits: Any) -> Kind:
    """A kind that has no words: what is wrong with a tokenizer is said of the file."""
    return Kind("", "", fits)


_NOTHING = _special(_is_nothing)
_PATTERN = _special(_is_pattern)
_TOKEN = text(1, _LONGEST_TOKEN)
_TOKEN_ID = whole_number(0, _MOST_TOKENS - 1)
_ANY = text(0, _MOST_BYTES)
_IDS = mapping(_ANY, _TOKEN_ID, 0, _MOST_TOKENS)
_VOCABULARY = _special(lambda value: _IDS.fits(value) and not _too_long(value))
_SCORES = list_of(row(_ANY, number(-_LARGEST_SCORE, _LARGEST_SCORE)), 0, _MOST_TOKENS)
_MERGES = list_of(_ANY, 0, _MOST_MERGES), list_of(row(_ANY, _ANY), 0, _MOST_MERGES)
"""["a b", ...] and [["a", "b"], ...]"""
_BEHAVIOR = one_of("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
_ADDED_TOKEN = {
    "id": _TOKEN_ID,
    "content": _TOKEN,
    **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), SWITCH),
}
_NORMALIZERS: dict[str, dict[str, Kind]] = {
    **{kind: {} for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")},
    "Strip": {"strip_left": SWITCH, "strip_right": SWITCH},
    "Prepend": {"prepend": text(0, 4)},
    "Replace": {"pattern": _PATTERN, "content": text(0, 1)},
    "Precompiled": {"precompiled_charsmap": _special(_is_charsmap)},
}
_PRE_TOKENIZERS: dict[str, dict[str, Kind]] = {
    "ByteLevel": dict.fromkeys(("add_prefix_space", "trim_offsets", "use_regex"), SWITCH),
    "Split": {"pattern": _PATTERN, "behavior": _BEHAVIOR, "invert": SWITCH},
    "Digits": {"individual_digits": SWITCH},
    "Punctuation": {"behavior": _BEHAVIOR},
    "WhitespaceSplit": {},
    "Metaspace": {
        "replacement": text(1, 1),
        "str_rep": text(1, 1),
        "prepend_scheme": one_of("first", "never", "always"),
        **dict.fromkeys(("add_prefix_space", "split"), SWITCH),
    },
}
_REPEATED = ("Replace", "Split")
_LENGTHENING = {"NFC", "NFD", "NFKC", "NFKD", "Precompiled"}
"""Normalizers that make a text up to 20 times as long. One after another, they make of a prompt millions of tokens."""
_MODELS: dict[str, dict[str, Kind]] = {
    "BPE": {
        "vocab": _VOCABULARY,
        "merges": _special(lambda value: any(kind.fits(value) for kind in _MERGES)),
        "unk_token": optional(_TOKEN),
        **dict.fromkeys(("dropout", "continuing_subword_prefix", "end_of_word_suffix"), _NOTHING),
        **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), SWITCH),
    },
    "WordLevel": {"vocab": _VOCABULARY, "unk_token": _TOKEN},
    "Unigram": {
        "vocab": _special(lambda value: _SCORES.fits(value) and not _too_long(token for token, _ in value)),
        "unk_id": optional(_TOKEN_ID),
        "byte_fallback": SWITCH,
    },
}
