"""The two recipes, followed from outside the package: a policy and a drafter that are a class and a line in a table.

Neither needs anything else in order to be named on the command line, to be lossless, and to be remembered in the PNG
and in the report.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import mean

import pytest
import torch
from torch import Tensor

from adt_core import Drafting, cli, load_drafter
from adt_core.app.images import read_settings
from adt_core.drafters import DRAFTERS, Drafter, Prefill, Proposer, Shapes, Verified
from adt_core.models.rows import BatchRows, Roots
from adt_core.policies import NO_DRAFTS, POLICIES, Context, DraftMode, DraftSettings, Policy, Shape, Slot, options
from adt_core.policies.auto import Auto, shape_of
from adt_core.rules.noise import Noise
from adt_core.rules.settings import setting
from adt_core.rules.trace import Round
from adt_core.rules.tree import DraftTree, chain
from tests.drafted import run

DEPTH = 3

# ---- a policy ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToySettings(DraftSettings):
    stride: int = setting(4, "Drafts where the position is a multiple of this, 25 % of them.", low=1, high=9)


class ToyPolicy(Policy):
    """Drafts at every ``stride``-th position."""

    settings_type = ToySettings
    help = "drafts now and then"

    @classmethod
    def largest(cls, settings: ToySettings) -> Shape:
        return Shape(DEPTH, 1, DEPTH)

    def choose(self, slots: Sequence[Slot]) -> list[Shape]:
        shape = self.largest(self.settings)
        return [NO_DRAFTS if slot.position % self.settings.stride else shape for slot in slots]


class Better(Policy):
    """Of two sources, that of which more drafts were accepted in a round of this decoding, on average."""

    help = "the better of two sources"
    chooses = True
    largest = Auto.largest

    def __init__(self, context: Context):
        super().__init__(context)
        self.accepted: dict[DraftMode, list[int]] = {mode: [] for mode in context.modes[:2]}
        self.chosen = context.modes[0]

    def choose(self, slots: Sequence[Slot]) -> list[Shape]:
        self.chosen = max(self.accepted, key=lambda mode: mean(self.accepted[mode] or [inf]))
        return [shape_of(self.chosen, 8)] * len(slots)

    def on_verified(self, round: Round) -> None:
        self.accepted[self.chosen] += [share.accepted for share in round.images]


@pytest.mark.parametrize("drafter", ["network", "jacobi"])
def test_a_policy_may_choose_between_sources(models, monkeypatch, drafter):
    """A network has the window beside it then. Both sources are tried, and the picture is that of plain decoding."""
    chosen = set()

    class Watched(Better):
        def choose(self, slots):
            shapes = super().choose(slots)
            chosen.add(self.chosen.name)
            return shapes

    monkeypatch.setitem(POLICIES, "better", Watched)
    target, network = models
    drafts = network if drafter == "network" else load_drafter("jacobi", target)
    assert run(target, drafts, drafting=Drafting("better")).codes.equal(run(target).codes)
    assert len(chosen) == 2


@pytest.mark.parametrize("name", [name for name, policy in POLICIES.items() if policy.chooses])
@pytest.mark.parametrize("width", [1, 256], ids=["chains", "trees"])
def test_measured_shapes_fit_into_the_memory_of_the_largest_shape(name, width):
    policy = Drafting(name).policy
    largest = policy.largest(Drafting(name).settings)
    shapes = policy.measured_shapes(DraftMode("a draft mode", width))
    assert shapes[0] == NO_DRAFTS and shapes == sorted(shapes, key=lambda shape: shape.nodes)
    assert all(max(column) <= limit for column, limit in zip(zip(*shapes), largest[:3]))


# ---- a drafter -----------------------------------------------------------------------------------


class ToyDrafter:
    """Guesses that the picture goes on as in the row above."""

    defaults = {"method": "eagle2", "depth": DEPTH, "width": 1, "nodes": DEPTH}
    network = None
    kind = "toy"
    modes = ()
    gpu_defaults: dict = {}

    def proposer(self, context: Context, rows: BatchRows, noise: Noise | None) -> Proposer:
        return ToyProposer(context, rows, noise)

    def uncommitted(self, largest: Shape) -> int:
        return 0

    def cache_bytes(self, rows: int, cache_length: int, itemsize: int) -> int:
        return 0


class ToyProposer(Proposer):
    """``_codes`` [B, T + DEPTH + 1]: what was decided since the image has begun; 0 elsewhere."""

    by_image = ("_codes",)
    _codes: Tensor

    def begin(self, prefill: Prefill) -> None:
        length = self.context.target.length + DEPTH + 1
        self._codes = torch.zeros(self.rows.images, length, dtype=torch.long, device=prefill.z.device)

    def propose(self, roots: Roots, shapes: Shapes) -> DraftTree:
        above = roots.at + 1 + torch.arange(shapes.depth, device=roots.at.device) - self.context.target.columns
        drafts = self._codes.gather(1, above.clamp_min(0))
        wanted = torch.arange(shapes.depth, device=roots.at.device) < shapes.lengths
        return chain(torch.cat([roots.codes[:, None], drafts], 1), torch.where(wanted, 0.0, -torch.inf))

    def on_verified(self, verified: Verified) -> None:
        codes = verified.following
        at = verified.roots.at + 1 + torch.arange(codes.shape[1], device=codes.device)
        self._codes.scatter_(1, at, codes)  # what stands behind the new root is written over in the next rounds


# ---- on the command line -------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def entered(monkeypatch):
    """The line in either table."""
    monkeypatch.setitem(POLICIES, "toy", ToyPolicy)
    monkeypatch.setitem(DRAFTERS, "toy", ToyDrafter)


@pytest.fixture
def generate(tiny, tmp_path, monkeypatch):
    """Draw two images with the tiny model; returns their tokens and the report."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *given: str) -> tuple[list, dict]:
        command = ["generate", "--model", str(tiny / "target"), "--prompt", "a cat", "--batch-size", "2", "--seed", "3"]
        command += ["--output", f"{name}.png", "--tokens", "tokens.json", "--report", "report.json", "--device", "cpu"]
        assert cli.main([*command, "--trace", "trace.json", *given]) == 0
        return tuple(json.loads(Path(f"{file}.json").read_text(encoding="utf-8")) for file in ("tokens", "report"))

    return run


