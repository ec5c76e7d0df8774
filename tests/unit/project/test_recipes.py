"""Tests of the recipes in docs/architecture.md, with a new policy and new drafters outside of the package.

A policy or a drafter needs only a class and a line in a table. After that, the command line must accept its name,
images must not change, and PNGs and reports must contain the name.
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
from adt_core.drafters import DRAFTERS, NETWORKS, Drafter, NetworkKind, Prefill, Proposer, TreeSizes, Verified
from adt_core.models.rows import BatchRows, Roots
from adt_core.policies import (
    PLAIN_SHAPE,
    POLICIES,
    ActiveImage,
    Context,
    DraftMode,
    DraftSettings,
    Policy,
    Shape,
    options,
)
from adt_core.policies.auto import Auto, shape_of
from adt_core.rules.noise import Noise
from adt_core.rules.tree import DraftTree, chain
from adt_core.run.images import read_settings
from adt_core.settings import setting
from adt_core.trace import Round
from tests.command import read_grids, read_lines, words
from tests.drafted import run
from tests.raising import raises_key

DEPTH = 3

# ---- a policy ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToySettings(DraftSettings):
    stride: int = setting(4, "Drafts where the position is a multiple of this, 25 % of them.", low=1, high=9)


class ToyPolicy(Policy):
    """Policy that drafts only at positions that are multiples of `stride`."""

    settings_type = ToySettings
    help = "drafts now and then"

    @classmethod
    def largest(cls, settings: ToySettings) -> Shape:
        return Shape(DEPTH, 1, DEPTH)

    def choose(self, slots: Sequence[ActiveImage]) -> list[Shape]:
        shape = self.largest(self.settings)
        return [PLAIN_SHAPE if slot.position % self.settings.stride else shape for slot in slots]


class BetterMode(Policy):
    """Policy that tries two draft modes. It uses the mode with more accepted drafts per round of this decoding."""

    help = "the better of two draft modes"
    chooses = True
    largest = Auto.largest

    def __init__(self, context: Context):
        super().__init__(context)
        self.accepted: dict[DraftMode, list[int]] = {mode: [] for mode in context.modes[:2]}
        self.chosen = context.modes[0]

    def choose(self, slots: Sequence[ActiveImage]) -> list[Shape]:
        self.chosen = max(self.accepted, key=lambda mode: mean(self.accepted[mode] or [inf]))
        return [shape_of(self.chosen, 8)] * len(slots)

    def on_verified(self, round: Round) -> None:
        self.accepted[self.chosen] += [record.accepted for record in round.images]


@pytest.mark.parametrize("drafter", ["network", "jacobi"])
def test_a_policy_can_choose_between_draft_modes(models, monkeypatch, drafter):
    """For this test, a network is combined with the Jacobi window.

    Both modes must be used, and the image must not change.
    """
    chosen = set()

    class Recording(BetterMode):
        def choose(self, slots):
            shapes = super().choose(slots)
            chosen.add(self.chosen.name)
            return shapes

    monkeypatch.setitem(POLICIES, "better", Recording)
    target, network = models
    drafts = network if drafter == "network" else load_drafter("jacobi", target)
    assert run(target, drafts, drafting=Drafting("better")).codes.equal(run(target).codes)
    assert len(chosen) == 2


# ---- a minimal drafter ---------------------------------------------------------------------------


class LastTokenDrafter(Drafter):
    """Drafter without weights and state. It drafts the last token again."""

    defaults = {"method": "eagle2", "depth": DEPTH, "width": 1, "drafts": DEPTH}
    modes = (DraftMode("last token", width=1),)

    def proposer(self, context: Context, rows: BatchRows, noise: Noise | None) -> Proposer:
        return LastTokenProposer(context, rows, noise)


class LastTokenProposer(Proposer):
    def propose(self, roots: Roots, shapes: TreeSizes) -> DraftTree:
        depth = min(shapes.depth, shapes.drafts)
        tokens = roots.codes[:, None].expand(-1, depth + 1)  # [B, root and drafts]
        # some images may get fewer drafts than others
        is_wanted = torch.arange(depth, device=tokens.device) < shapes.lengths
        return chain(tokens, torch.where(is_wanted, 0.0, -torch.inf))


# ---- a drafter with state, written without the base class ----------------------------------------


class ToyDrafter:
    """Drafter that repeats the tokens of the row above."""

    defaults = {"method": "eagle2", "depth": DEPTH, "width": 1, "drafts": DEPTH}
    name = ""
    network = None
    kind = "toy"
    modes = ()
    gpu_defaults: dict = {}
    unguided_gpu_defaults: dict = {}
    gpu_method_defaults: dict = {}

    def proposer(self, context: Context, rows: BatchRows, noise: Noise | None) -> Proposer:
        return ToyProposer(context, rows, noise)

    def uncommitted(self, largest: Shape) -> int:
        return 0

    def cache_bytes(self, rows: int, cache_length: int, itemsize: int) -> int:
        return 0


class ToyProposer(Proposer):
    """State of `ToyDrafter`.

    Attribute `_codes` [B, T + DEPTH + 1] has the decided tokens, and 0 elsewhere.
    """

    by_image = ("_codes",)
    _codes: Tensor

    def begin(self, prefill: Prefill) -> None:
        length = self.context.target.length + DEPTH + 1
        self._codes = torch.zeros(self.rows.images, length, dtype=torch.long, device=prefill.z.device)

    def propose(self, roots: Roots, shapes: TreeSizes) -> DraftTree:
        above = roots.at + 1 + torch.arange(shapes.depth, device=roots.at.device) - self.context.columns
        drafts = self._codes.gather(1, above.clamp_min(0))
        is_wanted = torch.arange(shapes.depth, device=roots.at.device) < shapes.lengths
        return chain(torch.cat([roots.codes[:, None], drafts], 1), torch.where(is_wanted, 0.0, -torch.inf))

    def on_verified(self, verified: Verified) -> None:
        codes = verified.following
        at = verified.roots.at + 1 + torch.arange(codes.shape[1], device=codes.device)
        self._codes.scatter_(1, at, codes)  # codes after the new root are overwritten in later rounds


def test_the_toy_has_the_interface_of_a_drafter():
    toy: Drafter = ToyDrafter()
    assert {name for name in dir(Drafter) if not name.startswith("_")} <= set(dir(toy))


# ---- on the command line -------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def table_lines(monkeypatch):
    """Add the lines for the new policy and drafters to the tables."""
    monkeypatch.setitem(POLICIES, "toy", ToyPolicy)
    monkeypatch.setitem(DRAFTERS, "toy", ToyDrafter)
    monkeypatch.setitem(DRAFTERS, "last-token", LastTokenDrafter)


@pytest.fixture
def generate(tiny, tmp_path, monkeypatch):
    """Return a function that generates two images with the tiny model. It returns their tokens and the report."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *given: str) -> tuple[list, dict]:
        options = {"model": tiny / "target", "prompt": "a cat", "num_images_per_prompt": 2, "seed": 3, "device": "cpu"}
        files = {"output": f"{name}.png", "tokens": "tokens.json", "report": "report.json", "trace": "trace.json"}
        assert cli.main([*words("generate", **options, **files), *given]) == 0
        return read_grids("tokens.json"), json.loads(Path("report.json").read_text(encoding="utf-8"))

    return run


