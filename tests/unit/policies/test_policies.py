"""Tests of policies with a constant shape, of ADT-Tree's rules, and of the choice of a method and its options.

In comments, a shape is (depth, width) of a tree, and a cell is the position of a token in raster order. Alpha is the
number of accepted drafts divided by the depth of the tree; a tree becomes deeper if alpha is at least beta.
"""

from types import SimpleNamespace

import pytest
import torch

from adt_core import Drafting, Sampling
from adt_core.drafters import drafter_defaults
from adt_core.models.batch_invariance import NEAR_WINDOW, TILE
from adt_core.policies import PLAIN, PLAIN_SHAPE, POLICIES, ActiveImage, Context, DraftMode, Policy, Shape, options
from adt_core.run import resolve
from adt_core.run.resolve import Hardware, resolve_recipe
from adt_core.trace import ImageRound, Round
from tests.drafted import costs
from tests.raising import raises_key

SETTINGS = dict(depth=4, width=3, drafts=9, depth_min=1, depth_max=6, width_min=1, width_max=5, beta=0.5)
IMAGE_INDICES = (0, 1, 2)


def policy(method="adt-tree", *, columns=8, seed=0, **settings) -> Policy:
    drafting = Drafting(method, **settings)
    context = Context(
        target=SimpleNamespace(columns=columns, length=64),
        sampling=Sampling(seed),
        settings=drafting.settings,
        largest=drafting.policy.largest(drafting.settings),
        keys=[(seed, index) for index in IMAGE_INDICES],
        modes=(DraftMode("network"),),
        profile=costs("network"),
    )
    made = drafting.policy(context)
    made.begin()
    return made


def adt_tree(columns=8, **changes) -> Policy:
    return policy(columns=columns, **{**SETTINGS, **changes})


def predicted(columns=8, **changes) -> Policy:
    return policy("predicted", columns=columns, **{**SETTINGS, **changes})


def size(policy: Policy, position: int, image: int = 0) -> tuple[int, int]:
    """Return depth and width of the tree whose root is at `position`."""
    (shape,) = policy.choose([ActiveImage(image, position)])
    assert shape.drafts == SETTINGS["drafts"] and not shape.tree
    return shape.depth, shape.width


def add_round(policy: Policy, position: int, accepted: int, depth: int, image: int = 0) -> None:
    """Report a round to the policy, with the root at `position` and a tree of this depth."""
    record = ImageRound(image, position, depth, 1, depth, depth, accepted, (0,) * accepted)
    policy.on_verified(Round(0, 0.01, 0.001, 1, (record,)))


# ---- ADT-Tree: adjacency, refinement, row wrap, independent images ---------------------------------


def test_the_first_shape_is_the_configured_one_within_the_bounds():
    assert adt_tree().choose([ActiveImage(0, 0)]) == [Shape(4, 3, 9)]
    assert size(adt_tree(depth=9, width=9), 0) == (6, 5)


def test_trees_become_deeper_and_narrower_after_success_and_the_reverse_after_failure():
    p = adt_tree()
    size(p, 0)
    add_round(p, 0, accepted=2, depth=4)  # alpha = 0.5 >= beta
    assert size(p, 3) == (5, 2)
    add_round(p, 3, accepted=0, depth=5)
    assert size(p, 4) == (4, 3)


def test_alpha_is_relative_to_the_depth_of_the_verified_tree():
    p = adt_tree()
    size(p, 0)
    add_round(p, 0, accepted=1, depth=2)  # alpha = 1 / 2: the tree has depth 2, although the policy chose depth 4
    assert size(p, 2)[0] == 5


def test_shapes_stay_within_the_bounds():
    p = adt_tree()
    for position in range(20):
        size(p, position)
        add_round(p, position, accepted=0, depth=3)
    assert size(p, 20) == (1, 5)
    for position in range(20, 60, 2):
        size(p, position)
        add_round(p, position, accepted=1, depth=1)
    assert size(p, 60) == (6, 1)


def test_a_round_without_drafts_changes_nothing():
    p = adt_tree()
    shape = size(p, 0)
    add_round(p, 0, accepted=0, depth=0)
    assert size(p, 1) == shape


