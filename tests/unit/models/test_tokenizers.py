"""Tests of tokenizers from untrusted checkpoints.

Published kinds of tokenizers must be read. Dangerous tokenizers must never be passed to the library `tokenizers`.
"""

import base64
import json
import time

import pytest
import tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from adt_core.errors import wrap_library_errors
from adt_core.models import prompter
from adt_core.models.reading import tokenizer as reading
from adt_core.models.reading.tokenizer import encode, load_tokenizer
from model_making.tokenise import make_tokenizer
from tests.layouts.tokens import tokenizer_with
from tests.raising import raises_key
from tests.tiny import byte_tokenizer

LETTERS = "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆᴀ-ᴫᵫ-ᵷᵹ-ᶚﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏]+"
GPT_4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXT = "A blue sailboat,  in the middle of 12 calm lakes!\n\n  It's 3 o'clock; naïve, 猫 ①ﷺ <sentinel:12> IMGIMGABZ   "


def table(*texts: str) -> str:
    """Return a charsmap in the format of sentencepiece, with an empty trie."""
    blob = b"".join(text.encode() + b"\0" for text in texts)
    return base64.b64encode((4).to_bytes(4, "little") + bytes(4) + blob).decode()


def split(pattern: str, behavior: str = "isolated"):
    return pre_tokenizers.Split(tokenizers.Regex(pattern), behavior)


def byte_level(*before, normalizer=None) -> Tokenizer:
    tokenizer = tokenizer_with(["<s>", "<reserved08706>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*before, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not before)]
    )
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def unigram() -> Tokenizer:
    """Return a tokenizer similar to T5's."""
    letters = sorted(set(TEXT) - {" ", "\n"})
    made = Tokenizer(
        models.Unigram(
            [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)] + [(x, -3.5) for x in letters], 2, False
        )
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Strip(left=False), normalizers.Replace(tokenizers.Regex(" {2,}"), "▁")]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Metaspace()
    made.post_processor = processors.TemplateProcessing("$A </s>", None, [("</s>", 1)])
    return made


