"""Tests that nodes, command line and `Pipeline` do the same: one recipe for the same settings, one list for a batch."""

import importlib
from pathlib import Path

import pytest
import torch

PUBLISHED = {"preset": "model default"}
OPTIONS = [
    {},
    {"seed": 7},
    {"method": "adt-tree", "beta": 0.7},
    {"method": "eagle2", "depth": 3, "proposal": "top-k"},
    {"method": "no-drafting"},
    {"drafter": "jacobi"},
    {"lantern_delta": 0.2, "lantern_k": 50},
    {"guidance_scale": 1.0, "temperature": 0.5},
    {"negative_prompt": "fog"},
]
"""Settings that differ from the defaults, by option name."""


@pytest.fixture(params=["cpu", "cuda"])
def device(request, pack, monkeypatch):
    """Let nodes, command line and `Pipeline` find a device, which need not exist. Only recipes are made for it."""
    resolve = pack.package(".adt_core.run.resolve")
    is_gpu = request.param == "cuda"
    hardware = resolve.Hardware(torch.device(request.param), bfloat16=is_gpu, float16=is_gpu, memory=8e9)
    monkeypatch.setattr(resolve.Hardware, "of", classmethod(lambda cls, device: hardware))
    monkeypatch.setattr(pack.package(".nodes.sampling"), "hardware", lambda: hardware)
    monkeypatch.setattr(pack.package(".nodes.loaders"), "hardware", lambda: hardware)
    return hardware


def node_recipe(pack, model, options: dict):
    inputs = {"settings": {}, "preset": "model default"}
    for name, value in options.items():
        if name in ("guidance_scale", "temperature"):
            inputs |= {name.removesuffix("_scale"): value, "preset": "custom"}
        elif name in ("seed", "negative_prompt"):
            inputs[name.removesuffix("_prompt")] = value
        elif name == "drafter":
            (inputs["drafter"],) = pack.run("ADTTreeDrafterLoader", model=model, drafter=value)
        elif name == "lantern_delta":
            rule = "delta (LANTERN)"
            (inputs["lantern"],) = pack.run("ADTTreeLANTERN", rule=rule, neighbours=options["lantern_k"], delta=value)
        elif name != "lantern_k":
            inputs["settings"][name] = value
    return pack.package(".nodes.sampling").prepare(model, **inputs).pipeline.recipe


@pytest.mark.parametrize("options", OPTIONS)
def test_nodes_command_and_pipeline_make_the_same_recipe(pack, model, device, options, tmp_path):
    core = pack.package(".adt_core")
    cli = pack.package(".adt_core.cli")
    args = pack.package(".adt_core.app.args")
    generate = pack.package(".adt_core.app.generate")
    files = args.OutputArgs(output=tmp_path / "a.png")
    words = [word for name, value in options.items() for word in (cli.option_flag(name), str(value))]
    _, parsed = cli.parse(["generate", "--prompt", "a cat", "--output", "a.png", *words])
    arguments = args.GenerateArgs(files, args.InputArgs(prompt="a cat"), cli._given(parsed))
    by_command = generate.plan(arguments).recipe
    drafter = {"drafter": options["drafter"]} if "drafter" in options else {}
    pipe = core.Pipeline(model.target, core.Recipe(), given=drafter)
    others = {name: value for name, value in options.items() if name != "drafter"}
    by_pipeline = pipe.with_options(**{"seed": 0, **others}).recipe
    by_node = node_recipe(pack, model, options)
    loaded = model.target.loaded
    flat = [recipe.as_loaded(loaded).flat() for recipe in (by_command, by_pipeline, by_node)]
    assert flat[0] == flat[1] == flat[2]
    assert by_command.sampling == by_node.sampling and by_command.lantern == by_node.lantern


@pytest.mark.parametrize("model_name", ["bundled", "small"])
def test_nodes_and_command_choose_the_same_dtype(pack, small, device, model_name):
    path = "bundled" if model_name == "bundled" else small.model.path
    by_node = pack.package(".nodes.loaders")._dtype("auto", path)
    resolve = pack.package(".adt_core.run.resolve")
    by_command = resolve.resolve_recipe({"model": path}, device).loading.dtype
    assert by_node == getattr(torch, by_command)
    assert by_command == ("bfloat16" if device.bfloat16 and path != "bundled" else "float32")


@pytest.mark.parametrize("seed_mode", ["per image", "same"])
def test_a_cancelled_batch_is_continued_by_the_command_and_by_the_node(pack, small, tmp_path, monkeypatch, seed_mode):
    prompts = ["a cat", "a boat", "a cat", "a red house"]
    batch = {"model": [small.model], "prompts": prompts, "seed": [5], "batch_size": [1], "seed_mode": [seed_mode]}
    whole, *_ = pack.run("ADTTreeBatchSampler", **batch, folder=[f"whole {seed_mode}"])
    stores = pack.package(".adt_core.run.store")
    store = stores.PngStore
    add = store.add

    def cancelled_after_two(self, job, png, record):
        add(self, job, png, record)
        if job.number == 2:
            raise pack.Cancelled

    monkeypatch.setattr(store, "add", cancelled_after_two)
    with pytest.raises(pack.Cancelled):
        pack.run("ADTTreeBatchSampler", **batch, folder=[f"cancelled {seed_mode}"])
    monkeypatch.setattr(store, "add", add)
    (folder,) = pack.base.glob(f"output/adt_tree_batches/cancelled-{seed_mode.replace(' ', '-')}-*")
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*.png")}
    assert len(before) == 2
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join(prompts[:3]), encoding="utf-8")
    cli = pack.package(".adt_core.cli")
    words = ["generate", "--prompts", str(listed), "--output", str(folder), "--model", small.model.path, "--seed", "5"]
    words += ["--drafter", "jacobi", "--device", "cpu", *(["--same-noise"] if seed_mode == "same" else [])]
    assert cli.main(words) == 0
    assert len(list(folder.glob("*.png"))) == 3
    read = []
    reader = stores.read_settings
    monkeypatch.setattr(stores, "read_settings", lambda path: read.append(path.name) or reader(path))
    images, *_ = pack.run("ADTTreeBatchSampler", **batch, folder=[f"cancelled {seed_mode}"])
    assert read == ["000001.png", "000002.png", "000003.png"], "the record of an image is read once"
    assert torch.equal(images, whole) and len(list(folder.glob("*.png"))) == 4
    assert {path: path.stat().st_mtime_ns for path in before} == before, "an image was generated twice"
    (complete,) = pack.base.glob(f"output/adt_tree_batches/whole-{seed_mode.replace(' ', '-')}-*")
    assert names(folder) == names(complete)


def test_a_batch_can_be_cancelled_while_the_weights_are_read(pack, small, monkeypatch, caplog):
    """The first time, the weights of a large model are read for many seconds before the first image begins."""
    mm = importlib.import_module("comfy.model_management")
    runtime = pack.package(".adt_core.runtime").get_runtime()
    told = runtime.notify

    def cancel(text):
        told(text)
        mm.interrupt_current_processing()

    monkeypatch.setattr(runtime, "notify", cancel)
    monkeypatch.setattr(pack.package(".adt_core.run.identity"), "CACHED_BYTES", 1)
    with caplog.at_level("INFO"), pytest.raises(pack.Cancelled):
        pack.run("ADTTreeBatchSampler", model=[small.model], prompts=["a cat"], seed=[5], folder=["unread"])
    assert "ADT-Tree: Checking the weights of small" in caplog.messages
    assert not list(pack.base.glob("output/adt_tree_batches/unread-*"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
