"""What happened in each round and to each token: the acceptance map and all statistics."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

FIGURES = ("acceptance", "depth", "width", "time")


@dataclass(frozen=True)
class ImageRound:
    """One image's share of a round.

    position: raster position of the root. depth_asked, width_asked: what the policy chose, cut to the room that the
    image has left. depth: of the verified tree. width: drafts on its widest level. nodes: drafts verified. accepted:
    drafts accepted. ranks: sibling rank of each of these. substituted: how many of them stand for another token
    (LANTERN). levels: drafts on each level of the tree, from the root's children on; ``width`` is the largest of them,
    ``nodes`` their sum.
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
        """Accepted drafts / realised depth (0 for a round without drafts)."""
        return self.accepted / self.depth if self.depth else 0.0


@dataclass(frozen=True)
class Round:
    """One target forward and what led to it.

    seconds: wall time. drafting: of it, the drafter's; 0 on a GPU, where a round is launched at once. prepared:
    something was done that later rounds need not do again, such as capturing a graph.
    """

    index: int
    seconds: float
    drafting: float
    drafter_forwards: int
    images: tuple[ImageRound, ...]
    prepared: bool = False

    def to_json(self) -> dict:
        """As plain JSON types; ``prepared`` where it is true."""
        content = asdict(self)
        if not self.prepared:
            del content["prepared"]
        return content


@dataclass
class Trace:
    """All rounds of a decoding and the figures that follow from them.

    grid: rows and columns of cells. images: how many. prefill: seconds by image. start: raster position of the first
    token that was drawn; those before it were given. row_end: behind each row of the grid stands one more token. small:
    rows and columns of a smaller picture whose tokens come before those of the grid.
    """

    settings: dict
    grid: tuple[int, int]
    images: int
    prefill: dict[int, float] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    start: int = 0
    row_end: bool = False
    small: tuple[int, int] = (0, 0)

    @property
    def lead(self) -> int:
        """Tokens before those of the grid."""
        return self.small[0] * self.small[1]

    @property
    def columns(self) -> int:
        """Tokens in a row of the grid, its end included."""
        return self.grid[1] + self.row_end

    @property
    def length(self) -> int:
        """Tokens of an image, the lead included."""
        return self.lead + self.grid[0] * self.columns

    def report(self) -> dict:
        """One flat dictionary: the settings and the run's figures.

        tau: tokens emitted per image and target forward after prefill. mean_depth: mean realised depth over
        rounds. substitution_rate: share of tokens that LANTERN took in place of the exact sample. seconds: decoding,
        prefill included and loading excluded.
        """
        shares = [share for round in self.rounds for share in round.images]
        seconds = self.prefill_seconds + sum(round.seconds for round in self.rounds)
        tokens = self.images * (self.length - self.start)
        emitted, nodes = sum(share.accepted + 1 for share in shares), sum(share.nodes for share in shares)
        each = max(len(shares), 1)
        return {
            **self.settings,
            "seconds": seconds,
            "tokens": tokens,
            "tokens_per_second": tokens / seconds if seconds else 0.0,
            "tau": emitted / each,
            "mean_depth": sum(share.depth for share in shares) / each,
            "mean_nodes": nodes / each,
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

    def entered(self, images: list[int], seconds: float) -> None:
        """These images' prompts were read together; again, if they are begun anew."""
        for image in images:
            self.prefill[image] = self.prefill.get(image, 0.0) + seconds / len(images)

    def part(self, images: list[int]) -> Trace:
        """Some images alone, numbered anew. The time of a round counts to the images at work in equal parts."""
        number = {image: new for new, image in enumerate(images)}
        rounds = []
        for round in self.rounds:
            shares = tuple(replace(share, image=number[share.image]) for share in round.images if share.image in number)
            portion = len(shares) / max(len(round.images), 1)
            seconds, drafting = round.seconds * portion, round.drafting * portion
            if shares:
                rounds.append(replace(round, images=shares, seconds=seconds, drafting=drafting))
        prefill = {number[image]: self.prefill.get(image, 0.0) for image in images}
        return replace(self, images=len(images), prefill=prefill, rounds=rounds)

    def forget(self, images: list[int]) -> None:
        """These images are begun anew: what became of their tokens doesn't count; the time that it took does."""
        for i, round in enumerate(self.rounds):
            self.rounds[i] = replace(round, images=tuple(share for share in round.images if share.image not in images))

    def acceptance_map(self, image: int = 0) -> list[list[float]]:
        """For each cell of an image, row by row: how many tokens its round emitted; 0 if it was given."""
        return self.token_map("acceptance", image)

    def token_map(self, figure: str, image: int = 0) -> list[list[float]]:
        """A figure of the round that emitted each cell's token, row by row; 0 for tokens that were given.

        figure: ``acceptance``, tokens that the round emitted; ``depth`` or ``width``, of the verified tree; ``time``,
        milliseconds of the round / tokens that it emitted for this image. The first drawn token was emitted alone, in
        the image's share of the prefill.
        """
        prefill = 1000 * self.prefill.get(image, 0.0)
        first: dict[str, float] = {"acceptance": 1, "depth": 0, "width": 0, "time": prefill}
        tokens: list[float] = [0] * self.start + [first[figure]] * (self.length - self.start)
        for round in self.rounds:
            for share in round.images:
                if share.image == image:
                    emitted, begin = share.accepted + 1, share.position + 1
                    time = 1000 * round.seconds / emitted
                    values = {"acceptance": emitted, "depth": share.depth, "width": share.width, "time": time}
                    tokens[begin : begin + emitted] = [values[figure]] * emitted
        return [tokens[at : at + self.grid[1]] for at in range(self.lead, self.length, self.columns)]

    def to_json(self) -> dict:
        """Report, rounds and acceptance maps as plain JSON types."""
        return {
            "report": self.report(),
            "grid": list(self.grid),
            "acceptance": [self.acceptance_map(image) for image in range(self.images)],
            "rounds": [round.to_json() for round in self.rounds],
        }
