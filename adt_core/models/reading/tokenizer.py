"""Tokenizers of checkpoints, checked before the tokenizers library reads them.

A malicious ``tokenizer.json`` can make the library use any amount of memory or time, or crash the process. This module
therefore accepts only components that published tokenizers have, with limited sizes and with published regular
expressions. It ignores the settings for truncation, padding and templates, because this package does not use them: the
prompters of the families check lengths and add special tokens. It reads no other file of a tokenizer.

A component is one of the JSON objects in a ``tokenizer.json``, such as the normalizer. A normalizer or pre-tokenizer
consists of one or more steps.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from tokenizers import Encoding, Tokenizer

from ...errors import AdtError, shown, wrap_library_errors
from ...untrusted import SWITCH, Kind, list_of, mapping, number, one_of, optional, row, text, whole_number
from .fields import read_json

_FILES = ("text_tokenizer.json", "tokenizer.json")
_MOST_TOKENS = 2**20
_MOST_MERGES = 2**21
_MOST_BYTES = 2**22  # maximum sum of the lengths of all tokens, in bytes
_LONGEST_TOKEN = 1024  # in bytes
_MOST_STEPS = 16  # maximum number of steps of a component
_LONGEST_REPLACEMENT = 64
"""Maximum length in bytes of a replacement in a charsmap, a table that replaces characters with texts. The longest
replacement in the published charsmap has 33 bytes."""
_LARGEST_SCORE = 1e6

_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_WORD = r"[^\r\n\p{L}\p{N}]?"
PUBLISHED_PATTERNS = frozenset(
    (
        # Chameleon, Anole, Lumina-mGPT
        r"<sentinel:[0-9]+>",
        r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        # T5
        " {2,}",
        # DeepSeek, Janus-Pro
        r"[\r\n]",
        r"\s+$",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        r"\p{N}",
        r"\p{N}+",
        r"\p{N}{1,3}",
        # GPT-2, with and without the last alternative
        rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+",
        rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)",
        # GPT-4: Emu3 and Lumina-mGPT 2.0 with single digits, GLM-Image with up to three digits
        rf"(?i:{_CONTRACTIONS})|{_WORD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
        rf"(?i:{_CONTRACTIONS})|{_WORD}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
        # GPT-4o
        rf"{_WORD}{_UPPER}*{_LOWER}+(?i:{_CONTRACTIONS})?|{_WORD}{_UPPER}+{_LOWER}*(?i:{_CONTRACTIONS})?|"
        rf"\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
    )
)
"""Regular expressions of published tokenizers. Other expressions may take exponential time."""
_CHARACTER_RUN = re.compile(r"(?:\\s\?)?\[[^\[\]\\^&]{1,2000}\]\+?")
"""Other accepted regular expressions: one or more characters from a list, as in DeepSeek's tokenizer. They can't
backtrack, so they can't take exponential time."""


def has_tokenizer(folder: Path) -> bool:
    """Return whether a checkpoint folder contains a tokenizer."""
    return any((folder / name).is_file() for name in _FILES)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer of a checkpoint folder.

    Raises:
        AdtError: If the folder contains no tokenizer, or if the tokenizer has unsupported components.
    """
    files = [folder / name for name in _FILES]
    file = next((file for file in files if file.is_file() or file.is_symlink()), None)
    if file is None:
        raise AdtError("tokenizer.missing", folder=folder)
    return tokenizer_from_json(read_json(file), file)


def tokenizer_from_json(tokenizer: dict, file: Path) -> Tokenizer:
    """Return the tokenizer with the content of a ``tokenizer.json``, or raise an AdtError if it is not supported."""
    content = json.dumps(_checked(tokenizer, file))
    with wrap_library_errors("tokenizer.unreadable", file=file):
        return Tokenizer.from_str(content)


def encode(tokenizer: Tokenizer, text: str, model: str) -> Encoding:
    """Tokenize a text without adding special tokens, or raise an AdtError if the tokenizer fails."""
    with wrap_library_errors("tokenizer.failed", model=model):
        return tokenizer.encode(text, add_special_tokens=False)


def _checked(content: dict, file: Path) -> dict:
    """Check a ``tokenizer.json`` and return a copy that contains only the components that the library needs."""
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
    raise AdtError("tokenizer.unusable", file=file, problem=problem)


def _kind(part: object) -> Any:
    """Return the field "type" of a component; None if the component is not an object or has no such field."""
    return part.get("type") if isinstance(part, dict) else None


def _fields(part: Any, kinds: dict[str, Kind], where: str, file: Path) -> dict:
    """Check the fields of a component and return the component.

    Args:
        kinds: Allowed fields of the component, with the types and bounds of their values.

    Raises:
        AdtError: If a field is unknown or has an unsupported value.
    """
    if not isinstance(part, dict):
        _refuse(file, f"its {where} contains {shown(part)}, which is not an object")
    for name, value in part.items():
        if name in kinds and kinds[name].fits(value):
            continue
        if isinstance(value, dict) and isinstance(value.get("Regex"), str):
            pattern = shown(value["Regex"])
            _refuse(file, f"its {where} has the regular expression {pattern}, which no published tokenizer has")
        _refuse(file, f"{name!r} in its {where} is {shown(value)}, which is not supported")
    return part


def _typed(part: dict, kind: str, kinds: dict[str, dict[str, Kind]], where: str, file: Path) -> dict:
    """Check the fields of a component of type ``kind`` and return the component."""
    return _fields(part, {"type": one_of(kind), **kinds[kind]}, where, file)


def _steps(part: Any, where: str, inside: str, kinds: dict[str, dict[str, Kind]], file: Path) -> dict | None:
    """Check all steps of a normalizer or pre-tokenizer and return it.

    Most types of steps may occur only once, because each step may make the text longer.

    Args:
        part: The normalizer or pre-tokenizer: one step or a sequence of steps; None if the tokenizer has none.
        inside: Name of the field that contains the steps of a sequence.
        kinds: Allowed types of steps, with the allowed fields of each type.
    """
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
    """Return whether any token is too long or not a string, or whether all tokens together are too long."""
    lengths = [len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else _MOST_BYTES for text in tokens]
    return max(lengths, default=0) > _LONGEST_TOKEN or sum(lengths) > _MOST_BYTES


def _is_nothing(value: object) -> bool:
    return value is None or value == "" or (type(value) in (int, float) and value == 0)


def _is_pattern(value: Any) -> bool:
    """Return whether a value is {"String": a short text} or {"Regex": an accepted regular expression}."""
    if not isinstance(value, dict) or len(value) != 1:
        return False
    ((kind, pattern),) = value.items()
    if not isinstance(pattern, str):
        return False
    if kind == "Regex":
        return pattern in PUBLISHED_PATTERNS or _CHARACTER_RUN.fullmatch(pattern) is not None
    return kind == "String" and 1 <= len(pattern) <= 64


def _is_charsmap(value: object) -> bool:
    """Return whether a value is a charsmap of sentencepiece with short replacements, encoded as base64.

    A charsmap consists of the length of a trie (4 bytes), the trie, and the replacements, each followed by a zero byte.
    """
    try:
        table = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        return False
    texts = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
    return len(texts) > 1 and max(map(len, texts)) <= _LONGEST_REPLACEMENT


def _special(fits: Any) -> Kind:
    """Return a kind of value without a description, because the error messages of this module use no descriptions."""
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
"""Two formats for the merges of a BPE model: ["a b", ...] and [["a", "b"], ...]."""
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
"""Normalizers that can make a text up to 20 times as long. Several of them in sequence could lengthen a prompt to
millions of tokens."""
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
