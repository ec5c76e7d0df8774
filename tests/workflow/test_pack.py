"""Tests that ComfyUI loads the pack without output, and that other nodes don't change."""

import pytest
from comfy_server import PACKS, ROOT, Comfy


def test_loading_logs_no_warning(release, tmp_path):
    with_pack = Comfy(release, tmp_path / "with_pack", {"ADT-Tree": PACKS["ADT-Tree"]}).load_packs()
    without_pack = Comfy(release, tmp_path / "without_pack", {}).load_packs() if with_pack else []
    assert [line for line in with_pack if line not in without_pack] == []


@pytest.mark.parametrize("name", ["ADT Tree (1)", "雪-pack"])
def test_scripts_are_served_for_any_folder_name(release, name, tmp_path):
    """For folders with such names, ComfyUI answers requests for scripts with 404. The pack must serve them."""
    with Comfy(release, tmp_path, {name: ROOT}) as server:
        scripts = [path for path in server.get("/extensions") if path.startswith("/extensions/ADT-Tree/")]
        assert len(scripts) == len(list((ROOT / "js").rglob("*.js"))) and all(map(server.get, scripts))
        assert f"the folder is called '{name}'" in server.log.read_text(encoding="utf-8")


@pytest.mark.smoke
def test_comfyui_keeps_its_own_nodes(object_info):
    assert object_info["KSampler"]["python_module"] == "nodes"
    ours = [node["python_module"] for name, node in object_info.items() if name.startswith("ADTTree")]
    assert len(ours) == 18 and set(ours) == {"custom_nodes.ADT-Tree"}
