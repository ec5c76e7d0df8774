"""Test that the keyed-noise verifier is lossless for any tree and any model."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from adt_core.rules.noise import keyed_gumbel
from adt_core.rules.tree import DraftTree
from adt_core.rules.verify import exact_agreement, longest_path
from tests.trees import tree_of

VOCABULARY = 5
LENGTH = 14


class RandomModel:
    """Stand-in for a model: each prefix has random but fixed logits. ``emit`` returns the token by keyed noise."""

    def __init__(self, seed: int, sharpness: float):
        self.seed = seed
        self.sharpness = sharpness
        self.noise = torch.from_numpy(keyed_gumbel(seed, 0, range(LENGTH + 1), VOCABULARY))

    def emit(self, prefix: tuple[int, ...]) -> int:
        key = hash((self.seed, prefix)) % 2**31
        generator = torch.Generator().manual_seed(key)
        logits = self.sharpness * torch.randn(VOCABULARY, dtype=torch.float64, generator=generator)
        return int((logits + self.noise[len(prefix)]).argmax())

    def plain(self) -> list[int]:
        tokens: list[int] = []
        for _ in range(LENGTH):
            tokens.append(self.emit(tuple(tokens)))
        return tokens


def random_tree(
    model: RandomModel, prefix: list[int], draw: torch.Generator, nodes: int, accuracy: float
) -> tuple[DraftTree, list[tuple[int, ...]]]:
    """Return a tree of at most `nodes` drafts with distinct siblings, and the token path to each node.

    A draft is correct with the probability `accuracy`. `prefix` are the tokens up to and including the root.
    """
    paths = [tuple(prefix)]
    parents = [0]
    tokens = [prefix[-1]]
    for _ in range(nodes):
        parent = int(torch.randint(len(paths), (), generator=draw))
        taken = {tokens[i] for i in range(1, len(paths)) if parents[i] == parent}
        free = [v for v in range(VOCABULARY) if v not in taken]
        if not free or len(paths[parent]) >= LENGTH:
            continue
        right = model.emit(paths[parent])
        use_right = right in free and torch.rand((), generator=draw) < accuracy
        token = right if use_right else free[int(torch.randint(len(free), (), generator=draw))]
        paths.append((*paths[parent], token))
        parents.append(parent)
        tokens.append(token)
    depths = [len(path) - len(prefix) for path in paths]
    order = [0, *sorted(range(1, len(paths)), key=lambda i: depths[i])]
    number = {old: new for new, old in enumerate(order)}
    return tree_of([tokens[i] for i in order], [number[parents[i]] for i in order]), [paths[i] for i in order]


@given(seed=st.integers(0, 10**6), nodes=st.integers(0, 12), accuracy=st.floats(0, 1), sharpness=st.floats(0, 4))
def test_random_trees_over_random_models_reproduce_plain_decoding(seed, nodes, accuracy, sharpness):
    model = RandomModel(seed, sharpness)
    draw = torch.Generator().manual_seed(seed)
    truth = model.plain()
    tokens = [model.emit(())]
    rounds = 0
    while len(tokens) < LENGTH:
        tree, paths = random_tree(model, tokens, draw, nodes, accuracy)
        emitted = torch.tensor([[model.emit(path) for path in paths]])
        acceptance = longest_path(tree, exact_agreement(tree, emitted), emitted)
        accepted = int(acceptance.accepted)
        path = acceptance.path[0, : accepted + 1].tolist()
        assert path[-1] == int(acceptance.last) and tree.depths[0, path].tolist() == list(range(accepted + 1))
        tokens += [int(tree.tokens[0, node]) for node in path[1:]] + [int(acceptance.next_root)]
        rounds += 1
    assert tokens[:LENGTH] == truth
    if accuracy == 1 and nodes:
        assert rounds < LENGTH - 1


def test_padding_nodes_are_never_accepted():
    """Padding does not agree even if its token is the one that the target emits after the root."""
    tree = tree_of([0, 3], [0, 0], valid=[True, False])
    emitted = torch.tensor([[3, 1]])
    agrees = exact_agreement(tree, emitted)
    assert agrees.tolist() == [[True, False]]
    acceptance = longest_path(tree, agrees, emitted)
    assert int(acceptance.accepted) == 0 and int(acceptance.next_root) == 3
