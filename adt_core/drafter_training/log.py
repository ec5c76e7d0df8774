"""The log of a training run: a table, a picture where matplotlib is installed, and lines for people."""

from __future__ import annotations

import csv
import io
from importlib.util import find_spec
from pathlib import Path

from torch import Tensor

from ..app.images import write
from .unroll import CHILDREN


class Log:
    """Rows of step, seconds, loss, tau and acceptance; ``loss`` is the mean since the row before."""

    def __init__(self, folder: Path, rows: list[dict], passes: int):
        self.folder, self.rows, self.passes = folder, list(rows), passes

    def add(self, step: int, seconds: float, loss: float, shares: Tensor, tau: float) -> None:
        """shares: [passes, 3] by depth and number of children."""
        figures = {
            f"depth {d + 1} of {k}": round(shares[d, i].item(), 4)
            for d in range(self.passes)
            for i, k in enumerate(CHILDREN)
        }
        self.rows.append(
            {"step": step, "seconds": round(seconds, 1), "loss": round(loss, 5), "tau": round(tau, 4), **figures}
        )

    def write(self) -> None:
        """``log.csv``, and ``log.png`` where matplotlib is installed."""
        text = io.StringIO()
        table = csv.DictWriter(text, self.rows[0])
        table.writeheader()
        table.writerows(self.rows)
        write(self.folder / "log.csv", text.getvalue().encode())
        if find_spec("matplotlib"):
            write(self.folder / "log.png", self._chart())

    def summary(self) -> str:
        """The newest acceptance in a few words."""
        row = self.rows[-1]
        return f"loss {row['loss']:.3f}, first child " + " ".join(
            f"{row[f'depth {d + 1} of 1']:.3f}" for d in range(self.passes)
        )

    def last_line(self, name: str) -> str:
        """The end of the run."""
        row = self.rows[-1]
        return f"{name}: {row['step']} steps in {row['seconds'] / 60:.1f} min; " + _line(
            [[row[f"depth {d + 1} of {k}"] for k in CHILDREN] for d in range(self.passes)], row["tau"]
        )

    def line(self, name: str, shares: Tensor, tau: float) -> str:
        """The same figures of another drafter."""
        return f"{name}: " + _line(shares.tolist(), tau)

    def _chart(self) -> bytes:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 3.5), layout="constrained")
        left, right = figure.subplots(1, 2)
        steps = [row["step"] for row in self.rows]
        left.plot(steps, [row["loss"] for row in self.rows])
        left.set(xlabel="step", ylabel="loss", ylim=(0, None))
        for depth in range(1, self.passes + 1):
            right.plot(steps, [row[f"depth {depth} of 1"] for row in self.rows], label=f"depth {depth}")
        right.set(xlabel="step", ylabel="acceptance of the first child", ylim=(0, 1))
        right.legend()
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=100)
        return buffer.getvalue()


def _line(shares: list[list[float]], tau: float) -> str:
    depths = "; ".join(
        " / ".join(f"{share:.3f}" for share in row) + f" at depth {d}" for d, row in enumerate(shares, 1)
    )
    return f"held-out acceptance of the first {' / '.join(map(str, CHILDREN))} children {depths}; a chain of {len(shares)} gives {tau:.3f} tokens a forward"
