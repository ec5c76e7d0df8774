"""The log of a training run: a table, a chart where matplotlib is installed, and lines for people."""

from __future__ import annotations

import csv
import io
from importlib.util import find_spec
from pathlib import Path

from .. import core
from .unroll import CHILDREN


def sentence(row: dict, passes: int) -> str:
    """What :func:`acceptance` found, in words."""
    depths = (
        " / ".join(f"{row[f'depth {depth} of {count}']:.3f}" for count in CHILDREN) + f" at depth {depth}"
        for depth in range(1, passes + 1)
    )
    return (
        f"held-out acceptance of the first {' / '.join(map(str, CHILDREN))} children {'; '.join(depths)}; "
        f"a chain of {passes} gives {row['tau']:.3f} tokens a forward"
    )


def write_log(folder: Path, rows: list[dict], passes: int) -> None:
    """``log.csv``, and ``log.png`` where matplotlib is installed. Rows: step, seconds, mean loss, acceptance."""
    text = io.StringIO()
    table = csv.DictWriter(text, rows[0])
    table.writeheader()
    table.writerows(rows)
    core.write_in(folder, "log.csv", text.getvalue().encode())
    if find_spec("matplotlib"):
        core.write_in(folder, "log.png", _chart(rows, passes))


def _chart(rows: list[dict], passes: int) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = [row["step"] for row in rows]
    left.plot(steps, [row["loss"] for row in rows])
    left.set(xlabel="step", ylabel="loss", ylim=(0, None))
    for depth in range(1, passes + 1):
        right.plot(steps, [row[f"depth {depth} of 1"] for row in rows], label=f"depth {depth}")
    right.set(xlabel="step", ylabel="acceptance of the first child", ylim=(0, 1))
    right.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=100)
    return buffer.getvalue()
