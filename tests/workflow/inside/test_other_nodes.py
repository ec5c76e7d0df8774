"""Tests of Compare, Map to Image, prompt lists, batches, benchmarks and Check."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from small import write_captions

from tests.metrics import write_clip
from tests.raising import check_error


@pytest.fixture(scope="module")
def compare(small):
    """Return a function that runs Compare. It returns A, B and their difference as uint8 images, and the report."""

    def run(**inputs) -> tuple[list[np.ndarray], str]:
        *images, report = small.run("ADTTreeCompare", positive=small.text(small.PROMPT), **small.NUMBERS, **inputs)
        return [np.clip(image[0].numpy() * 255.0, 0, 255).astype(np.uint8) for image in images], report

    return run


@pytest.mark.parametrize("drafter", ["small", None], ids=["its drafter", "the model's own"])
def test_compare_shows_no_difference_and_both_times(compare, small, drafter):
    (a, b, difference), report = compare(drafting="ADT-Tree", drafter=small.drafters.get(drafter))
    np.testing.assert_array_equal(a, small.expected()["images"][0])
    np.testing.assert_array_equal(a, b)
    assert not difference.any()
    summary, first, second = report.splitlines()
    assert first.startswith("A: ADT-Tree, ") and second.startswith("B: No drafting, ")
    assert all(" s, " in line for line in (first, second))
    assert "times as fast as B; every token is the same" in summary


def test_compare_shows_the_changes_of_lantern(compare, pack, small):
    (lantern,) = pack.run("ADTTreeLANTERN", neighbours=10, delta=0.4)
    ways = {"settings_a": {"method": "adt-tree"}, "settings_b": {"method": "eagle2"}}
    (a, b, difference), report = compare(lantern=lantern, drafter=small.drafters["small"], **ways)
    relaxed = {"drafting": ways["settings_a"], "lantern": {"neighbours": 10, "delta": 0.4}}
    np.testing.assert_array_equal(a, small.expected(**relaxed)["images"][0])
    np.testing.assert_array_equal(b, small.expected()["images"][0])
    assert np.abs(difference.astype(int) - np.abs(a.astype(int) - b)).max() <= 1 and difference.any()
    assert "B: EAGLE-2, " in report and "tokens differ" in report
    assert re.search(r"\nA: ADT-Tree, Relaxed \(\d+\.\d % of the tokens replaced by LANTERN\), ", report)


def test_map_as_video(pack, small):
    """Frames must add tokens and never remove one. The last second must show the finished image beside its map."""
    latent, trace = small.sample(batch_size=2, settings={"method": "adt-tree"})
    (images,) = pack.run("VAEDecode", samples=latent, vae=small.vae)
    maps = pack.run("ADTTreeMapToImage", trace=trace, opacity=1.0, images=images)[0]
    frames, fps = pack.run("ADTTreeMapToVideo", trace=trace, images=images, image=0, seconds=3.0, fps=4.0)
    height, width = images.shape[1:3]
    assert fps == 4.0 and tuple(frames.shape) == (12, height, 2 * width, 3)
    torch.testing.assert_close(frames[-4:, :, :width], images[:1].expand(4, -1, -1, -1))
    shown = [(frame != frames[0]).any(-1).sum().item() for frame in frames]
    assert shown == sorted(shown) and shown[-1] > shown[2] > 0
    assert frames[-1, :, width:].unique(dim=0).shape[0] > 1 and maps.shape == images.shape
    for inputs, key in (
        ({"image": 2}, "trace.no_image"),
        ({"seconds": 60.0, "fps": 60.0}, "seconds.too_many"),
        ({"images": images[:1]}, "trace.other_images"),
    ):
        given = {"trace": trace, "images": images, "image": 0, "seconds": 3.0, "fps": 4.0, **inputs}
        check_error(pack.fails("ADTTreeMapToVideo", **given), key)


@pytest.mark.parametrize("show", ["acceptance", "depth", "width", "time"])
def test_map_as_image_and_mask(pack, small, show):
    """The mask has the scaled value of each token. A value has one colour. Opacity blends map and image."""
    latent, trace = small.sample(batch_size=2, settings={"method": "adt-tree"})
    (images,) = pack.run("VAEDecode", samples=latent, vae=small.vae)
    maps, masks = pack.run("ADTTreeMapToImage", trace=trace, show=show, opacity=0.6)
    bare, covered = (
        pack.run("ADTTreeMapToImage", trace=trace, show=show, opacity=opacity, images=images)[0] for opacity in (0, 1)
    )
    torch.testing.assert_close(bare, images)
    assert covered.shape == images.shape and not torch.equal(covered, images)
    known = trace.to_json()
    for image in range(2):
        tokens = masks[image, 8::16, 8::16]
        assert tuple(tokens.shape) == tuple(known["grid"])
        if show == "acceptance":
            values = np.array(known["acceptance"])
            np.testing.assert_allclose(tokens, (values[image] - 1) / (values.max() - 1), atol=1e-5)
        steps = (tokens * 255).round()
        pixels = maps[image, 8::16, 8::16]
        colours = {value.item(): pixels[steps == value].unique(dim=0) for value in steps.unique()}
        assert len(colours) > 1 and all(len(found) == 1 for found in colours.values()), "one value, one colour"


@pytest.fixture
def listed(pack):
    """Return a function that runs Prompts on ten captions in MS-COCO's layout. It returns pairs (id, prompt)."""
    name, _ = write_captions(pack.base, 10)

    def run(**values) -> list[tuple[str, str]]:
        prompts, ids, *_ = pack.run("ADTTreePrompts", **{"file": name, **values})
        return list(zip(ids, prompts))

    return run


