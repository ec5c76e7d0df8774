"""Tests of determinism on a GPU: tokens and trees must not depend on the order in which threads run.

The tests decode on the CPU and inspect every operation. On a GPU, some operations add floats in an undefined order
(atomics). Such operations must not occur. If an operation writes the same element twice, the last write is undefined on
a GPU. The tests therefore also execute writes in reverse order. Tokens and trees must stay the same.
"""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from adt_core import Drafting, Lantern, Sampling, load_drafter, load_target
from adt_core.drafters import with_window
from tests.drafted import run

ADDING = {"index_add", "scatter_add", "index_reduce", "histc", "bincount", "_embedding_bag", "put"}
"""Operations that add in an undefined order. For integers, the order doesn't matter."""
PICKING = {"median", "nanmedian", "kthvalue", "mode"}
"""Operations that may return any of several equal values."""
SCANS = {"cumsum", "cumprod", "logcumsumexp"}
"""Operations that scan a long row in an undefined order, if the row is scanned by several blocks of threads. In
float64, the differences are too small to matter."""
LONG = 40
"""Number of codes of the tiny target. In these tests, a row of this length counts as too long for one block."""


class ReverseWrites(TorchDispatchMode):
    """Mode that executes writes in reverse order and records operations."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()  # operations that aren't deterministic on a GPU
        self.seen: set[str] = set()  # all operations

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        kwargs = kwargs or {}
        self.seen.add(name)
        if is_nondeterministic(name, args, kwargs):
            self.found.add(name)
        if name == "scatter" and isinstance(args[3], Tensor):
            table, dim, index, values = args
            values = values[tuple(slice(n) for n in index.shape)]
            args = table, dim, index.flip(dim), values.flip(dim)
        elif name == "index_put" and all(isinstance(index, Tensor) for index in args[1]):
            table, indices, values = args[:3]
            indices = torch.broadcast_tensors(*indices)
            dims = list(range(indices[0].ndim))
            values = values.expand(*indices[0].shape, *table.shape[len(indices) :])
            args = table, [index.flip(dims) for index in indices], values.flip(dims), *args[3:]
        return func(*args, **kwargs)


def is_nondeterministic(name: str, args: tuple, kwargs: dict) -> bool:
    floats = any(isinstance(value, Tensor) and value.is_floating_point() for value in args)
    if name in SCANS:
        table, dim = args[:2]
        one_row = table.numel() == table.shape[dim] >= LONG
        return floats and one_row and kwargs.get("dtype", table.dtype) != torch.float64
    adds = name == "index_put" and len(args) > 3 and args[3]
    adds |= name == "scatter_reduce" and args[4] not in ("amax", "amin")
    return floats and (adds or name in ADDING | PICKING)


@pytest.fixture(scope="module")
def models(tiny):
    """Return the target and its drafters in float32, the default on a CPU."""
    target = load_target(tiny / "target")
    network = load_drafter(tiny / "drafter", target)
    jacobi = load_drafter("jacobi", target)
    return target, {None: None, "network": network, "window": jacobi, "merged": with_window(network)}


TREE = dict(method="eagle2", depth=6, width=3, drafts=14)
CHAIN = dict(method="eagle2", depth=8, width=1, drafts=8)
CASES = {
    "plain": (None, dict(method="no-drafting"), {}),
    "network": ("network", TREE, {}),
    "adt-tree": ("network", dict(method="adt-tree"), {}),
    "published": ("network", dict(method="static:mc_sim_7b_63"), {}),
    "window": ("window", TREE, {}),
    "window, adt-tree": ("window", dict(method="adt-tree"), {}),
    "window, a chain": ("window", CHAIN, {}),
    "merged": ("merged", TREE, {}),
    "merged, top-k": ("merged", TREE | {"proposal": "top-k"}, {}),
    "lantern": ("network", TREE, {"lantern": Lantern(39, 0.5)}),
    "lantern++": ("window", TREE, {"lantern": Lantern(39, factor=3.0)}),
    "greedy lantern": ("network", TREE, {"lantern": Lantern(39, 0.5), "sampling": Sampling(temperature=0)}),
}
FILTERED = Sampling(seed=3, top_k=30, top_p=0.9, temperature=0.9)


def decode(models, case: str, images: int) -> tuple[Tensor, list]:
    """Decode images with a case. Return the codes, and the trace of every tree."""
    target, drafters = models
    source, options, more = CASES[case]
    prompts = ("a cat", "three small dogs", "x")[:images]
    more = {"sampling": FILTERED, **more}
    decoding = run(target, drafters[source], prompts, drafting=Drafting.of(options), batch_size=min(images, 2), **more)
    return decoding.codes, [round.images for round in decoding.trace.rounds]


QUICK = "adt-tree", "window", "merged", "lantern"
"""Cases of the default tier (tests that run without ``--all``)."""


@pytest.mark.parametrize("images", [pytest.param(1, marks=pytest.mark.long), 3])
@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.long) for case in CASES]
)
def test_tokens_and_trees_do_not_depend_on_the_order_of_threads(models, case, images):
    codes, trees = decode(models, case, images)
    with ReverseWrites() as watched:
        codes_again, trees_again = decode(models, case, images)
    assert not watched.found
    assert "argmax" in watched.seen
    assert torch.equal(codes_again, codes) and trees_again == trees


@pytest.mark.parametrize(
    "bad",
    [
        lambda x: x.index_add(0, torch.tensor([0, 0]), x[:2]),
        lambda x: x.scatter_add(0, torch.zeros(4, 3, dtype=torch.long), x[:4]),
        lambda x: x.scatter_reduce(0, torch.zeros(4, 3, dtype=torch.long), x[:4], "sum"),
        lambda x: x.index_put((torch.tensor([0, 0]),), x[:2], accumulate=True),
        lambda x: torch.bincount(torch.zeros(50, dtype=torch.long), x[:, 0]),
        lambda x: x[:, 0].cumsum(0),
        lambda x: x[:, 0].median(0),
    ],
)
def test_nondeterministic_operations_are_detected(bad):
    with ReverseWrites() as watched:
        bad(torch.ones(50, 3))
    assert watched.found


def test_writes_are_reversed():
    table = torch.zeros(2, 3)
    at = torch.tensor([[1, 1], [2, 0]])
    values = torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    with ReverseWrites():
        scattered = table.scatter(1, at, values)
        put = table.index_put((torch.arange(2)[:, None], at), values)
    expected = [[0, 5, 0], [8, 0, 7]]
    assert scattered.tolist() == put.tolist() == expected and table.scatter(1, at, values)[0, 1] == 6
