"""Tests of nodes without ComfyUI's queue or server, of odd lists and folders, and of saved files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.raising import check_error

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import asyncio, sys
sys.path = [path for path in sys.path if path]
sys.argv = ["script.py"]
from comfy.cli_args import args
args.cpu = True
args.base_directory = {base!r}
import utils.install_util, execution, nodes
assert asyncio.run(nodes.load_custom_node({root!r}))

def run(kind, **inputs):
    node = nodes.NODE_CLASS_MAPPINGS[kind]
    return getattr(node(), node.FUNCTION)(**inputs)

def direct(kind, **inputs):
    return nodes.NODE_CLASS_MAPPINGS[kind].execute(**inputs).args

model, clip, vae = run("ADTTreeModelLoader", model="small", dtype="auto")
positive, = nodes.NODE_CLASS_MAPPINGS["CLIPTextEncode"]().encode(clip, "a cat")
drawn = {{"model": model, "positive": positive, "seed": 1, "batch_size": 1}}
latent = run("ADTTreeSampler", **drawn)[0]
assert (direct("ADTTreeSampler", **drawn)[0]["samples"] == latent["samples"]).all()
image, = nodes.NODE_CLASS_MAPPINGS["VAEDecode"]().decode(vae, latent)
one = {{"model": [model], "prompts": ["a cat"], "seed": [1]}}
results = direct("ADTTreeBatchSampler", **one)[2]
images = run("ADTTreeBatchSampler", **one)[0]
run("ADTTreeBatchReport", results=results, filename="report", columns=0, thumbnail_width=64, label="id")
print("drawn", tuple(image.shape), tuple(images.shape))
"""
"""Script that draws without a queue, and without a server, as scripts of workflow exporters do."""


@pytest.fixture
def batch(pack, small):
    """Return a function that draws a batch of one image with the small model, and returns its results."""

    def run(**inputs):
        given = {"model": [small.model], "drafter": [small.drafters["small"]], "prompts": ["a tall house"], "seed": [5]}
        return pack.run("ADTTreeBatchSampler", **given | inputs)[-1]

    return run


@pytest.mark.runner
def test_a_script_draws_without_queue_and_server(pack, tmp_path):
    base = tmp_path / "base"
    for folder in ("input", "output", "custom_nodes"):
        (base / folder).mkdir(parents=True)
    (base / "models").symlink_to(pack.base / "models")
    script = SCRIPT.format(base=str(base), root=str(ROOT))
    finished = subprocess.run(
        [sys.executable, "-c", script], env=dict(os.environ), capture_output=True, text=True, timeout=240
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "drawn (1, 64, 64, 3) (1, 64, 64, 3)" in finished.stdout


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor], ids=["list", "tuple", "numpy", "torch"])
def test_batch_index_of_any_kind(small, make):
    """Nodes of other packs select images with arrays and tensors."""
    pair, _ = small.sample(batch_size=2)
    single = {"samples": pair["samples"][1:], "batch_index": make([1])}
    np.testing.assert_array_equal(small.vectors(latent_image=single, keep_top=0.25), pair["samples"][1:])


@pytest.mark.parametrize("index", [[0, 1], [-1], [2**40], ["a"], "a", 3, [1.5], np.array(1), np.zeros((1, 1), int)])
def test_another_batch_index_is_refused(pack, small, index):
    latent, _ = small.sample()
    found = pack.fails(
        "ADTTreeSampler",
        **{"model": small.model, "positive": small.text("a cat"), "batch_size": 1, **small.NUMBERS},
        latent_image={**latent, "batch_index": index},
    )
    check_error(found, "latent.batch_index", count=1)


def test_files_of_a_batch_name_no_folder_of_the_server(pack, batch):
    results = batch()
    pack.run("ADTTreeBatchReport", results=results, filename="r", columns=0, thumbnail_width=64, label="id")
    files = [path for path in results.folder.iterdir() if path.suffix in (".png", ".json", ".csv")]
    assert len(files) == 5
    for path in files:
        assert str(pack.base).encode() not in path.read_bytes(), path
    assert str(pack.base) not in json.dumps(results.settings)