def test_prompt_lists(pack, listed):
    """Parts, filter and shuffling. A file in the input folder is listed, and read again after a change."""
    captions = listed(count=0)
    assert len(captions) == 10 and captions[1][0] == "103", "0 takes all"
    _, options = pack.ours["ADTTreePrompts"]["input"]["optional"]["file"]
    assert "captions_test2017.json" in options["options"]
    assert listed(start_index=8) == captions[8:] and listed() == captions[:8]
    shuffled = listed(shuffle_seed=5, count=4)
    assert len(set(shuffled)) == 4 and set(shuffled) < set(captions) and shuffled != captions[:4]
    assert listed(filter="RED ", count=0) == [item for item in captions if "red " in item[1].lower()] != []
    assert listed(caption="all", count=1)[0][0] == "7000"
    example = listed(file="(example captions)", caption="longest", count=0, text="unused")
    longest = max((text for _, text in listed(file="(example captions)", caption="all", count=4)), key=len)
    assert len(example) == 12 and example[0] == ("1000", longest)
    assert pack.nodes["ADTTreePrompts"].validate_inputs(file="(example captions)", text="") is True
    typed = {"file": "(the text below)"}
    assert listed(**typed, text="a cow\n\na dog") == [("1", "a cow"), ("3", "a dog")]
    choices = {"text": "a {red|blue} cow\n{|a dog}", "choices": "all combinations"}
    assert listed(**typed, **choices) == [("1.1", "a red cow"), ("1.2", "a blue cow"), ("2.2", "a dog")]
    file = pack.base / "input" / "captions_test2017.json"
    before = pack.nodes["ADTTreePrompts"].fingerprint_inputs(file=file.name)
    file.write_text('["a cat"]', encoding="utf-8")
    assert pack.nodes["ADTTreePrompts"].fingerprint_inputs(file=file.name) != before
    assert listed() == [("1", "a cat")]


def test_hidden_files_are_not_listed(pack):
    """macOS writes such files next to others on disks and network shares of other systems."""
    places = {
        "ADTTreePrompts": ("file", pack.base / "input", "seen.txt"),
        "ADTTreeModelLoader": ("model", pack.base / "models" / "ar_image", "t2i_seen.pt"),
        "ADTTreeGLMImageDecoderLoader": ("transformer", pack.base / "models" / "diffusion_models", "seen.safetensors"),
    }
    for node, (name, folder, file) in places.items():
        folder.mkdir(parents=True, exist_ok=True)
        for path in (folder / file, folder / f"._{file}"):
            path.write_bytes(b"a cat")
        inputs = pack.nodes[node].INPUT_TYPES()
        (options,) = [kind[name] for kind in inputs.values() if name in kind]
        assert file in options[1]["options"] and f"._{file}" not in options[1]["options"]
        for path in (folder / file, folder / f"._{file}"):
            path.unlink()