def drafted_positions() -> list[int]:
    """Of all roots that had drafts, by the trace of the last run."""
    (decoding,) = json.loads(Path("trace.json").read_text(encoding="utf-8"))["decodings"]
    return [share["position"] for round in decoding["rounds"] for share in round["images"] if share["depth"]]


@pytest.mark.parametrize("drafter", ["toy", "repeat", "jacobi", "network", "network+jacobi"])
def test_a_new_policy_draws_the_same_picture_with_every_drafter(generate, tiny, drafter):
    plain, _ = generate("plain", "--method", "autoregressive")
    path = drafter.replace("network", str(tiny / "drafter"))
    tokens, report = generate("toy", "--method", "toy", "--stride", "2", "--drafter", path)
    assert tokens == plain
    assert report["method"] == "toy" and report["drafting"]["stride"] == 2 and report["verified_nodes"] > 0
    assert drafted_positions() and all(position % 2 == 0 for position in drafted_positions())


@pytest.mark.parametrize("method", ["toy", "eagle2", "adt-tree", "auto"])
def test_a_new_drafter_draws_the_same_picture_by_every_policy(generate, method):
    plain, _ = generate("plain", "--method", "autoregressive")
    tokens, report = generate("toy", "--drafter", "toy", "--method", method)
    assert tokens == plain and report["drafter"] == "toy" and report["method"] == method


def test_the_drafters_defaults_hold_where_nothing_is_asked_for(generate):
    _, report = generate("toy", "--drafter", "toy")
    assert report["method"] == "eagle2" and report["drafting"]["depth"] == DEPTH


def test_the_options_are_in_the_png_which_can_be_made_again(generate):
    tokens, _ = generate("toy", "--method", "toy", "--stride", "2", "--drafter", "toy")
    saved = read_settings(Path("toy-0001.png"))
    assert (saved["method"], saved["stride"], saved["drafter"]) == ("toy", 2, "toy")
    options = ["--model", saved["model"], "--output", "again.png", "--device", "cpu"]
    assert cli.main(["generate", "--from-png", "toy-0001.png", *options]) == 0
    again = read_settings(Path("again.png"))
    assert again == saved and Path("again.png").read_bytes() == Path("toy-0001.png").read_bytes()


def test_the_help_shows_method_and_option(capsys):
    with pytest.raises(SystemExit):
        cli.main(["generate", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "toy: drafts now and then" in said and "--stride" in said
    help = "Drafts where the position is a multiple of this, 25 % of them"
    assert f"{help} (default: 4, or automatic for drafter and device)" in said
    assert list(options())[-1] == "stride", "saved workflows name the options before it by their position"


@pytest.mark.parametrize(
    "given, sentence",
    [(["--stride", "0"], "stride is 0; it must be a whole number from 1 to 9."), (["--method", "tay"], "toy")],
)
def test_bad_values_are_refused(capsys, given, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["generate", "--prompt", "a cat", "--output", "a.png", "--method", "toy", "--drafter", "toy", *given]
    assert cli.main(command) == 2 and sentence in capsys.readouterr().err


def test_the_toy_is_a_drafter():
    toy: Drafter = ToyDrafter()
    assert {name for name in dir(Drafter) if not name.startswith("_")} <= set(dir(toy))