def test_answers_name_no_folder_of_the_server(pack):
    (pack.base / "input" / "bad.json").write_text("[1", encoding="utf-8")
    plain = {"text": "", "caption": "first", "filter": "", "start_index": 0, "count": 0, "shuffle_seed": 0}
    for name in ("bad.json", "absent.txt"):
        refused = pack.refused("ADTTreePrompts", **plain, file=name)
        failed = str(pack.fails("ADTTreePrompts", **plain, file=name))
        for text in (*refused, failed):
            assert name in text and str(pack.base) not in text, text


def test_prompts_of_a_batch_are_tokenised_once(pack, small, monkeypatch):
    """The line below the Prompts node, which counts prompts that are too long, needs their tokens, too."""
    from comfy_api.v0_0_2 import io

    target = type(small.model.target)
    seen = []
    check = target.check_prompt
    monkeypatch.setattr(target, "check_prompt", lambda self, prompt: seen.append(prompt) or check(self, prompt))
    graph = {"1": {"class_type": "ADTTreePrompts", "inputs": {}}, "2": {"inputs": {"prompts": ["1", 0]}}}
    hidden = {io.Hidden.unique_id: "2", io.Hidden.prompt: graph, io.Hidden.extra_pnginfo: {}}
    node = pack.nodes["ADTTreeBatchSampler"].PREPARE_CLASS_CLONE({"hidden_inputs": hidden})
    node.execute(model=[small.model], drafter=[small.drafters["small"]], prompts=["a fox", "a hen"], seed=[5])
    assert [seen.count(prompt) for prompt in ("a fox", "a hen")] == [1, 1]


def test_a_batch_tells_that_its_files_keep_their_prompts(pack, batch, monkeypatch, caplog):
    from comfy.cli_args import args

    batch(prompts=["a tree"])
    assert "--disable-metadata" not in caplog.text
    monkeypatch.setattr(args, "disable_metadata", True)
    batch(prompts=["a bush"])
    assert "The files contain their prompts in spite of --disable-metadata" in caplog.text


def test_a_list_of_equal_length_and_time_is_read_again(pack):
    """Programs that copy or unpack files keep the times of the originals."""
    prompts = pack.package(".nodes.prompts")
    path = pack.base / "input" / "same.txt"
    found = []
    for text in ("a cat", "a dog"):
        path.unlink(missing_ok=True)
        path.write_text(text, encoding="utf-8")
        os.utime(path, (1e9, 1e9))
        found.append(prompts.fingerprint(path.name))
    assert len(set(found)) == 2 and "" not in found
    assert prompts.fingerprint(path.name) == found[-1]


def test_a_folder_that_links_to_itself_is_not_searched(pack, small, caplog):
    folders = pack.package(".nodes.folders")
    root = pack.base / "models" / "ar_image"
    loop = root / "again"
    before = folders.models()
    loop.symlink_to(root)
    try:
        assert folders.models() == before
    finally:
        loop.unlink()
    assert "links to itself and is not searched" in caplog.text


def test_two_copies_of_the_pack_are_noticed(pack, monkeypatch, caplog):
    address = pack.package(".nodes.web_address")
    address.warn_of_copies("ADTTreeSampler")
    assert not caplog.text, "the pack is no copy of itself"
    copy = type("ADTTreeSampler", (), {"__module__": "/custom_nodes/ADT-Tree-2.nodes.sampler"})
    monkeypatch.setitem(pack.nodes, "ADTTreeSampler", copy)
    address.warn_of_copies("ADTTreeSampler")
    assert "custom_nodes has two copies of this pack, /custom_nodes/ADT-Tree-2" in caplog.text
