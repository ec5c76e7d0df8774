"""Trace of a decoding: what happened in each round and to each token, and the statistics that follow."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

FIGURES = ("acceptance", "depth", "width", "time")
"""Figures of which there are token maps."""


@dataclass(frozen=True)
class ImageRound:
    """One image's part of a round.

    Attributes:
        image: Number of the image within the decoding.
        position: Raster position of the root.
        depth_asked: Depth that the policy has chosen, cut to the positions that the image has left.
        width_asked: Width that the policy has chosen.
        depth: Depth of the verified tree.
        nodes: Number of verified drafts.
        accepted: Number of accepted drafts.
        ranks: Sibling rank of each accepted draft.
        substituted: Number of accepted drafts that replace the exact sample (LANTERN).
        width: Maximum number of drafts on a level.
        levels: Number of drafts on each level, from the root's children on.
    """

    image: int
    position: int
    depth_asked: int
    width_asked: int
    depth: int
    nodes: int
    accepted: int
    ranks: tuple[int, ...]
    substituted: int = 0
    width: int = 0
    levels: tuple[int, ...] = ()

    @property
    def alpha(self) -> float:
        """Accepted drafts / depth of the verified tree; 0 for a round without drafts."""
        return self.accepted / self.depth if self.depth else 0.0


@dataclass(frozen=True)
class Round:
    """One target forward pass, and the drafting before it.

    Attributes:
        index: Number of the round.
        seconds: Time of the round.
        drafting: Seconds of it that the drafter took; 0 on a GPU, where a round is launched as one.
        drafter_forwards: Forward passes of the drafter's network.
        images: Parts of the images.
        prepared: Whether the round included work that later rounds reuse, such as capturing a graph.
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


@dataclass
class Trace:
    """All rounds of a decoding and the statistics that follow.

    Attributes:
        settings: Settings of the run, as plain JSON types.
        grid: Rows and columns of cells.
        images: Number of images.
        prefill: Seconds of reading the prompt, by image.
        rounds: The rounds.
        start: Raster position of the first decoded token; earlier ones were given.
        row_end: Whether each row of the grid ends with one more token.
        lead: Rows and columns of a smaller image whose tokens precede the grid.
    """

    settings: dict
    grid: tuple[int, int]
    images: int
    prefill: dict[int, float] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    start: int = 0
    row_end: bool = False
    lead: tuple[int, int] = (0, 0)

    @property
    def lead_length(self) -> int:
        """Tokens before the grid."""
        return self.lead[0] * self.lead[1]

    @property
    def columns(self) -> int:
        """Tokens in a row of the grid, its end included."""
        return self.grid[1] + self.row_end

    @property
    def length(self) -> int:
        """Tokens of an image, the lead included."""
        return self.lead_length + self.grid[0] * self.columns

    def report(self) -> dict:
        """Return the settings and the statistics in one flat dictionary.

        `tau` is the average number of tokens that an image gets from a target forward pass after the prefill.
        `mean_depth` is the average depth of the verified trees. `substitution_rate` is the share of tokens that LANTERN
        has taken instead of the exact sample. `seconds` includes the prefill and excludes loading.
        """
        shares = [share for round in self.rounds for share in round.images]
        seconds = self.prefill_seconds + sum(round.seconds for round in self.rounds)
        tokens = self.images * (self.length - self.start)
        emitted = sum(share.accepted + 1 for share in shares)
        nodes = sum(share.nodes for share in shares)
        count = max(len(shares), 1)
        return {
            **self.settings,
            "seconds": seconds,
            "tokens": tokens,
            "tokens_per_second": tokens / seconds if seconds else 0.0,
            "tau": emitted / count,
            "mean_depth": sum(share.depth for share in shares) / count,
            "mean_nodes": nodes / count,
            "target_forwards": len(self.rounds),
            "drafter_forwards": sum(round.drafter_forwards for round in self.rounds),
            "verified_nodes": nodes,
            "substitution_rate": sum(share.substituted for share in shares) / emitted if emitted else 0.0,
            "drafting_seconds": sum(round.drafting for round in self.rounds),
            "prefill_seconds": self.prefill_seconds,
        }

    @property
    def prefill_seconds(self) -> float:
        return sum(self.prefill.values())

    def add_prefill(self, images: list[int], seconds: float) -> None:
        """Add the time of reading the prompts of some images, in equal parts; images may have been read before."""
        for image in images:
            self.prefill[image] = self.prefill.get(image, 0.0) + seconds / len(images)

    def subset(self, images: list[int]) -> Trace:
        """Return the trace of some images, numbered from 0.

        The time of a round is divided equally among its images.
        """
        number = {image: new for new, image in enumerate(images)}
        rounds = []
        for round in self.rounds:
            shares = tuple(replace(share, image=number[share.image]) for share in round.images if share.image in number)
            portion = len(shares) / max(len(round.images), 1)
            seconds = round.seconds * portion
            drafting = round.drafting * portion
            if shares:
                rounds.append(replace(round, images=shares, seconds=seconds, drafting=drafting))
        prefill = {number[image]: self.prefill.get(image, 0.0) for image in images}
        return replace(self, images=len(images), prefill=prefill, rounds=rounds)

    def restart(self, images: list[int]) -> None:
        """Remove the rounds of images that start again; the time that they took still counts."""
        for i, round in enumerate(self.rounds):
            self.rounds[i] = replace(round, images=tuple(share for share in round.images if share.image not in images))

    def acceptance_map(self, image: int = 0) -> list[list[float]]:
        """Return, for each cell of an image by row, the tokens that its round emitted; 0 for given cells."""
        return self.token_map("acceptance", image)

    def token_map(self, figure: str, image: int = 0) -> list[list[float]]:
        """Return a figure of the round that emitted each cell's token.

        The first decoded token counts as emitted on its own, in the image's part of the prefill.

        Args:
            figure: `acceptance`, the tokens that the round emitted; `depth` or `width` of the verified tree; or `time`,
                milliseconds of the round / tokens that it emitted for this image.
            image: Number of the image.

        Returns:
            The figure of each cell, by row; 0 for given cells.
        """
        prefill = 1000 * self.prefill.get(image, 0.0)
        first: dict[str, float] = {"acceptance": 1, "depth": 0, "width": 0, "time": prefill}
        tokens: list[float] = [0] * self.start + [first[figure]] * (self.length - self.start)
        for round in self.rounds:
            for share in round.images:
                if share.image == image:
                    emitted = share.accepted + 1
                    begin = share.position + 1
                    time = 1000 * round.seconds / emitted
                    values = {"acceptance": emitted, "depth": share.depth, "width": share.width, "time": time}
                    tokens[begin : begin + emitted] = [values[figure]] * emitted
        return [tokens[at : at + self.grid[1]] for at in range(self.lead_length, self.length, self.columns)]

    def to_json(self) -> dict:
        """Return report, rounds and acceptance maps as plain JSON types."""
        return {
            "report": self.report(),
            "grid": list(self.grid),
            "acceptance": [self.acceptance_map(image) for image in range(self.images)],
            "rounds": [round.to_json() for round in self.rounds],
        }