def drafted_positions() -> list[int]:
    """Return the positions of all roots with drafts in the last run, from the trace."""
    rounds = [round for decoding in read_lines("trace.json") for round in decoding["rounds"]]
    return [record["position"] for round in rounds for record in round["images"] if record["depth"]]


@pytest.mark.parametrize("drafter", ["toy", "last-token", "jacobi", "network", "network+jacobi"])
def test_a_new_policy_gives_the_same_image_with_every_drafter(generate, tiny, drafter):
    plain, _ = generate("plain", "--method", "no-drafting")
    path = drafter.replace("network", str(tiny / "drafter"))
    tokens, report = generate("toy", "--method", "toy", "--stride", "2", "--drafter", path)
    assert tokens == plain
    assert report["method"] == "toy" and report["drafting"]["stride"] == 2 and report["verified_drafts"] > 0
    assert drafted_positions() and all(position % 2 == 0 for position in drafted_positions())


@pytest.mark.parametrize("drafter", ["toy", "last-token"])
@pytest.mark.parametrize("method", ["toy", "eagle2", "adt-tree", "auto"])
def test_a_new_drafter_gives_the_same_image_with_every_policy(generate, method, drafter):
    plain, _ = generate("plain", "--method", "no-drafting")
    tokens, report = generate("toy", "--drafter", drafter, "--method", method)
    assert tokens == plain and report["drafter"] == drafter and report["method"] == method


