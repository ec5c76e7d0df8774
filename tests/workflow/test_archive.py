"""Tests of the registry's archive in ComfyUI, in an empty folder and without the rest of the repository."""

import numpy as np
import pytest
from comfy_server import Comfy
from test_workflows import FIRST, prompt_of

from tests import archive


@pytest.fixture(scope="session")
def installed(release, tmp_path_factory, meter):
    base = tmp_path_factory.mktemp(f"archive-{release.version}")
    pack = archive.build(base / "downloads" / "ADT-Tree")
    yield from Comfy.started(meter, release, base, {"ADT-Tree": pack})


@pytest.mark.smoke
def test_every_node_of_the_archive_is_imported(installed, object_info):
    ours = {name for name in object_info if name.startswith("ADTTree")}
    assert len(ours) == 18
    assert ours == {name for name in installed.get("/object_info") if name.startswith("ADTTree")}
    assert "IMPORT FAILED" not in installed.log.read_text(encoding="utf-8")


def test_the_archive_draws_the_first_template(installed, comfy, object_info):
    """The image must equal the repository's."""
    graph = prompt_of(FIRST, object_info)
    (here,), (there,) = (server.draw(graph.prompt) for server in (installed, comfy))
    assert here.shape == (256, 256, 3) and np.array_equal(here, there)
