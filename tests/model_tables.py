"""Generator for the tables of docs/models.md. Tests compare the generated tables with the document."""

from __future__ import annotations

from adt_core.models.load import FAMILIES, published
from adt_core.models.repositories import Published
from benchmarks.tables import table


def models_table() -> str:
    """Return the table of models in Markdown."""
    head = ("model", "download from Hugging Face", "size", "licence", "pixels", "memory bf16 / int8 / int4")
    return table(head, map(_row, published()))


def _row(row: Published) -> tuple[str, ...]:
    if not row.downloads:
        return row.name, "included in the pack", "", "", row.pixels, "0.1 GiB in float32"
    own, *others = row.downloads
    files = f" ({', '.join(f'`{file}`' for file in own.files)})" if own.files else ""
    more = [f"`{one.repository}`{' (`tokenizer.json`)' if 'tokenizer.json' in one.files[:1] else ''}" for one in others]
    source = ", ".join([f"`{own.repository}`{files}", *more])
    drafter = f" and the drafter `{row.drafter.repository}`" if row.drafter else ""
    memory = " / ".join(f"{size} GiB" for size in row.memory)
    return f"`{row.name}`", source + drafter, row.size, row.licences, row.pixels, memory


def sampling_table() -> str:
    """Return the table of the authors' sampling settings in Markdown."""
    head = ("family", "guidance", "temperature", "top-k", "top-p", "prompt suffix", "from")
    rows = []
    for family in FAMILIES:
        own = family.sampling
        values = (own.guidance_scale, own.temperature, own.top_k, own.top_p, own.suffix, own.source)
        rows.append((family.title, *(f"`{x}`" if isinstance(x, str) and x else f"{x}" for x in values)))
    return table(head, rows)