@pytest.fixture
def read_from_files(monkeypatch):
    """Add the line for a kind of drafter that is loaded from folders whose names end in .toy."""

    class FromFiles(LastTokenDrafter):
        pass

    kind = NetworkKind(FromFiles, lambda path: path.endswith(".toy"), lambda *given: FromFiles(), lambda *given: True)
    monkeypatch.setattr("adt_core.drafters.load.NETWORKS", [*NETWORKS, kind])


def test_one_line_adds_a_drafter_with_files(generate, read_from_files, tiny, capsys):
    """Its defaults are used, its name is saved, and other drafters with files still work."""
    plain, _ = generate("plain", "--method", "no-drafting")
    tokens, report = generate("toy", "--drafter", "my.toy")
    assert tokens == plain and report["drafter"].endswith("my.toy") and report["drafting"]["depth"] == DEPTH
    tokens, report = generate("network", "--method", "eagle2", "--drafter", str(tiny / "drafter"))
    assert tokens == plain and report["verified_drafts"] > 0


def test_a_drafter_without_such_a_combination_refuses_the_window(read_from_files, models):
    with raises_key("drafter.no_window", network="'my.toy'"):
        load_drafter("my.toy+jacobi", models[0])


def test_a_drafters_defaults_are_used_if_nothing_is_given(generate):
    _, report = generate("toy", "--drafter", "toy")
    assert report["method"] == "eagle2" and report["drafting"]["depth"] == DEPTH


def test_an_unknown_drafter_is_refused_with_the_valid_names(tiny, tmp_path, monkeypatch, capsys):
    """Older versions had a drafter with the name `repeat`."""
    monkeypatch.chdir(tmp_path)
    command = ["generate", "--model", str(tiny / "target"), "--prompt", "a cat", "--drafter", "repeat"]
    assert cli.main([*command, "--output", "a.png", "--device", "cpu"]) == 1
    sentence = "drafter 'repeat' does not exist; give 'bundled', 'jacobi', a folder with config.json and weights"
    assert sentence in capsys.readouterr().err


def test_options_are_saved_in_the_png_which_can_be_reproduced(generate, tiny):
    generate("toy", "--method", "toy", "--stride", "2", "--drafter", "toy")
    saved = read_settings(Path("toy-0001.png"))
    assert (saved["method"], saved["stride"], saved["drafter"]) == ("toy", 2, "toy")
    options = ["--model", str(tiny / "target"), "--output", "again.png", "--device", "cpu"]
    assert cli.main(["generate", "--from-png", "toy-0001.png", *options]) == 0
    again = read_settings(Path("again.png"))
    assert again == saved and Path("again.png").read_bytes() == Path("toy-0001.png").read_bytes()


def test_the_help_shows_method_and_option(capsys):
    with pytest.raises(SystemExit):
        cli.main(["generate", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "toy: drafts now and then" in shown and "--stride" in shown
    help = "Drafts where the position is a multiple of this, 25 % of them"
    assert f"{help} (default: 4, or automatic for drafter and device)" in shown
    assert list(options())[-1] == "stride", (
        "new options must come last, because saved workflows refer to options by position"
    )


@pytest.mark.parametrize(
    "given, sentence",
    [(["--stride", "0"], "stride is 0; it must be a whole number from 1 to 9."), (["--method", "tay"], "toy")],
)
def test_invalid_values_are_refused(capsys, given, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["generate", "--prompt", "a cat", "--output", "a.png", "--method", "toy", "--drafter", "toy", *given]
    assert cli.main(command) == 2 and sentence in capsys.readouterr().err
