"""A training run that says how it gets on, and is saved every few minutes."""

from __future__ import annotations

from torch import Tensor

from adt_lab.training.run import Run


class TimedRun(Run):
    """A :class:`Run` for the scripts of this folder."""

    _saved = 0.0

    def advance(self, loss: Tensor, warmup: float = 0.02) -> None:
        """One optimisation step on ``loss``; prints it now and then."""
        self._saved = self._saved or self.elapsed
        self.backward(loss)
        self.apply(warmup)
        if self.step % 25 == 0:
            print(f"step {self.step} {self.fraction:.3f} loss {loss.item():.4f}", flush=True)

    def due(self, seconds: float = 200) -> bool:
        """Is it time for a checkpoint? Every ``seconds``, and at the end."""
        return self.elapsed - self._saved > seconds or self.fraction >= 1

    def save(self, **more) -> None:
        self._saved = self.elapsed
        super().save(**more)