@pytest.mark.parametrize("text", ["a sign that says README.txt", "a photo " + 300 * "x" + ".txt"])
def test_a_prompt_may_end_with_a_file_name(pack, text):
    """A text with spaces names a file only if the file exists."""
    typed = {"file": "(the text below)", "text": text}
    assert pack.refused("ADTTreePrompts", **typed) == []
    assert pack.run("ADTTreePrompts", **typed)[0] == [text]
    (pack.base / "input" / "my list.txt").write_text("a cat", encoding="utf-8")
    assert pack.run("ADTTreePrompts", file="(the text below)", text="my list.txt")[0] == ["a cat"]
    (pack.base / "input" / "my list.txt").unlink()
    assert pack.refused("ADTTreePrompts", file="my list.txt"), "a file that was chosen in the list must exist"


UNKNOWN = "Not drawn"
NOTHING = "This small model draws houses, boats, balloons, mugs and the like"


def test_unknown_words_are_logged(pack, model, small, monkeypatch, caplog):
    """Every node that generates images with a model that has a word list logs them, also for earlier images."""

    def logged(kind: str, **inputs) -> list[str]:
        caplog.clear()
        pack.run(kind, **inputs)
        return [message for message in caplog.messages if UNKNOWN in message]

    cat = {"model": small.model, "positive": small.text("a cat")}
    assert logged("ADTTreeSampler", batch_size=1, **cat) == []
    monkeypatch.setattr(small.model.target, "words", model.target.words)
    single = [f"ADT-Tree: {UNKNOWN}: cat. {NOTHING}; the prompt names nothing that it knows."]
    assert logged("ADTTreeSampler", batch_size=1, **cat) == logged("ADTTreeCompare", **cat) == single
    batch = {"model": [small.model], "seed": [1], "prompts": ["a cat", "a boat", "房子"]}
    for _ in range(2):
        (last,) = logged("ADTTreeBatchSampler", **batch)
        start = f"{UNKNOWN} in 2 of 3 prompts: cat, 房子. {NOTHING}; 2 of 3 prompts name nothing that it knows."
        assert last.startswith(f"ADT-Tree: {start} The images are in output/adt_tree_batches/")
    assert logged("ADTTreeBatchSampler", **batch | {"prompts": ["a boat"]}) == []


@pytest.mark.parametrize("kind", ["ADTTreeSampler", "ADTTreeBatchSampler"])
def test_invariance_remark_of_the_device_is_logged(pack, small, monkeypatch, caplog, kind):
    engine = pack.package(".adt_core.engine.conditions")
    report = engine.InvarianceReport(remark="This device can't multiply.")
    monkeypatch.setattr(engine, "invariance_report", lambda *_: report)
    batch = {"model": [small.model], "prompts": ["a cat"], "seed": [97]}
    single = {"model": small.model, "positive": small.text("a cat")}
    pack.run(kind, **(single if kind == "ADTTreeSampler" else batch))
    assert "This device can't multiply." in caplog.messages[-1]


@pytest.mark.long
def test_omitted_inputs_have_the_schema_default_and_given_ones_count(pack, small):
    """Every node must also run if its only inputs are links."""
    bare = {"model": small.model, "positive": small.text(small.PROMPT)}
    numbers = {"seed": 0, "guidance": 2.0, "temperature": 0.6, "top_k": 0, "top_p": 1.0}
    given = {}, {**numbers, "preset": "model default"}, {"guidance": 9.0}, {**numbers, "guidance": 9.0}
    latents = [pack.run("ADTTreeSampler", **bare, **more) for more in given]
    nothing, own, guided, custom = (latent["samples"] for latent, _ in latents)
    assert torch.equal(nothing, own) and torch.equal(guided, custom) and not torch.equal(own, guided)
    (settings,) = pack.run("ADTTreeSettings")
    (lantern,) = pack.run("ADTTreeLANTERN")
    assert pack.run("ADTTreeCompare", **bare, settings_a=settings)
    assert pack.run("ADTTreeMapToImage", trace=latents[0][1]) and pack.run("ADTTreeRunStats", trace=latents[0][1])
    *_, results = pack.run("ADTTreeBatchSampler", model=[small.model], prompts=["a cat"], lantern=[lantern])
    assert pack.run("ADTTreeBatchReport", results=results)
    prompts, *_ = pack.run("ADTTreePrompts", count=1)
    model, clip, _ = pack.run("ADTTreeModelLoader")
    (drafter,) = pack.run("ADTTreeDrafterLoader", model=model)
    (positive,) = pack.run("CLIPTextEncode", clip=clip, text=prompts[0])
    assert model.target.name == "bundled"
    assert pack.run("ADTTreeSampler", model=model, positive=positive, drafter=drafter)