def published() -> dict[str, Tokenizer]:
    """Return tokenizers of the kinds that the families publish."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    chinese = "[一-龥ࠀ-一가-퟿]+"
    deepseek = [split(x) for x in ("[\r\n]", LETTERS, "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", chinese)]
    marks = [split(x) for x in ("<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )")]
    return {
        "bundled": make_tokenizer(),
        "Emu3": byte_level(),
        "Chameleon": byte_level(*marks, digits, pre_tokenizers.Punctuation()),
        "Janus": byte_level(*deepseek, digits, normalizer=normalizers.Sequence([])),
        "GPT-4": byte_level(split(GPT_4), normalizer=normalizers.NFC()),
        "T5": unigram(),
    }


@pytest.mark.parametrize("name", published())
def test_published_kinds_are_read_and_give_the_same_tokens(tmp_path, name):
    tokenizer = published()[name]
    expected = tokenizer.encode(TEXT, add_special_tokens=False)
    tokenizer.enable_padding(length=512)
    tokenizer.enable_truncation(5)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = encode(load_tokenizer(tmp_path), TEXT, "it")
    assert found.ids == expected.ids and found.offsets == expected.offsets and len(found.ids) > 20


STEP = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
HOSTILE = {
    "growing": {"normalizer": {"type": "Sequence", "normalizers": [STEP] * 16}},
    "one that grows": {"normalizer": STEP},
    "from nothing": {"normalizer": {**STEP, "pattern": {"String": ""}}},
    "a long table": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": table("x" * 9999)}},
    "no table": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"}},
    "many steps": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 17}},
    "steps in steps": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": []}]}},
    "growing in two ways": {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Precompiled", "precompiled_charsmap": table("\ufdfa" * 21)}, {"type": "NFKD"}],
        }
    },
    "bytes of bytes": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 16}},
    "slow": {
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a*)*b"}, "behavior": "Isolated", "invert": False}
    },
    "unknown": {"pre_tokenizer": {"type": "Evil"}},
    "no kind": {"pre_tokenizer": {}},
    "a list": {"pre_tokenizer": [BYTES]},
    "unknown field": {"pre_tokenizer": {**BYTES, "more": 1}},
    "chance": {"model": {"dropout": 0.5}},
    "another model": {"model": {"type": "WordPiece"}},
    "no model": {"model": None},
    "no kind of model": {"model": {"type": []}},
    "an id": {"model": {"vocab": {"a": 2**40}}},
    "a negative id": {"model": {"vocab": {"a": -1}}},
    "a long token": {"model": {"vocab": {"a" * 2000: 0}}},
    "odd merges": {"model": {"merges": [["a", 1]]}},
    "an odd token": {"added_tokens": [{"id": 2**40, "content": "x"}]},
    "an empty token": {"added_tokens": [{"id": 1, "content": ""}]},
    "no tokens": {"added_tokens": {"a": 1}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_dangerous_content_never_reaches_the_library(tmp_path, monkeypatch, name):
    content = json.loads(byte_tokenizer().to_str())
    for part, value in HOSTILE[name].items():
        content[part] = {**content[part], **value} if part == "model" and value else value
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr(reading, "Tokenizer", None)
    with raises_key("tokenizer.unusable", file="tokenizer.json"):
        load_tokenizer(tmp_path)


def test_padding_and_templates_are_ignored(tmp_path):
    """Padding to 2**40 would end the process, and padding to a multiple of 2**62 would cause a panic.

    A template could repeat the text.
    """
    tokenizer = json.loads(unigram().to_str())
    padding = {"direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}
    tokenizer["padding"] = {**padding, "strategy": {"Fixed": 2**40}, "pad_to_multiple_of": 2**62}
    tokenizer["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 2**40}
    tokenizer["post_processor"]["single"] *= 999
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    assert encode(load_tokenizer(tmp_path), "It", "T5").tokens == ["▁", "I", "t"]


SLOW = [r"(a+)+b", r"(a|a)*b", r"\s+x", r"a+b", r"a*", r"", r"(a)\1", r"[[a]b]", r"[a", r"(?=a)b", r".*a"]
SLOW += [r"[ab]+c", r"[^ab]+[ab]", "[" + "a" * 2001 + "]+"]


@pytest.mark.parametrize("pattern", SLOW, ids=range(len(SLOW)))
def test_other_patterns_are_refused(tmp_path, pattern):
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    content = {**json.loads(byte_tokenizer().to_str()), "pre_tokenizer": step}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with raises_key("tokenizer.unusable", problem="its pre_tokenizer Split has the regular expression '"):
        load_tokenizer(tmp_path)


CHARACTER_RUNS = ["[一-龥ࠀ-一가-퟿]+", "\\s?[!-/:-~！-／：-～‘-‟　-。]+", LETTERS, "[\r\n]"]
ACCEPTED = sorted({*reading.PUBLISHED_PATTERNS, *CHARACTER_RUNS, GPT_4})


@pytest.mark.parametrize("pattern", ACCEPTED, ids=range(len(ACCEPTED)))
def test_accepted_patterns_are_fast_on_every_text(tmp_path, pattern):
    """Each text has the maximum length, one kind of character, and an end that forces backtracking."""
    tokenizer = byte_level(split(pattern))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    for unit, end in ((" ", "x"), ("a", "!"), ("\n ", "x"), ("1", "x"), ("<sentinel:1", ""), ("IMGIMGA", "")):
        text = (unit * prompter.MOST_CHARACTERS)[: prompter.MOST_CHARACTERS - 1] + end
        began = time.process_time()
        tokenizer.encode(text)
        assert time.process_time() - began < 3


def test_a_panic_of_the_library_becomes_an_error():
    """Panics of Rust aren't subclasses of Exception. They would end the worker of a server."""
    panicking = byte_tokenizer()
    panicking.enable_padding(pad_to_multiple_of=2**62)
    with raises_key("tokenizer.failed", model="M"):
        encode(panicking, "a cat", "M")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), type("Interrupted", (BaseException,), {})()])
def test_interrupts_are_not_converted(error):
    with pytest.raises(type(error)), wrap_library_errors("tokenizer.unreadable", file="a.json"):
        raise error


def test_a_very_long_prompt_is_refused_before_tokenization():
    assert len(prompter.stripped("x" * prompter.MOST_CHARACTERS)) == prompter.MOST_CHARACTERS
    with raises_key("prompt.too_many_characters", count=10001, most=10000):
        prompter.stripped("x" * (prompter.MOST_CHARACTERS + 1))


def test_a_token_outside_the_vocabulary_is_refused():
    """On a GPU, an id outside of the embedding would make all later work of the process fail."""
    prompter.check_ids([3, 7], 8, "M")
    with raises_key("prompt.unknown_token", largest=8, name="M", vocab_size=8):
        prompter.check_ids([3, 8], 8, "M")
