"""Messages to users. Each message has a key and parameters, so that user interfaces can translate it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

ERRORS: dict[str, str] = json.loads(Path(__file__).with_name("errors.json").read_text(encoding="utf-8"))
"""English text of errors by key. Names of settings are in backquotes, and each user interface spells them its way."""

TEMPLATES = {
    **ERRORS,
    "batch.done": "{count} images in {folder}, {earlier} of them made before",
    "batch.folder": "The images are in {folder}.",
    "batch.kept": "{done} of {count} images kept. Press Run to continue. They are in {folder}.",
    "batch.made": "{count} images in {folder}",
    "batch.metadata": "The files contain their prompts in spite of --disable-metadata, because a batch is continued "
    "by them.",
    "batch.progress": "{done} of {count} images, {tokens} of {total} tokens",
    "batch.relaxed": "; Relaxed: {share} % of the tokens replaced",
    "benchmark.done": "{count} prompts; the results are in {folder}",
    "benchmark.fastest": "Fastest: {method}, about {ratio} times as fast as without drafts.",
    "benchmark.kept": "{done} of {count} prompts kept. Press Run to continue. The results are in {folder}.",
    "benchmark.progress": "{done} of {count} prompts, {number} of {methods} methods, now {method}",
    "benchmark.relaxed": "Changed by LANTERN: {methods}.",
    "benchmark.warm_up": "Warming up, {number} of {methods} methods, now {method}",
    "card.float16": "float16, because this card has no bfloat16 and too little memory for float32; if numbers "
    "overflow, choose 'int8 weights'",
    "choices.unbalanced": "Prompt {id}: a brace of {text} has no counterpart, so it stays in the text ({count} "
    "prompts with such braces).",
    "device.attention": "To keep the image unchanged, this device uses attention without the fast kernel, which is "
    "slower.",
    "device.batch": "On this device, an image may depend on the other prompts in its batch; use a batch size of 1 to "
    "avoid this.",
    "device.compiling": "Compiling and trying Triton kernels, once for this GPU and these versions of its software",
    "device.no_drafts": "On this device, drafts would change the image in half precision, so drafting is off; use "
    "float32 to draft.",
    "device.no_mode": "This device has no batch-invariant mode: in half precision, drafts may change the image; use "
    "float32 to avoid this.",
    "device.products": "To keep the image unchanged, this device uses smaller matrix products, which is slower.",
    "device.products_and_attention": "To keep the image unchanged, this device uses smaller matrix products and "
    "attention without the fast kernel, which is slower.",
    "diagnostics.differs": "Same image: no ({methods}).",
    "diagnostics.faster": "About {ratio} times as fast. Keep Auto.",
    "diagnostics.progress": "{number} of {count} methods, now {method}",
    "diagnostics.same": "Same image: yes.",
    "diagnostics.slower": "About {ratio} times as fast. Set drafting to No drafting.",
    "diagnostics.too_slow": "This model is too slow here to compare speeds.",
    "download.checking": "Checking files that are already there",
    "download.done": "{model} is downloaded",
    "download.kept": "{kept} {unit} kept. Press Run to resume.",
    "download.licence": "licence: {licence} ({page})",
    "download.listing": "Asking the Hub for the list of files",
    "download.progress": "Downloading: {done} of {total} {unit}",
    "download.rate": "Downloading: {done} of {total} {unit}, {rate} MB/s, {left} left",
    "download.retrying": "The Hub did not answer properly ({failed} of {tries} attempts); next attempt in {seconds} s",
    "download.waiting": "Waiting for another download to the same folder",
    "drafter.replaced": "'{name}' is damaged or was made for another model, so '{other}' drafts; download it again.",
    "inputs.unknown": "Ignored, because this node has no such input: {names}. Its inputs are {inputs}.",
    "mask.empty": "The mask is empty, so the image stays as it is. Open it in MaskEditor and paint over the part to "
    "generate again.",
    "method.adt-tree": "ADT-Tree",
    "method.adt-tree-random": "ADT-Tree, random first shape",
    "method.adt-tree-top-k": "ADT-Tree, top-k proposals",
    "method.adt-tree-vertical": "ADT-Tree, vertical first shape",
    "method.auto": "Auto",
    "method.auto-jacobi": "Auto, Jacobi window",
    "method.eagle2": "EAGLE-2",
    "method.eagle2-paper": "EAGLE-2, the paper's tree",
    "method.eagle2-pruned": "EAGLE-2, pruned",
    "method.eagle2-top-k": "EAGLE-2, top-k proposals",
    "method.jacobi": "Jacobi window",
    "method.jacobi-64": "Jacobi window, 64 drafts",
    "method.jacobi-chain": "Jacobi chain",
    "method.merged": "Network and Jacobi window",
    "method.merged-64": "Network and Jacobi window, 64 drafts",
    "method.merged-chain": "Network and Jacobi chain",
    "method.no-drafting": "No drafting",
    "method.predicted": "Predicted",
    "method.relaxed": " + LANTERN",
    "method.static": "Static: {name}",
    "model.missing": "{model} is not installed; set if_missing to 'download' and run again",
    "model.preview": "This is a preview of the tokens; GLM-Image Decode makes the image from them.",
    "preset.ignored": "Ignored, because preset is '{preset}': {values}. Set preset to '{custom}' to use your own "
    "values.",
    "prompt.and_others": " and others",
    "prompt.end": ".",
    "prompt.fewer": "{missing} of {count} {things}",
    "prompt.left_out": "left out: {reason}",
    "prompt.negative_truncated": "Negative prompt truncated to its first {kept} of {length} characters: {tokens} "
    "tokens; {model} accepts {limit}.",
    "prompt.not_drawn": "Not drawn: ",
    "prompt.nothing_known": "This small model draws houses, boats, balloons, mugs and the like; the prompt names "
    "nothing that it knows.",
    "prompt.single": "all but one of the {things}",
    "prompt.truncated": "Prompt truncated to its first {kept} of {length} characters: {tokens} tokens; {model} "
    "accepts {limit}.",
    "prompt.truncation": "truncated to its first {kept} of {length} characters: {tokens} tokens; {model} accepts "
    "{limit}",
    "prompts.all": "All {count} prompts.",
    "prompts.blank": "{blank} of {count} prompts are blank and were left out: {names}.",
    "prompts.columns": "These columns of the list are used by adt.py generate, but not by nodes: {columns}.",
    "prompts.first": "{count} of {total} prompts. Set count to 0 for all.",
    "prompts.left_out": "{some} of {count} prompts are left out. The first, '{id}': {note}.",
    "prompts.not_drawn": "Not drawn in {count} of {total} prompts: ",
    "prompts.nothing_known": "This small model draws houses, boats, balloons, mugs and the like; {count} of {total} "
    "prompts name nothing that it knows.",
    "prompts.too_long": "{count} prompts found, {long} too long for {model}.",
    "prompts.truncated": "{some} of {count} prompts are truncated. The first, '{id}': {note}.",
    "race.interval": "95 % interval: {low} to {high}.",
    "remark.invisible": "Prompt {id}{more}: {text} contains invisible characters, which are read as part of the text.",
    "remark.lines": "Prompt {id}{more}: {text} has more than {most} lines; look for a stray quotation mark in the "
    "list.",
    "remark.more": " and {count} more",
    "remark.weight": "Prompt {id}{more}: {text} contains a weight such as (text:1.3), which is read as plain text.",
    "report.renamed": "Saved as '{name}' in {folder}, because '{wanted}' is the report of another list.",
    "size.untrained": "{model} was trained for images of about as many pixels as {usual}; {size} is outside of that, "
    "so the image may look worse.",
    "size.untrained_range": "{model} was trained for images of about as many pixels as {smallest} to {largest}; "
    "{size} is outside of that, so the image may look worse.",
    "space": " ",
    "training.begin": "Measuring how long the training takes",
    "training.done": "'{name}' drafts {tau} tokens a pass after {steps} steps; the Drafter Loader has it.",
    "training.estimate": "The training takes about {total} min ({drawing} to generate, {learning} to train), {memory} "
    "GiB of memory and {disk} GiB of disk.",
    "training.estimate_seconds": "The training takes about {total} s ({drawing} to generate, {learning} to train), "
    "{memory} GiB of memory and {disk} GiB of disk.",
    "training.images": "{done} of {count} pictures",
    "training.kept_images": "{done} of {count} images kept. Press Run to continue.",
    "training.kept_steps": "{steps} steps kept. Press Run to continue.",
    "training.left": "; about {seconds} s left",
    "training.steps": "{steps} steps",
    "training.steps_and_tau": "{steps} steps, {tau} tokens a pass",
    "weights.checking": "Checking the weights of {name}",
    "weights.pageable": "The system can't pin the main memory, so a pass takes about twice as long.",
    "weights.streamed": "{resident} of {total} GiB on the GPU, the rest is streamed: about {seconds} s a pass.",
}
"""English text by key. Names in braces are parameters. The translations are in `locales/LANGUAGE/main.json`."""


class Part(NamedTuple):
    """Part of a message.

    Attributes:
        text: English text with the values of the parameters.
        key: Key in `TEMPLATES`; None for a text that is not translated.
        parameters: Values of the template's parameters, by name. A value can be a message.
    """

    text: str
    key: str | None = None
    parameters: dict[str, str | int] = {}


class Message(str):
    """English text that can be translated, because it also stores the keys and parameters of its parts.

    Methods of `str`, such as `strip`, return plain strings without keys.
    """

    parts: tuple[Part, ...]

    def __new__(cls, parts: Iterable[Part]) -> Message:
        parts = tuple(parts)
        self = super().__new__(cls, "".join(part.text for part in parts))
        self.parts = parts
        return self

    def __getnewargs__(self) -> tuple:
        return (self.parts,)

    def map(self, change: Callable[[str], str]) -> Message:
        """Return the message with changed texts and parameters, such as without the paths of a server."""
        return Message(
            Part(change(text), key, {name: _mapped(value, change) for name, value in parameters.items()})
            for text, key, parameters in self.parts
        )


def _mapped(value: str | int, change: Callable[[str], str]) -> str | int:
    if isinstance(value, Message):
        return value.map(change)
    return change(value) if isinstance(value, str) else value


_ONE = re.compile(r"(?<![\d.,])(?<!of )1 (draft|image|method|minute|picture|prompt|step|token)s\b")
_PLACE = re.compile(r"\{(\w+)\}")


def message(key: str, /, **parameters: object) -> Message:
    """Return a message with a single part. After the number 1, an English message has the singular.

    Errors keep the words of their template, because the page finds their keys by these words.

    Args:
        key: Key in `TEMPLATES`.
        **parameters: Values for the names in braces. A message can be a value; its final period is left out.
    """
    values = {name: value if isinstance(value, str | int) else str(value) for name, value in parameters.items()}
    text = _PLACE.sub(lambda place: _inside(values[place[1]]), TEMPLATES[key])
    return Message([Part(text if key in ERRORS else _ONE.sub(r"1 \1", text), key, values)])


def _inside(value: str | int) -> str:
    return value.removesuffix(".") if isinstance(value, Message) else str(value)


def parts_of(text: str) -> tuple[Part, ...]:
    """Return the parts of a message. A plain string has a single part without a key."""
    return text.parts if isinstance(text, Message) else (Part(text),)


def join(texts: Iterable[str], separator: str = TEMPLATES["space"]) -> Message:
    """Join messages and plain strings to one message. Empty texts are left out."""
    between = Part(separator, "space" if separator == TEMPLATES["space"] else None)
    parts: list[Part] = []
    for text in filter(None, texts):
        parts += ([between] if parts and separator else []) + list(parts_of(text))
    return Message(parts)


def find_message(text: str) -> str:
    """Return the message that has a given text. Files store messages as plain text, without their keys.

    If no template without parameters equals the text, return the text itself.
    """
    keys = [key for key, template in TEMPLATES.items() if template == text and "{" not in template]
    return message(keys[0]) if keys else text