def test_noise_of_equal_prompts(pack, small):
    """Equal prompts of a list differ, unless the user wants the same noise. Each list has its own folder."""
    inputs = {"model": [small.model], "seed": [21], "folder": ["equal"], "prompts": ["a cat", "a boat", "a cat"]}
    own, *_ = pack.run("ADTTreeBatchSampler", **inputs)
    same, *_ = pack.run("ADTTreeBatchSampler", **inputs, seed_mode=["same"])
    assert not torch.equal(own[0], own[2]) and torch.equal(same[0], same[2]) and torch.equal(own[0], same[0])
    stepped, *_ = pack.run("ADTTreeBatchSampler", **inputs, seed_mode=["increment"])
    second, *_ = pack.run("ADTTreeBatchSampler", **inputs | {"prompts": ["a cat"], "seed": [23]})
    assert torch.equal(stepped[2], second[0])
    folders = [*pack.base.glob("output/adt_tree_batches/equal-*")]
    assert sorted(len([*folder.glob("*.png")]) for folder in folders) == [1, 3, 3, 3]


def last_message(caplog) -> str:
    return caplog.messages[-1].removeprefix("ADT-Tree: ")


@pytest.mark.parametrize("kind", ["ADTTreeSampler", "ADTTreeCompare"])
def test_long_prompt_is_truncated_on_request(pack, small, caplog, kind):
    """The image must equal that of the truncated texts, and the node must show their length."""
    long = "a red house behind a blue lake, " * 60
    inputs = {"model": small.model, "positive": small.text(long), "negative": small.text(long), "seed": 5}
    image, *_ = pack.run(kind, **inputs, invalid_prompts="truncate")
    match = re.fullmatch(
        r"Prompt truncated to its first (\d+) of 1920 characters: (\d+) tokens; small accepts (\d+)\. "
        r"Negative prompt truncated to its first \1 of 1920 characters: \2 tokens; small accepts \3\.",
        last_message(caplog),
    )
    assert match, caplog.messages
    short = small.text(long[: int(match[1])])
    expected, *_ = pack.run(kind, **inputs | {"positive": short, "negative": short})
    caplog.clear()
    if kind == "ADTTreeSampler":
        image = image["samples"]
        expected = expected["samples"]
    assert torch.equal(image, expected)
    assert not caplog.messages, "prompts that fit are not truncated"
    check_error(pack.fails(kind, **inputs), "prompt.truncate", error="prompt.too_long")


@pytest.mark.parametrize(
    "text, is_odd",
    [("a {red|blue house", True), ("a red} house", True), (r"a \{red house", False), ("a {red} cat", False)],
)
def test_a_brace_without_its_counterpart_is_named(pack, caplog, text, is_odd):
    """Such a brace stays in the text, and the model reads it."""
    inputs = {"file": "(the text below)", "text": text, "caption": "first", "filter": "", "start_index": 0, "count": 0}
    pack.run("ADTTreePrompts", **inputs, shuffle_seed=0)
    assert ("has no counterpart" in caplog.text) is is_odd
    caplog.clear()
    pack.run("ADTTreePrompts", **inputs, shuffle_seed=0, choices="off")
    assert "has no counterpart" not in caplog.text


