"""A random model and its network in place of the bundled ones. Its pictures are as large, and take a fifth of the time:
for tests of what nodes do with any model."""

from pathlib import Path

from convert import Graph

SMALL = "small"


def write_small(models: Path) -> None:
    """Into the ``models`` of a server, both under this name."""
    from tests.tiny import write_tiny_checkpoint, write_tiny_drafter

    target = write_tiny_checkpoint(models / "ar_image" / SMALL, scale=3.0, resolution=128, max_positions=512)
    write_tiny_drafter(models / "ar_image_drafters" / SMALL, target)


def with_small_models(graph: Graph) -> Graph:
    """With them wherever it has the bundled ones."""
    for node in graph.prompt.values():
        node["inputs"] |= {name: SMALL for name in ("model", "drafter") if node["inputs"].get(name) == "bundled"}
    return graph
