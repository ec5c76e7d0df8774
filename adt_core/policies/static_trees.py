"""The published static trees, as the paths of their nodes: each a string of sibling ranks (EAGLE, arXiv 2401.15077; LANTERN++)."""

# Children of every node that has any, by the node's path; children have the ranks 0, 1, ...
_CHILDREN: dict[str, dict[str, int]] = {
    "mc_sim_7b_63": {"": 4, "0": 3, "1": 2, "2": 2, "3": 1, "00": 3, "01": 2, "02": 2, "10": 1, "000": 3, "0000": 2},
    "naive_extend_57": {
        "": 5,
        "0": 4,
        "1": 3,
        "2": 3,
        "3": 2,
        "4": 1,
        "00": 4,
        "01": 3,
        "02": 3,
        "03": 2,
        "10": 2,
        "11": 1,
        "20": 1,
        "000": 4,
        "001": 3,
        "002": 2,
        "003": 1,
        "010": 2,
        "011": 1,
        "020": 1,
        "0000": 3,
        "0001": 2,
        "0010": 2,
        "0011": 1,
        "0020": 1,
    },
}


def _paths(children: dict[str, int]) -> tuple[tuple[str, ...], ...]:
    """Levels of a tree, the root's own first; every level in the order of its parents, then of the ranks."""
    levels = [("",)]
    while any(path in children for path in levels[-1]):
        levels.append(tuple(path + str(rank) for path in levels[-1] for rank in range(children.get(path, 0))))
    return tuple(levels)


STATIC_TREES = {name: _paths(children) for name, children in _CHILDREN.items()}