@pytest.mark.parametrize("kind", ["ADTTreeSampler", "ADTTreeCompare", "ADTTreeBatchSampler", "ADTTreeBenchmark"])
def test_settings_that_the_preset_overrides_are_logged(pack, small, caplog, kind):
    """Only API prompts can contain such settings. The page sends the defaults of disabled numbers."""
    inputs = {"model": small.model, "guidance": 9.5, "temperature": 0.6, "preset": "model default", "seed": 3}
    inputs |= {"prompts": "a cat"} if kind in ("ADTTreeBatchSampler", "ADTTreeBenchmark") else {}
    inputs |= {} if "prompts" in inputs else {"positive": small.text("a cat")}
    inputs |= {"methods": "jacobi"} if kind == "ADTTreeBenchmark" else {}
    lists = kind == "ADTTreeBatchSampler"

    def ignored(**more) -> list[str]:
        caplog.clear()
        given = {name: [value] if lists else value for name, value in {**inputs, **more}.items()}
        pack.run(kind, **given)
        return [message for message in caplog.messages if "Ignored" in message]

    (message,) = ignored()
    remedy = "Set preset to 'custom' to use your own values."
    assert message.startswith(f"ADT-Tree: Ignored, because preset is 'model default': guidance 9.5. {remedy}")
    assert ignored(guidance=2.0) == ignored(preset="custom") == []


def test_benchmark_uses_the_settings_of_its_preset(pack, small, monkeypatch):
    """The preset also has a suffix. Prompts from versions without a preset must keep their numbers."""
    own = {"guidance_scale": 1.5, "temperature": 0.7, "top_k": 9, "suffix": ", by the authors"}
    published = small.model.target.published_sampling._replace(**own)
    monkeypatch.setattr(small.model.target, "published_sampling", published)
    asked = {"prompts": "a cat", "methods": "jacobi", "count": 1, "seed": 11}

    def settings(**more) -> dict:
        before = set(pack.base.glob("output/adt_tree_benchmark/*"))
        small.run("ADTTreeBenchmark", **asked, **more)
        (folder,) = set(pack.base.glob("output/adt_tree_benchmark/*")) - before
        return json.loads((folder / "results.json").read_text(encoding="utf-8"))["settings"]

    for given, numbers, suffix in (
        ({"preset": "model default", "guidance": 2.0, "temperature": 0.6}, [1.5, 0.7, 9], ", by the authors"),
        ({"guidance": 3.0, "temperature": 1.0}, [3.0, 1.0, 0], ""),
        ({"guidance": 4.0, "temperature": 1.0, "preset": "custom"}, [4.0, 1.0, 0], ""),
    ):
        made = settings(**given)
        assert [made["sampling"][name] for name in ("guidance_scale", "temperature", "top_k")] == numbers
        assert made["suffix"] == suffix


def test_benchmark_compares_methods_and_writes_results(pack, small):
    texts = [small.PROMPT, "A red car on a street."]
    asked = {"prompts": "\n".join(texts), "count": 4, "methods": "eagle2, jacobi", "seed": 3}
    before = set(pack.base.glob("output/adt_tree_benchmark/*"))
    (table,) = small.run("ADTTreeBenchmark", drafter=small.drafters["small"], **asked)
    (folder,) = set(pack.base.glob("output/adt_tree_benchmark/small-*")) - before
    assert (folder / "results.md").read_text(encoding="utf-8") == table
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert [row["method"] for row in results["summary"]] == ["no-drafting", "eagle2", "jacobi"]
    assert all(row["identical"] == 2 and row["tau"] >= 1 for row in results["summary"])
    assert Path(results["settings"]["drafter"]).name == "small"
    assert sorted(results["settings"]["prompts"]) == sorted(texts)
    assert len(list(folder.glob("images/no-drafting/*.png"))) == 2


def test_a_choice_stands_for_a_list_of_methods_and_an_own_list_replaces_it(pack, small, monkeypatch):
    """Without a drafter network, the main methods are those that need none."""
    compared = []
    session = pack.package(".nodes.benchmark")._Session
    monkeypatch.setattr(session, "compare", lambda self, methods: compared.append(",".join(methods)) or "")
    monkeypatch.setattr(session, "paper", lambda self: compared.append("paper") or "")
    for more in (
        {"drafter": small.drafters["jacobi"]},
        {},
        {"compare": "ADT-Tree and EAGLE-2"},
        {"compare": "tables of the ADT-Tree paper"},
        {"compare": "Auto", "methods": "jacobi, auto-jacobi"},
    ):
        small.run("ADTTreeBenchmark", prompts=small.PROMPT, count=1, **more)
    presets = pack.package(".adt_core.lab.presets")
    first = [presets.COMPARED_WITHOUT_NETWORK, presets.COMPARED, "adt-tree,eagle2", "paper", "jacobi,auto-jacobi"]
    assert compared == first