def test_vertical_starts_from_the_tree_above_the_next_token():
    """The shape then moves by the acceptance of the previous tree, as with the other values of `init`."""
    p = adt_tree(init="vertical", depth_step=2)
    assert size(p, 0) == (4, 3)
    add_round(p, 0, accepted=0, depth=4)  # token 1
    assert size(p, 1) == (2, 4)  # there is no row above, so it starts from the previous tree
    add_round(p, 1, accepted=4, depth=4)  # tokens 2 to 6
    assert size(p, 6) == (4, 3)
    add_round(p, 6, accepted=1, depth=4)  # tokens 7 and 8
    # A row has 8 tokens. The next token is 9, and token 1 is above it. The token above the root, 0, has no tree.
    assert size(p, 8) == (2, 4)  # (4, 3) of token 1, one step shallower and wider
    add_round(p, 8, accepted=1, depth=1)  # tokens 9 and 10
    assert size(p, 10) == (4, 3)  # token 11: (2, 4) of token 3, one step deeper and narrower


def test_predicted_depth_is_the_expected_number_of_accepted_drafts_divided_by_beta():
    p = predicted(depth_max=20, depth_min=2, predict_from="left")  # the prior is beta * depth = 2 accepted drafts
    assert size(p, 0) == (4, 5)  # the initial depth
    add_round(p, 0, accepted=4, depth=4)
    assert size(p, 5) == (7, 4)  # accepted on the left: 4; mean of the image: (2 + 4) / 2 = 3; depth 3.5 / 0.5 = 7
    add_round(p, 5, accepted=0, depth=7)
    assert size(p, 6) == (2, 5)  # accepted on the left: 0; mean of the image: 2; depth 2 has the maximum width


@pytest.mark.parametrize("source, expected", [("left", 2), ("above", 6), ("both", 4)])
def test_predict_from_selects_the_rounds_that_predict(source, expected):
    p = predicted(predict_from=source, depth_max=20, beta=0.5)
    size(p, 0)
    add_round(p, 0, accepted=4, depth=4)  # cells 1 to 5; a row has 8 cells
    size(p, 5)
    add_round(p, 5, accepted=2, depth=4)  # cells 6 to 8
    size(p, 8)
    add_round(p, 8, accepted=0, depth=4)  # cell 9; cells 2 to 5 are above the next cells
    # Accepted drafts on the left: 0; above: 4; mean of the image: (2 + 4 + 2 + 0) / 4 = 2. So 1, 3 and 2 accepted ones
    # are expected from left, above and both. The depth is this number divided by beta.
    assert size(p, 9)[0] == expected


def test_predicted_shapes_ignore_time_and_stay_within_the_bounds():
    shapes = []
    for seconds in (0.01, 9.0):
        p = predicted()
        sizes = []
        for position in range(0, 60, 3):
            sizes.append(size(p, position))
            record = ImageRound(0, position, 4, 1, 4, 4, 2 + position % 2, (0, 0))
            p.on_verified(Round(0, seconds, seconds, 1, (record,)))
        shapes.append(sizes)
    assert shapes[0] == shapes[1]
    assert all(1 <= depth <= 6 and 1 <= width <= 5 for depth, width in shapes[0])


@pytest.mark.parametrize("wrap, expected", [("carry", (6, 1)), ("vertical", (5, 2)), ("reset", (4, 3))])
def test_first_round_of_a_row(wrap, expected):
    p = adt_tree(wrap=wrap)
    assert size(p, 0) == (4, 3)
    add_round(p, 0, accepted=3, depth=4)  # tokens 1 to 4
    assert size(p, 4) == (5, 2)
    add_round(p, 4, accepted=4, depth=5)  # tokens 5 to 9; a row has 8 tokens
    assert size(p, 9) == expected  # token 10 is the next one, below token 2


def test_a_reset_happens_only_in_a_new_row():
    p = adt_tree(columns=4, wrap="reset")
    size(p, 0)
    add_round(p, 0, accepted=1, depth=2)
    assert size(p, 2) == (5, 2)


@pytest.mark.parametrize("root, expected", [(11, 9), (12, 14)])
def test_predictions_use_four_tokens_above_from_the_column_of_the_next_token_on(root, expected):
    """A row has ten tokens. The rounds of tokens 1 to 4 had no accepted drafts, the round of tokens 5 to 9 had four."""
    p = predicted(predict_from="above", columns=10, depth_max=20, beta=0.1)
    size(p, 0)
    for position in range(4):
        add_round(p, position, accepted=0, depth=4)
    add_round(p, 4, accepted=4, depth=4)
    # Mean of the image: (0.4 + 4) / 6 = 0.73. Above root 11 are the tokens 2 to 5 (mean 1), above 12 are 3 to 6 (2).
    assert size(p, root)[0] == expected


