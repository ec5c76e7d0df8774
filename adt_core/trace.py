"""Trace of a decoding: a record of each round, and statistics that are computed from the records.

A decoding generates one or more images. A round is one forward pass of the target, together with the drafting before
it. The target verifies one draft tree per image in a round. Each image gets its accepted drafts and one more token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

FIGURES = ("acceptance", "depth", "width", "time", "certainty")
"""Quantities that :meth:`Trace.token_map` can return."""


@dataclass(frozen=True)
class ImageRound:
    """Record of one image in a round.

    Attributes:
        image: Index of the image within the decoding.
        position: Raster position of the root, which is the image's last decided token before the round.
        depth_asked: Tree depth that the policy chose, reduced to the image's remaining positions if there are fewer.
        width_asked: Tree width that the policy chose.
        depth: Depth of the verified tree.
        drafts: Number of verified drafts.
        accepted: Number of accepted drafts.
        ranks: Rank of each accepted draft among its siblings; 0 is the rank of the sibling that the drafter prefers.
        substituted: Number of accepted drafts that differ from the exact sample (LANTERN).
        width: Largest number of drafts on a level of the verified tree.
        levels: Number of drafts on each level of the verified tree, from the root's children on.
        probabilities: For each token that the round emitted, the target's probability of the most probable token at
            that position, after guidance, temperature and filters.
        entropies: For each of these tokens, the entropy of the target's distribution, in nats.
        kept: Number of kept tokens after the root that the round has read. They are not counted as generated.
    """

    image: int
    position: int
    depth_asked: int
    width_asked: int
    depth: int
    drafts: int
    accepted: int
    ranks: tuple[int, ...]
    substituted: int = 0
    width: int = 0
    levels: tuple[int, ...] = ()
    probabilities: tuple[float, ...] = ()
    entropies: tuple[float, ...] = ()
    kept: int = 0

    @property
    def first(self) -> int:
        """Raster position of the first token that the round generated."""
        return self.position + 1 + self.kept

    @property
    def alpha(self) -> float:
        """Number of accepted drafts divided by the depth of the verified tree; 0 without drafts."""
        return self.accepted / self.depth if self.depth else 0.0


@dataclass(frozen=True)
class Round:
    """One target forward pass, and the drafting before it.

    Attributes:
        index: Index of the round within the decoding.
        drafting: Time of the drafting in seconds, which is part of `seconds`. It is 0 on a GPU, where drafting is not
            timed separately.
        drafter_forwards: Number of forward passes of the drafter's network.
        prepared: Whether `seconds` includes one-off work for later rounds, such as capturing a CUDA graph.
    """

    index: int
    seconds: float
    drafting: float
    drafter_forwards: int
    images: tuple[ImageRound, ...]
    prepared: bool = False

    def to_json(self) -> dict:
        """Return the round as plain JSON types, with `prepared` only if it is true."""
        content = asdict(self)
        if not self.prepared:
            del content["prepared"]
        return content


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation of two lists, or None if a list has fewer than two different values.

    Equal values share their average rank.
    """
    if min(len(set(first)), len(set(second))) < 2:
        return None
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    """Return the rank of each value, from 1. Example: the ranks of 5, 3, 5 are 2.5, 1, 2.5."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


@dataclass
class Trace:
    """All rounds of a decoding, and statistics that are computed from the rounds.

    An image is a grid of cells with one token each. The map of a quantity has one number per cell.

    Attributes:
        settings: Settings of the run, as plain JSON types.
        grid: Number of rows and columns of cells.
        prefill: Time of the prefill (the forward pass over the prompt) in seconds, by image index.
        given: For each image, whether the token at each raster position was given (kept). Empty if none was given.
        row_end: Whether each row of the grid is followed by a token that marks the end of the row.
        lead: Rows and columns of a smaller image whose tokens come before the grid; (0, 0) if there is none.
        speedup: Estimated speed-up over decoding without a drafter, of a finished decoding; None if it is not known.
    """

    settings: dict
    grid: tuple[int, int]
    images: int
    prefill: dict[int, float] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    given: list[list[bool]] = field(default_factory=list)
    row_end: bool = False
    lead: tuple[int, int] = (0, 0)
    speedup: float | None = None

    @property
    def lead_length(self) -> int:
        """Number of tokens before the grid."""
        return self.lead[0] * self.lead[1]

    @property
    def columns(self) -> int:
        """Number of tokens in a row of the grid, including the token that marks the end of the row."""
        return self.grid[1] + self.row_end

    @property
    def length(self) -> int:
        """Number of tokens of an image, including the tokens before the grid."""
        return self.lead_length + self.grid[0] * self.columns

    def report(self) -> dict:
        """Return the settings and the statistics in one flat dictionary.

        Some entries:

        - `tokens`: Number of generated tokens. Kept tokens are not counted, here and in `tau`.
        - `tau`: Average number of generated tokens that an image gets from a target forward pass after the prefill: the
          accepted drafts and the target's own token.
        - `accepted_per_round`: Average number of accepted drafts, which is `tau` - 1.
        - `mean_depth`: Average depth of the verified trees.
        - `substitution_rate`: Share of tokens that differ from the exact sample, because LANTERN accepted a substitute.
        - `seconds`: Total time, including the prefill. The time to load the models is not included.
        """
        records = [record for round in self.rounds for record in round.images]
        seconds = self.prefill_seconds + sum(round.seconds for round in self.rounds)
        tokens = self.images * self.length - sum(map(sum, self.given))
        emitted = sum(record.accepted + 1 for record in records)
        drafts = sum(record.drafts for record in records)
        count = max(len(records), 1)
        return {
            **self.settings,
            "seconds": seconds,
            "tokens": tokens,
            "tokens_per_second": tokens / seconds if seconds else 0.0,
            "tau": emitted / count,
            "accepted_per_round": sum(record.accepted for record in records) / count,
            "mean_depth": sum(record.depth for record in records) / count,
            "mean_drafts": drafts / count,
            "target_forwards": len(self.rounds),
            "drafter_forwards": sum(round.drafter_forwards for round in self.rounds),
            "verified_drafts": drafts,
            "substitution_rate": sum(record.substituted for record in records) / emitted if emitted else 0.0,
            "drafting_seconds": sum(round.drafting for round in self.rounds),
            "prefill_seconds": self.prefill_seconds,
        }

    @property
    def start(self) -> int:
        """Raster position of the first token that is generated in any of the images."""
        columns = enumerate(zip(*self.given)) if self.given else ()
        return next((position for position, given in columns if not all(given)), self.length if self.given else 0)

    def stretches(self) -> list[list[int]]:
        """Return for each image the lengths of its stretches of given and generated tokens, given first.

        Example: an image whose token 2 is generated, of 4 tokens, has [2, 1, 1].
        """
        rows: list[list[int]] = []
        for given in self.given:
            lengths = [0]
            for is_given in given:
                if is_given == (len(lengths) % 2 == 0):
                    lengths.append(0)
                lengths[-1] += 1
            rows.append(lengths)
        return rows

    @property
    def prefill_seconds(self) -> float:
        return sum(self.prefill.values())

    def add_prefill(self, images: list[int], seconds: float) -> None:
        """Add the time of a prefill, divided equally among its images. An image can have several prefills."""
        for image in images:
            self.prefill[image] = self.prefill.get(image, 0.0) + seconds / len(images)

    def subset(self, images: list[int]) -> Trace:
        """Return the trace of some images, which get the indices 0, 1, 2, ...

        The time of a round is divided equally among the images in the round.
        """
        number = {image: new for new, image in enumerate(images)}
        rounds = []
        for round in self.rounds:
            records = tuple(
                replace(record, image=number[record.image]) for record in round.images if record.image in number
            )
            portion = len(records) / max(len(round.images), 1)
            seconds = round.seconds * portion
            drafting = round.drafting * portion
            if records:
                rounds.append(replace(round, images=records, seconds=seconds, drafting=drafting))
        prefill = {number[image]: self.prefill.get(image, 0.0) for image in images}
        given = [self.given[image] for image in images] if self.given else []
        return replace(self, images=len(images), prefill=prefill, rounds=rounds, given=given)

    def restart(self, images: list[int]) -> None:
        """Remove the records of images that are decoded again from the start. The times of their rounds are kept."""
        for i, round in enumerate(self.rounds):
            self.rounds[i] = replace(
                round, images=tuple(record for record in round.images if record.image not in images)
            )

    def acceptance_map(self, image: int = 0) -> list[list[float]]:
        """Return for each cell of an image the number of tokens that its round emitted; see :meth:`token_map`."""
        return self.token_map("acceptance", image)

    def token_map(self, figure: str, image: int = 0) -> list[list[float]]:
        """Return for each cell of an image a quantity of the round that emitted the cell's token.

        The prefill decodes the first token, so it belongs to no round. Its `acceptance` is 1, its `depth`, `width`
        and `certainty` are 0, and its `time` is the time of the image's prefill.

        Args:
            figure: `acceptance` is the number of tokens that the round emitted for this image. `depth` and `width` are
                the depth and width of the verified tree. `time` is the round's time in milliseconds, divided by
                `acceptance`. `certainty` is the target's probability of the most probable token, which differs between
                the tokens of a round. `moment` is the time in seconds from the start of the run to the end of the
                round.
            image: Index of the image.

        Returns:
            One list per row of the grid, with one number per cell; 0 for cells whose tokens were given.
        """
        prefill = 1000 * self.prefill.get(image, 0.0)
        first = {"acceptance": 1.0, "time": prefill}.get(figure, 0.0)
        moment = 0.0
        given = self.given[image] if self.given else [False] * self.length
        tokens: list[float] = [0 if is_given else first for is_given in given]
        for round in self.rounds:
            moment += round.seconds
            for record in round.images:
                if record.image == image:
                    emitted = record.accepted + 1
                    begin = record.first
                    time = 1000 * round.seconds / emitted
                    values = {"acceptance": emitted, "depth": record.depth, "width": record.width, "time": time}
                    values["moment"] = moment
                    same = [values.get(figure, 0.0)] * emitted
                    own = list(record.probabilities) if figure == "certainty" else []
                    tokens[begin : begin + emitted] = own or same
        return [tokens[at : at + self.grid[1]] for at in range(self.lead_length, self.length, self.columns)]

    def certainty_correlation(self) -> float | None:
        """Return the rank correlation between a round's accepted drafts and the target's certainty.

        The certainty is the average probability of the most probable token at the positions that the round emitted.
        """
        records = [record for round in self.rounds for record in round.images if record.depth and record.probabilities]
        return rank_correlation(
            [record.accepted for record in records],
            [sum(record.probabilities) / len(record.probabilities) for record in records],
        )

    def to_json(self) -> dict:
        """Return the report, the rounds and the acceptance maps as plain JSON types."""
        return {
            "report": self.report(),
            "grid": list(self.grid),
            "acceptance": [self.acceptance_map(image) for image in range(self.images)],
            "rounds": [round.to_json() for round in self.rounds],
        }