def test_benchmark_makes_the_papers_tables(pack, small, monkeypatch):
    """The node and the command write the same files. A metric's weights are chosen from the folder for them."""
    clip = write_clip(pack.base / "models" / "ar_image_metrics" / "tiny-clip")
    asked = {"prompts": small.PROMPT, "count": 1, "seed": 5, "drafter": small.drafters["small"]}
    bench = pack.package(".adt_core.lab.benchmark")
    monkeypatch.setattr(bench, "WARM_UP", 1)
    monkeypatch.setattr(pack.package(".nodes.benchmark").paper, "TEMPERATURES", (1.0,))  # one of two, to save time
    before = set(pack.base.glob("output/adt_tree_benchmark/*"))
    (table,) = small.run("ADTTreeBenchmark", methods="paper", clip=clip.name, **asked)
    (folder,) = set(pack.base.glob("output/adt_tree_benchmark/small-*")) - before
    assert (folder / "paper.md").read_text(encoding="utf-8") == table
    assert all(f"### {number}. " in table for number in ("I", "II", "III", "IV")) and "| CLIP score |" in table
    parts = {"temperature-1", "temperature-1-fixed"}
    assert {path.name for path in folder.iterdir() if path.is_dir()} == parts
    for part in parts:
        saved = json.loads((folder / part / "results.json").read_text(encoding="utf-8"))
        assert saved["settings"]["sampling"]["temperature"] == 1
        exact = [row for row in saved["summary"] if "lantern" not in row["method"]]
        assert all(row["identical"] == 1 for row in exact)
    monkeypatch.setattr(bench.race, "turn", None)  # nothing is measured again
    assert small.run("ADTTreeBenchmark", methods="paper", clip=clip.name, **asked)[0] == table


def test_benchmark_shows_progress_by_method(pack, small, monkeypatch):
    """One prompt is no basis for an interval, so the table has none."""
    lines = []
    benchmark = pack.package(".nodes.benchmark")
    monkeypatch.setattr(benchmark.Progress, "say", lambda self, text, *_: lines.append(text))
    monkeypatch.setattr(benchmark.Progress, "_BAR", 0.0)
    asked = {"prompts": small.PROMPT, "methods": "jacobi, jacobi-chain", "count": 1, "seed": 12}
    (table,) = small.run("ADTTreeBenchmark", **asked)
    counts, titles = zip(*(line.split(", now ") for line in lines[:6]))
    assert counts[:3] == tuple(f"Warming up, {n} of 3 methods" for n in range(3))
    assert counts[3:] == tuple(f"0 of 1 prompts, {n} of 3 methods" for n in range(3))
    assert set(titles[:3]) == set(titles[3:]) == {"No drafting", "Jacobi window", "Jacobi chain"}
    assert lines[6].startswith("1 prompt; the results are in output/adt_tree_benchmark/")
    assert re.search(r"about [\d.]+ times as fast as without drafts\.\*\*", table) and "CI" not in table


@pytest.mark.long
def test_check_reports_on_one_page(pack, small):
    (page,) = pack.run("ADTTreeDiagnostics", model=small.model)
    for line in ("## No drafting", "| No drafting |", "| Auto |", "gives the same tokens as no drafting."):
        assert line in page
    assert str(pack.base) not in page


def test_a_full_disk_costs_the_file_for_app_mode_but_not_the_report(pack, monkeypatch, tmp_path, caplog):
    runtime = pack.package(".nodes.comfy_runtime")
    assert runtime.shown_text("slow", "report")["files"]
    (tmp_path / "full").touch()
    monkeypatch.setattr(runtime.folder_paths, "get_temp_directory", lambda: str(tmp_path / "full" / "temp"))
    assert runtime.shown_text("slow", "report") == {"text": ["slow"]}
    assert "the report in App mode is left out" in caplog.text