def test_random_chooses_the_first_shape_and_acceptance_moves_it():
    starts = set()
    for seed in range(40):
        (good, bad, again) = (adt_tree(init="random", seed=seed) for _ in range(3))
        start = size(good, 0)
        assert size(bad, 0) == size(again, 0) == start, "the shape depends only on the seed and the image"
        starts.add(start)
        for position in range(6):
            for p, accepted in ((good, 3), (bad, 0)):
                add_round(p, position, accepted, depth=3)
                size(p, position + 1)
        assert size(good, 6) == (6, 1) and size(bad, 6) == (1, 5)
    assert {depth for depth, _ in starts} == set(range(1, 7)) and {width for _, width in starts} == set(range(1, 6))


def test_random_starts_each_row_with_another_shape_if_rows_reset():
    p = adt_tree(init="random", wrap="reset", columns=1)
    assert len({size(p, position) for position in range(20)}) > 5
    assert size(adt_tree(init="random"), 0, image=1) != size(adt_tree(init="random"), 0, image=2)


def test_images_have_independent_shapes():
    p = adt_tree()
    p.choose([ActiveImage(0, 0), ActiveImage(1, 0)])
    add_round(p, 0, accepted=4, depth=4, image=0)
    add_round(p, 0, accepted=0, depth=4, image=1)
    assert [shape[:2] for shape in p.choose([ActiveImage(1, 1), ActiveImage(0, 5)])] == [(3, 4), (5, 2)]


def test_images_that_start_again_have_the_configured_shape():
    p = adt_tree()
    size(p, 0)
    add_round(p, 0, accepted=4, depth=4)
    p.begin()
    assert size(p, 5) == (4, 3)


# ---- other policies ------------------------------------------------------------------------------


def test_eagle2_has_a_constant_shape():
    p = policy("eagle2", depth=3, width=2, drafts=9)
    add_round(p, 0, accepted=3, depth=3)
    assert p.choose([ActiveImage(0, 4), ActiveImage(1, 0)]) == [Shape(3, 2, 9)] * 2


@pytest.mark.parametrize("method, size", [("mc_sim_7b_63", (5, 4, 25)), ("naive_extend_57", (5, 5, 57))])
def test_static_trees_have_the_published_shapes(method, size):
    p = policy(f"static:{method}")
    largest = Shape(*size, method)
    assert p.choose([ActiveImage(0, 0), ActiveImage(1, 7)]) == [largest] * 2 == [p.largest(p.settings)] * 2


def test_plain_decoding_drafts_nothing():
    p = policy(PLAIN)
    assert not p.begin() and p.choose([ActiveImage(0, 0)]) == [PLAIN_SHAPE] and not p.needs_drafter


@pytest.mark.parametrize("method", POLICIES)
def test_no_shape_is_larger_than_the_largest(method):
    """Memory is allocated for the largest shape."""
    p = policy(method)
    settings = Drafting(method).settings
    largest = POLICIES[method].largest(settings)
    for position in range(40):
        for shape in p.choose([ActiveImage(0, position)]):
            assert all(chosen <= most for chosen, most in zip(shape[:3], largest[:3]))
        add_round(p, position, accepted=position % 2, depth=2)


# ---- method and options --------------------------------------------------------------------------


def test_options_of_other_methods_are_refused_by_the_constructor_and_ignored_by_of():
    with raises_key("setting.choice", input="method", value="magic"):
        Drafting("magic")
    with raises_key("method.no_option", input="beta", method="eagle2"):
        Drafting("eagle2", beta=0.5)
    assert Drafting.of({"method": "eagle2", "beta": 0.5, "depth": 4, "width": None}) == Drafting("eagle2", depth=4)


def test_a_drafting_is_determined_by_its_options():
    assert Drafting() == Drafting.of({}) == Drafting("auto")
    drafting = Drafting("adt-tree", depth=2, proposal="top-k")
    assert drafting.flat() == {"method": "adt-tree", **drafting.flat()} and drafting.flat()["depth"] == 2
    assert Drafting(**drafting.flat()) == drafting and hash(Drafting(**drafting.flat())) == hash(drafting)
    assert drafting.replace(depth=3) == Drafting("adt-tree", depth=3, proposal="top-k")
    assert drafting.replace(method="eagle2") == Drafting("eagle2", depth=2, proposal="top-k")


def test_the_table_has_every_option_of_every_method():
    """Each option must have its default and a help text."""
    for method in POLICIES:
        settings = Drafting(method).flat()
        assert settings.pop("method") == method
        assert {name: options()[name].default for name in settings} == settings
    assert all(option.help.endswith(".") for option in options().values())
    assert list(options())[:4] == ["proposal", "depth", "width", "drafts"], "saved workflows store positions"
    assert list(options())[-3:] == ["expand_above", "keep_above", "predict_from"], "new options must come last"


