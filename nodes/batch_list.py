"""Items of a batch, and the prompts that cannot be drawn."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..adt_core.app.prompts import file_prefixes
from ..adt_core.app.truncation import RAISE, fit_prompt
from ..adt_core.engine.job import Job
from ..adt_core.errors import AdtError, shown
from ..adt_core.messages import join, message
from .prompts import NO_SEED
from .sockets import checked

SAME, STEPPED = "same", "increment"
"""Rules for the seeds of a list's images."""


class BatchItem(NamedTuple):
    """Image to draw.

    Attributes:
        prompt: Prompt to draw.
        seed: Seed of the image.
        place: Beginning of the file name.
        id: Id in the list.
        caption: Prompt as in the list.
        note: Change from `caption` to `prompt`, or "".
    """

    prompt: str
    seed: int
    place: str
    id: str
    caption: str
    note: str


class LeftOut(NamedTuple):
    """Prompt that is not drawn, and the reason."""

    id: str
    prompt: str
    note: str


@checked
def read_items(
    prompts: list,
    ids: list | None,
    seeds: list | None,
    job: Job,
    seed_of_each: str = SAME,
    unfit_prompts: str = RAISE,
) -> tuple[list[BatchItem], list[LeftOut]]:
    """Return the images to draw and the prompts that are not drawn.

    Prompts without an id are numbered. A seed of `NO_SEED` selects the job's seed by `seed_of_each`.

    Raises:
        AdtError: If an input is invalid, or no prompt can be drawn.
    """
    prompts = [_text(prompt).strip() for prompt in prompts]
    ids = [str(number) for number in range(1, len(prompts) + 1)] if ids is None else [str(id) for id in ids]
    seeds = seeds if seeds is not None else [NO_SEED] * len(prompts)
    _check_lengths(prompts, ids=ids, seeds=seeds)
    items: list[BatchItem] = []
    left_out: list[LeftOut] = []
    for number, (prompt, id, seed, place) in enumerate(zip(prompts, ids, seeds, file_prefixes(ids))):
        try:
            text, note = fit_prompt(job.check_prompt, prompt, unfit_prompts)
        except AdtError as error:
            remedy = "or set invalid_prompts to 'truncate' or 'skip'"
            raise AdtError(f"prompts: that with the id '{id}': {str(error).rstrip('.')}, {remedy}.") from error
        if _seed(id, seed) == NO_SEED:
            seed = (job.recipe.sampling.seed + (number if seed_of_each == STEPPED else 0)) % 2**64
        if text is None:
            left_out.append(LeftOut(id, prompt, note))
        else:
            items.append(BatchItem(text, seed, place, id, prompt, note))
    if not items:
        first = left_out[0]
        raise AdtError(
            f"prompts: none of the {len(prompts)} can be drawn; that with the id '{first.id}' is {first.note}."
        )
    return items, left_out


def news(items: list[BatchItem], left_out: list[LeftOut]) -> str:
    """Return a line about truncated, skipped and duplicate prompts, or ""."""
    noted = [item for item in items if item.note]
    kinds: list[tuple[Sequence[BatchItem | LeftOut], str]] = [(noted, "truncated"), (left_out, "left out")]
    total = len(items) + len(left_out)
    lines = [
        f"{len(some)} of {total} prompts are {what}. The first, '{some[0].id}': {some[0].note.removesuffix('.')}."
        for some, what in kinds
        if some
    ]
    return join([*lines, _duplicates(items)])


def _duplicates(items: list[BatchItem]) -> str:
    """Return a sentence if images of the list share prompt and seed, which are generated once."""
    count = len(items) - len({(item.prompt, item.seed) for item in items})
    return message("batch.duplicates" if count > 1 else "batch.duplicate", count=count) if count else ""


def _check_lengths(prompts: list, **lists: list) -> None:
    if not prompts:
        raise AdtError("prompts: none arrived, and at least one was expected; look at the node that gives them.")
    for name, values in lists.items():
        if len(values) != len(prompts):
            raise AdtError(
                f"{name}: {len(values)} {name} arrived for {len(prompts)} prompts; connect both from the same ADT-Tree "
                f"Prompts node, or no {name}."
            )


def _seed(id: str, seed: Any) -> int:
    if type(seed) is not int or not NO_SEED <= seed < 2**64:
        raise AdtError(f"seeds: the seed for the id '{id}' is {shown(seed)}; an integer of at least 0 was expected.")
    return seed


def _text(prompt: Any) -> str:
    if not isinstance(prompt, str):
        raise AdtError(
            f"prompts: {shown(prompt)} is among them, and texts were expected; connect a node that gives texts."
        )
    return prompt
