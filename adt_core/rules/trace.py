"""What happened in each round and to each token: the acceptance map and all statistics."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

FIGURES = ("acceptance", "depth", "width", "time")


@dataclass(frozen=True)
class ImageRound:
    """One image's share of a round.

    position: raster position of the root. depth_asked, width_asked: what the policy chose. depth, width: realised depth of the
    verified tree, and drafts on its widest level. nodes: drafts verified. accepted: drafts accepted. ranks: sibling rank of each.
    substituted: how many of them stand for another token (LANTERN).
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

    @property
    def alpha(self) -> float:
        """Accepted drafts / realised depth (0 for a round without drafts)."""
        return self.accepted / self.depth if self.depth else 0.0


@dataclass(frozen=True)
class Round:
    """One target forward and what led to it.

    seconds: wall time of the round. drafting: seconds of it that the drafter took. plain_seconds: of it, those of the plain
    steps that a policy had timed, one number each.
    """

    index: int
    seconds: float
    drafting: float
    drafter_forwards: int
    images: tuple[ImageRound, ...]
    plain_seconds: tuple[float, ...] = ()


@dataclass
class Trace:
    """All rounds of a decoding and the figures that follow from them."""

    settings: dict
    grid: tuple[int, int]
    images: int
    prefill: dict[int, float] = field(default_factory=dict)  # seconds, each image's part
    rounds: list[Round] = field(default_factory=list)
    start: int = 0  # raster position of the first token that was drawn; those before it were given
    row_end: bool = False  # behind each row of the grid stands one more token

    @property
    def raster(self) -> tuple[int, int]:
        """Rows and columns of tokens, ends of rows included."""
        return self.grid[0], self.grid[1] + self.row_end

    def report(self) -> dict:
        """One flat dictionary: the settings and the run's figures.

        tau: tokens emitted per image and target forward after prefill. mean_depth: mean realised depth over
        rounds. substitution_rate: share of tokens that LANTERN took in place of the exact sample. seconds: decoding,
        prefill included and loading excluded.
        """
        shares = [share for round in self.rounds for share in round.images]
        seconds = self.prefill_seconds + sum(round.seconds for round in self.rounds)
        tokens = self.images * (self.raster[0] * self.raster[1] - self.start)
        emitted = sum(share.accepted + 1 for share in shares)
        return {
            **self.settings,
            "seconds": seconds,
            "tokens": tokens,
            "tokens_per_second": tokens / seconds if seconds else 0.0,
            "tau": emitted / len(shares) if shares else 0.0,
            "mean_depth": sum(share.depth for share in shares) / len(shares) if shares else 0.0,
            "mean_nodes": sum(share.nodes for share in shares) / len(shares) if shares else 0.0,
            "target_forwards": len(self.rounds),
            "drafter_forwards": sum(round.drafter_forwards for round in self.rounds),
            "verified_nodes": sum(share.nodes for share in shares),
            "substitution_rate": sum(share.substituted for share in shares) / emitted if emitted else 0.0,
            "drafting_seconds": sum(round.drafting for round in self.rounds),
            "prefill_seconds": self.prefill_seconds,
        }

    @property
    def prefill_seconds(self) -> float:
        """Of all images."""
        return sum(self.prefill.values())

    def entered(self, images: list[int], seconds: float) -> None:
        """These images' prompts were read together; again, if they are begun anew."""
        for image in images:
            self.prefill[image] = self.prefill.get(image, 0.0) + seconds / len(images)

    def part(self, images: list[int]) -> Trace:
        """Some images alone, numbered anew. What all images of a round had together, which is time, counts to those at work in equal parts."""
        number = {image: new for new, image in enumerate(images)}
        rounds = []
        for round in self.rounds:
            shares = tuple(replace(share, image=number[share.image]) for share in round.images if share.image in number)
            if shares:
                portion = len(shares) / len(round.images)
                rounds.append(
                    replace(round, images=shares, seconds=round.seconds * portion, drafting=round.drafting * portion)
                )
        return replace(
            self,
            images=len(images),
            prefill={number[image]: self.prefill.get(image, 0.0) for image in images},
            rounds=rounds,
        )

    def forget(self, images: list[int]) -> None:
        """These images are begun anew: what became of their tokens doesn't count; the time that it took does."""
        self.rounds = [
            replace(round, images=tuple(share for share in round.images if share.image not in images))
            for round in self.rounds
        ]

    def acceptance_map(self, image: int = 0) -> list[list[int]]:
        """For each token of an image, row by row: how many tokens the round that produced it emitted; 0 if it was given."""
        return self.token_map("acceptance", image)

    def token_map(self, figure: str, image: int = 0) -> list[list[float]]:
        """A figure of the round that produced each token of an image, row by row; 0 for tokens that were given.

        figure: ``acceptance``, tokens that the round emitted; ``depth`` or ``width``, of the verified tree; ``time``,
        milliseconds of the round / tokens that it emitted for this image. The first drawn token comes with the prompt: it was
        emitted alone, without a tree, in the time of the prefill.
        """
        first = {"acceptance": 1, "depth": 0, "width": 0, "time": 1000 * self.prefill_seconds}
        rows, columns = self.raster
        cells = [0] * self.start + [first[figure]] * (rows * columns - self.start)
        for round in self.rounds:
            for share in round.images:
                if share.image == image:
                    emitted = share.accepted + 1
                    value = {
                        "acceptance": emitted,
                        "depth": share.depth,
                        "width": share.width,
                        "time": 1000 * round.seconds / emitted,
                    }[figure]
                    cells[share.position + 1 : share.position + 1 + emitted] = [value] * emitted
        return [cells[row * columns : row * columns + self.grid[1]] for row in range(rows)]

    def to_json(self) -> dict:
        """Report, rounds and acceptance maps as plain JSON types."""
        return {
            "report": self.report(),
            "grid": list(self.grid),
            "acceptance": [self.acceptance_map(image) for image in range(self.images)],
            "rounds": [asdict(round) for round in self.rounds],
        }
