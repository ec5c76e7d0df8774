"""The pack in ComfyUI: it loads silently and leaves ComfyUI what it has."""

import pytest
from comfy_server import PACKS, ROOT, Comfy


def test_loads_without_a_word(release, tmp_path):
    """Starting with the pack says nothing at the level of warnings that starting without it does not say."""
    together = Comfy(release, tmp_path / "together", {"ADT-Tree": PACKS["ADT-Tree"]}).load_packs()
    alone = Comfy(release, tmp_path / "alone", {}).load_packs() if together else []
    assert [line for line in together if line not in alone] == []


@pytest.mark.parametrize("name", ["ADT Tree (1)", "雪-pack"])
def test_the_page_gets_its_scripts_whatever_the_folder_is_called(release, name, tmp_path):
    """ComfyUI itself answers 404 for scripts of such a folder."""
    with Comfy(release, tmp_path, {name: ROOT}) as server:
        scripts = [path for path in server.get("/extensions") if path.startswith("/extensions/ADT-Tree/")]
        assert len(scripts) == len(list((ROOT / "js").rglob("*.js"))) and all(map(server.get, scripts))
        assert f"the folder is called '{name}'" in server.log.read_text(encoding="utf-8")


@pytest.mark.smoke
def test_comfyui_keeps_its_own_nodes(object_info):
    assert object_info["KSampler"]["python_module"] == "nodes"
    ours = [node["python_module"] for name, node in object_info.items() if name.startswith("ADTTree")]
    assert len(ours) == 17 and set(ours) == {"custom_nodes.ADT-Tree"}