# ---- defaults by drafter and device --------------------------------------------------------------


DRAFTERS = "bundled", "jacobi", "bundled+jacobi"


def drafting_of(method: str, drafter: str, device: str, guided: bool = True) -> Drafting:
    return Drafting.of({"method": method, **drafter_defaults(drafter, device, guided, method=method)})


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("method", ["adt-tree", "predicted"])
def test_default_trees_are_larger_on_a_gpu(method, drafter):
    cpu, cuda = (drafting_of(method, drafter, device) for device in ("cpu", "cuda"))
    small, large = (one.policy.largest(one.settings) for one in (cpu, cuda))
    assert large.depth >= small.depth and large.width >= small.width
    assert cuda.settings.drafts > 24 >= cpu.settings.drafts and cuda.settings.depth_max < NEAR_WINDOW
    assert 2 * (cuda.settings.drafts + 1) % TILE["cuda"] == 0, "with guidance and the root, tiles are full"


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_default_trees_of_a_network_fill_a_tile_also_without_guidance(drafter):
    """The Jacobi window has the same defaults with and without guidance."""
    guided, unguided = (drafter_defaults(drafter, "cuda", guided, method=None) for guided in (True, False))
    nodes = 2 * guided["drafts"] + 1 if drafter == "bundled" else guided["drafts"]
    assert unguided["drafts"] == nodes
    cpu = (drafter_defaults(drafter, "cpu", guided, method=None) for guided in (True, False))
    assert next(cpu) == next(cpu)


CUDA = Hardware(torch.device("cuda"), bfloat16=True, float16=True)


@pytest.mark.parametrize(
    "kind, facts, expected",
    [
        ("cpu", {}, False),
        ("mps", {"macos": "13.6.1"}, False),
        ("mps", {"macos": "14.0"}, True),
        ("cuda", {"major": 7}, False),
        ("cuda", {"major": 8}, True),
        ("cuda", {"amd": "gfx1030"}, False),
        ("cuda", {"amd": "gfx906:sramecc+:xnack-"}, False),
        ("cuda", {"amd": "gfx90a:sramecc+:xnack-"}, True),
        ("cuda", {"amd": "gfx1100"}, True),
    ],
)
def test_devices_with_bfloat16(monkeypatch, kind, facts, expected):
    monkeypatch.setattr(resolve.platform, "mac_ver", lambda: (facts.get("macos", ""), ("", "", ""), ""))
    monkeypatch.setattr(torch.version, "hip", "6.4" if "amd" in facts else None)
    properties = SimpleNamespace(gcnArchName=facts.get("amd"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (facts.get("major", 9), 0))
    assert resolve.has_bfloat16(torch.device(kind)) is expected


@pytest.mark.parametrize("guidance, nodes", [(3.0, 31), (1.0, 63), (None, 31)])
def test_defaults_of_a_recipe_depend_on_guidance(guidance, nodes):
    drafting = resolve_recipe({"method": "adt-tree", "guidance_scale": guidance}, CUDA).drafting
    assert drafting.settings.drafts == nodes


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_given_options_override_the_defaults(device):
    given = {"method": "adt-tree", "init": "vertical", "drafts": 5, "depth_max": 30}
    assert given.items() <= resolve_recipe(given, Hardware(torch.device(device))).drafting.flat().items()


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("guided", [True, False])
def test_acceptance_changes_depth_and_width_on_every_device(drafter, device, guided):
    """The paper's rule has two halves. If the bounds of the width were equal, only the depth could change."""
    settings = drafting_of("adt-tree", drafter, device, guided).settings
    shapes = set()
    p = policy("adt-tree", **settings.flat())
    for position in range(40):
        (shape,) = p.choose([ActiveImage(0, position)])
        shapes.add(shape[:2])
        add_round(p, position, accepted=position // 20, depth=1)
    depths, widths = map(set, zip(*shapes))
    assert {settings.depth_min, settings.depth_max} <= depths
    assert {settings.width_min, settings.width_max} <= widths


def test_predicted_has_bounds_of_its_own():
    own, paper = (resolve_recipe({"method": method}, CUDA).drafting.settings for method in ("predicted", "adt-tree"))
    assert own.predict_from == "both" and paper.init == "horizontal"
    assert (own.width_min, own.width_max) != (paper.width_min, paper.width_max)


@pytest.mark.parametrize("name", ["depth", "width"])
def test_a_minimum_above_the_maximum_is_refused(name):
    with raises_key("bounds.crossed", input=f"{name}_min", low=9, other=f"{name}_max", high=8):
        Drafting("adt-tree", **{f"{name}_min": 9, f"{name}_max": 8})
