"""Tests of the command line: output files, reproduction of images from their PNGs, and errors for invalid input."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from PIL import Image

from adt_core import Recipe, cli
from adt_core.run import identity, store
from adt_core.version import FORMAT
from tests.command import read_grids, read_json, read_lines, words
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def generate(tiny, tmp_path, monkeypatch, capsys):
    """Return a function that runs `generate` in an empty folder: arguments -> exit code, standard output and error."""
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")

    def run(*arguments, **replaced):
        options = {"model": tiny / "target", "drafter": tiny / "drafter", "prompt": "a red house"}
        options |= {"output": "a.png", "device": "cpu"} | replaced
        return cli.main([*words("generate", **options), *arguments]), *capsys.readouterr()

    return run


# ---- output files --------------------------------------------------------


def test_output_files(generate):
    code, out, err = generate(
        "--compare", seed=2**64 - 1, tokens="t.json", trace="trace.json", report="r.json", output="deep/er/a.png"
    )
    assert code == 0, err
    figures = "tau", "accepted drafts per pass", "mean depth", "tokens/s", "Speed-up", "tokens identical"
    assert all(words in out for words in figures)
    assert "16/" in err or "32/32" in err or "%" in err, "stderr must contain a progress bar"
    grids = read_grids("t.json")
    assert [len(grids), len(grids[0]), len(grids[0][0])] == [1, 4, 4]
    assert all(0 <= code < 40 for row in grids[0] for code in row)
    report = read_json("r.json")
    figures = "seconds tokens tokens_per_second tau mean_depth target_forwards drafter_forwards verified_drafts"
    assert {*figures.split(), "method", "seed", "device", "dtype"} <= set(report)
    assert report["identical"] and report["seed"] == 2**64 - 1 and report["tokens"] == 16
    assert report["speedup"] == pytest.approx(report["plain"]["seconds"] / report["seconds"])
    decodings = read_lines("trace.json")
    assert len(decodings) == 1 and len(decodings[0]["rounds"]) == report["target_forwards"]
    with Image.open("deep/er/a.png") as image:
        assert image.size == (32, 32)


def test_a_single_image_without_lines_reads_no_weights_again(generate, monkeypatch):
    hashed = []
    settings_key = store.settings_key
    monkeypatch.setattr(store, "settings_key", lambda *given: hashed.append(given) or settings_key(*given))
    assert generate(output="one.png")[0] == 0 and not hashed
    assert generate(output="one.png", tokens="t.jsonl")[0] == 0 and len(hashed) == 1


def test_the_user_is_told_once_that_large_weights_are_read(generate, monkeypatch):
    """Reading 14 GB takes many seconds. Without a list or lines, no weights are read again."""
    monkeypatch.setattr(identity, "CACHED_BYTES", 1)
    assert "weights" not in generate(output="one.png")[2]
    lines = generate(output="two.png", tokens="t.jsonl")[2].split("\n")
    assert lines.count("Checking the weights of target") == 1


def test_several_images_are_numbered_and_reproducible(generate):
    Path("list.txt").write_text("\ufeffa red house\n\n  a blue sky \n", encoding="utf-8")
    files = {"prompt": None, "prompts": "list.txt", "output": "x", "tokens": "t.json", "report": "r.json"}
    settings = {"seed": 7, "temperature": 0.9, "top_k": 20, "negative_prompt": "fog", "method": "eagle2", "depth": 3}
    code, out, err = generate(num_images_per_prompt=2, **files, **settings)
    assert code == 0, err
    assert sorted(p.name for p in Path("x").glob("*.png")) == [f"00000{i}.png" for i in (1, 2, 3, 4)]
    tokens = read_grids("t.json")
    assert read_json("r.json")["tokens"] == 4 * 16 and read_json("r.json")["images"] == 4
    assert len({json.dumps(grid) for grid in tokens}) == 4
    for number, grid in enumerate(tokens, 1):
        saved = f"x/00000{number}.png"
        from_png = {"prompt": None, "from_png": saved, "output": "again.png", "tokens": "again.json"}
        assert generate(**from_png)[0] == 0
        assert read_grids("again.json")[-1] == grid, "lines are appended"
        assert_equal_images(saved, "again.png")
    assert generate(**from_png, method="no-drafting")[0] == 0
    assert read_grids("again.json")[-1] == tokens[-1]


def test_relaxed_images_state_the_share_of_replaced_tokens(generate):
    relaxed = {"method": "adt-tree", "lantern_delta": 1, "lantern_k": 1000}
    assert generate(**relaxed, num_images_per_prompt=2, output="x.png", report="r.json")[0] == 0
    shares = []
    for name in ("x-0001.png", "x-0002.png"):
        with Image.open(name) as image:
            shares.append(json.loads(image.text["adt_tree"])["figures"]["substitution_rate"])
            parameters = image.text["parameters"]
        assert f"Relaxed: LANTERN ({100 * shares[-1]:.1f} % of the tokens replaced), " in parameters
    assert sum(shares) / 2 == pytest.approx(read_json("r.json")["substitution_rate"]) != 0
    assert generate(prompt=None, from_png="x-0002.png", output="again.png")[0] == 0
    assert_equal_images("x-0002.png", "again.png")


def assert_equal_images(*paths):
    """Check that PNGs have equal pixels and settings. Only the images of a list have some other entries."""
    contents = []
    for path in paths:
        with Image.open(path) as image:
            record = json.loads(image.text["adt_tree"])
            omitted = dict.fromkeys(("tokens", "figures", "settings_key"))
            contents.append((image.tobytes(), {**record, **omitted}))
    assert all(content == contents[0] for content in contents)


def test_prompts_of_a_list_can_be_decoded_together(generate):
    """The files, tokens and statistics of a prompt must not depend on the other prompts of its batch."""
    Path("list.txt").write_text("\n".join(["a red house", "x", "a boat at night"]), encoding="utf-8")
    shared = {"prompt": None, "prompts": "list.txt", "num_images_per_prompt": 2, "dtype": "float64", "seed": 4}
    shared["method"] = "eagle2"
    for batch_size in (2, 3, 1):
        files = {"output": f"{batch_size}", "tokens": f"{batch_size}.json"}
        files |= {"report": f"r{batch_size}.json", "trace": f"t{batch_size}.json"}
        code, out, err = generate("--compare", **shared, **files, batch_size=batch_size)
        assert code == 0 and "tokens identical" in out, err
    assert read_lines("2.json") == read_lines("1.json") == read_lines("3.json") and len(read_lines("3.json")) == 6
    for folder in ("3", "1"):
        names = [*(f"{i:06}.png" for i in range(1, 7)), "manifest.csv"]
        assert sorted(path.name for path in Path(folder).iterdir()) == names
    for number in range(1, 7):
        assert_equal_images(f"1/{number:06}.png", f"3/{number:06}.png")
    for figure in ("tokens", "images", "tau", "mean_depth", "verified_drafts"):
        assert read_json("r1.json")[figure] == pytest.approx(read_json("r3.json")[figure]), figure
    forwards = [read_json(f"r{batch_size}.json")["target_forwards"] for batch_size in (1, 2, 3)]
    assert forwards[0] > forwards[1] > forwards[2], "a forward pass of several images must count once"
    assert forwards[0] * read_json("r1.json")["tau"] == pytest.approx(6 * 15)
    two, three = (
        [[share["accepted"] for one in decoding["rounds"] for share in one["images"]] for decoding in read_lines(name)]
        for name in ("t2.json", "t3.json")
    )
    assert two == three and len(two) == 6


def test_a_png_contains_all_settings(generate):
    assert generate(seed=3, prompt="a café", method="adt-tree")[0] == 0
    with Image.open("a.png") as image:
        saved = json.loads(image.text["adt_tree"])
    expected = set(Recipe.options()) - {"predict_from"}  # an option of another method
    assert expected <= set(saved), "the PNG lacks settings that --from-png reads"
    assert saved.items() >= {"prompt": "a café", "seed": 3, "image_index": 0, "format": FORMAT}.items()
    assert {"adt-tree", "torch", "numpy"} <= set(saved["versions"])


def test_a_png_reproduces_an_image_with_int4_weights(generate):
    assert generate(seed=3, weights="int4", tokens="first.json")[0] == 0
    with Image.open("a.png") as image:
        assert json.loads(image.text["adt_tree"])["weights"] == "int4"
    assert generate(prompt=None, from_png="a.png", output="b.png", tokens="second.json")[0] == 0
    assert read_grids("first.json") == read_grids("second.json")


def test_continued_images(generate):
    """Kept tokens must not change. New tokens must depend on prompt and seed. The PNG must reproduce the image."""
    assert generate(seed=1, tokens="whole.json")[0] == 0
    with Image.open("a.png") as image:
        image.convert("L").resize((100, 64)).save("odd.png")
    grids = []
    for number, changes in enumerate(({}, {"prompt": "fog"}, {"seed": 2}, {"keep_left": 0.5}, {"keep": 0.25})):
        files = {"continue_from": "a.png", "output": f"{number}.png", "tokens": "t.json", "report": "r.json"}
        code, out, err = generate("--compare", **files, **{"keep": 0.5, "dtype": "float64", **changes})
        assert code == 0, err
        grids += read_grids("t.json")[-1:]
        assert read_json("r.json")["identical"] and read_json("r.json")["tokens"] == [8, 8, 8, 6, 12][number]
    same, prompt, seed, left, less = grids
    assert prompt[:2] == seed[:2] == same[:2] and less[0] == same[0] and left[:2] == same[:2]
    assert same[2:] != prompt[2:] != seed[2:] != same[2:]
    remade = {"prompt": None, "output": "again.png", "tokens": "t.json"}
    Path("a.png").unlink()
    assert generate(**remade, from_png="3.png")[0] == 0
    assert read_grids("t.json")[-1] == left, "the PNG contains the kept tokens, so the input image is not needed"
    assert generate(continue_from="odd.png", num_images_per_prompt=2, tokens="t.json")[0] == 0
    first, second = read_grids("t.json")[-2:]
    assert first[:2] == second[:2] and first[2:] != second[2:]


def test_inspect(tiny, capsys):
    for role in ("target", "drafter"):
        assert cli.main(["inspect", str(tiny / role), "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert found["role"] == role and found["width"] == 64 and found["missing"] == found["left_over"] == []
        assert found["bytes"] == (tiny / role / "model.safetensors").stat().st_size and found["dtype"] == "F32"
        assert cli.main(["inspect", str(tiny / role)]) == 0
        assert f"role          {role}" in capsys.readouterr().out
    assert found["family"] == "eagle"


# ---- bad input --------------------------------------------------------------


def assert_refused(result, *named, code=1):
    """Check that a command has printed one error line with the words ``named``, and has written no file."""
    found, out, err = result
    assert found == code, err
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1, err
    assert "unexpected" not in err and all(str(name) in err for name in named), err
    assert not list(Path().rglob("*.png")) and not list(Path().rglob("*.part"))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"prompt": ""}, ["prompt", "empty"]),
        ({"prompt": " \t"}, ["prompt", "empty"]),
        ({"guidance_scale": "strong"}, ["--guidance-scale", "strong"]),
        ({"num_images_per_prompt": 0}, ["--num-images-per-prompt", "0"]),
        ({"method": "adt-tree", "beta": "nan"}, ["--beta", "nan"]),
        ({"depth_max": 3}, ["--depth-max", "'auto'", "--method"]),
        ({"method": "eagle2", "beta": 0.3}, ["--beta", "'eagle2'"]),
        ({"method": "magic"}, ["--method", "magic", "adt-tree"]),
        ({"weights": "int3"}, ["--weights", "int3", "int8", "fp8", "int4"]),
        ({"prompt": None}, ["--prompt"]),
        ({"prompts": "x.txt"}, ["--prompts", "--prompt"]),
        ({"prompt": None, "prompts": "nowhere.txt"}, ["--prompts", "nowhere.txt"]),
        ({"output": None}, ["--output"]),
        ({"output": "a.jpg"}, ["--output", "a.jpg", ".png"]),
        ({"output": f"{__file__}/a.png"}, ["--output", "a.png"]),
        ({"tokens": "/"}, ["--tokens", "/"]),
        ({"promt": "x"}, ["--promt"]),
        ({"method": "static:wide"}, ["--method", "static:wide", "naive_extend_57"]),
        ({"drafter": "bundled+jacobi", "method": "static:mc_sim_7b_63"}, ["static:mc_sim_7b_63", "jacobi"]),
        ({"drafter": "jacobi", "method": "static:mc_sim_7b_63"}, ["static:mc_sim_7b_63", "jacobi"]),
        ({"lantern_delta": 0.1, "lantern_factor": 2}, ["--lantern-delta", "--lantern-factor"]),
        ({"keep": 0.5}, ["--keep", "--continue-from"]),
        ({"continue_from": "nowhere.png"}, ["--continue-from", "nowhere.png"]),
        ({"continue_from": __file__}, ["--continue-from", "test_cli.py", "image"]),
        ({"continue_from": ROOT / "docs" / "comfyui.png", "keep_left": 1.5}, ["--keep-left", "1.5"]),
    ],
)
def test_invalid_arguments(generate, options, named):
    assert_refused(generate(**options), *named, code=2)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"continue_from": ROOT / "docs" / "comfyui.png", "keep": 0.9}, ["--keep is 0.9", "all 4 rows"]),
        ({"model": "nowhere"}, ["nowhere"]),
        ({"drafter": "nowhere"}, ["nowhere"]),
        ({"prompt": None, "from_png": "nowhere.png"}, ["nowhere.png"]),
        ({"prompt": "long " * 100}, ["Prompt too long", "shorten"]),
        ({"negative_prompt": "long " * 100}, ["shorten"]),
    ],
)
def test_inputs_that_are_missing_or_do_not_fit_the_model(generate, options, named):
    assert_refused(generate(**options), *named)


def test_a_comparison_needs_drafts(generate):
    assert_refused(generate("--compare", method="no-drafting"), "--compare", "no-drafting", code=2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda(generate):
    assert_refused(generate(device="cuda"), "--device cuda", "--device cpu", code=2)


def test_blank_prompts_are_reported(generate):
    """A blank cell of a table is reported. Blank lines of a text only separate prompts."""
    Path("list.txt").write_text("a red house\n\na blue sky\n", encoding="utf-8")
    Path("list.csv").write_text("prompt,note\na red house,\n,2\na blue sky,\n", encoding="utf-8")
    for name, is_reported in (("list.txt", False), ("list.csv", True)):
        code, out, err = generate(prompt=None, prompts=name, output=f"of {name}")
        assert code == 0 and len(list(Path(f"of {name}").glob("*.png"))) == 2, err
        assert ("1 of 3 prompts are blank and were left out: '2'." in out) == ("blank" in out) == is_reported


@pytest.mark.parametrize("model, is_reported", [pytest.param("bundled", True, marks=pytest.mark.long), (None, False)])
def test_prompts_outside_of_the_training_data_are_reported(generate, model, is_reported):
    Path("list.txt").write_text("a red house\na cat\n", encoding="utf-8")
    models = {"model": model, "drafter": model} if model else {}
    begun = {"continue_from": ROOT / "docs" / "comfyui.png", "keep": 0.75}
    code, out, err = generate(prompt=None, prompts="list.txt", output="x", batch_size=2, **models, **begun)
    assert code == 0, err
    assert ("Not drawn in 1 of 2 prompts: cat." in out) == is_reported


def test_long_prompts_of_a_list_are_reported(generate):
    Path("list.csv").write_text("prompt,note\na red house,\n,2\n" + "a very long day " * 500, encoding="utf-8")
    refused = generate(prompt=None, prompts="list.csv", output="x", invalid_prompts="error")
    assert_refused(refused, "--prompts: that with the id '2' is empty", code=2)
    Path("list.txt").write_text("a red house\n\na blue sky\n" + "a very long day " * 500, encoding="utf-8")
    refused = generate(prompt=None, prompts="list.txt", output="x", invalid_prompts="error")
    assert_refused(refused, "--prompts: number 3 of 3, 'a very long day ", "Prompt too long: ")
    assert not list(Path().glob("x*"))


def test_empty_list_of_prompts(generate):
    Path("list.txt").write_text("\n \n", encoding="utf-8")
    assert_refused(generate(prompt=None, prompts="list.txt"), "--prompts", "list.txt", "empty", code=2)


def test_unknown_or_missing_command(capsys):
    for arguments in (["paint"], []):
        assert cli.main(arguments) == 2
        assert (arguments or ["COMMAND"])[0] in capsys.readouterr().err


def test_drafter_of_another_width(generate, tiny, tmp_path):
    misfit = write_tiny_drafter(tmp_path / "misfit", tiny / "target", hidden=32)
    assert_refused(generate(drafter=misfit), "misfit", "32", "64")


@pytest.mark.parametrize("role", ["model", "drafter"])
@pytest.mark.parametrize("kept", [0, 4, 300, -1000])
def test_truncated_safetensors(generate, tmp_path, role, kept):
    folder = write_tiny_checkpoint(tmp_path / "cut")
    if role == "drafter":
        folder = write_tiny_drafter(tmp_path / "cut-drafter", folder)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert_refused(generate(**{role: folder}), file)
    assert cli.main(["inspect", str(folder)]) == 1


class Malice:
    """Object whose unpickling creates a folder."""

    def __init__(self, proof):
        self.proof = proof

    def __reduce__(self):
        return os.mkdir, (str(self.proof),)


@pytest.mark.parametrize("role", ["target", "drafter"])
@pytest.mark.parametrize("torch_file", [True, False])
def test_pickles_with_code_are_not_executed(generate, tiny, tmp_path, role, torch_file, capsys):
    proof = tmp_path / "proof"
    folder = tmp_path / "malicious"
    folder.mkdir()
    (folder / "config.json").write_bytes((tiny / role / "config.json").read_bytes())
    content = {"fc.weight": Malice(proof)}
    if torch_file:
        torch.save(content, folder / "pytorch_model.bin")
    else:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(content))
    assert_refused(generate(**{"model" if role == "target" else role: folder}), "malicious", "not loaded")
    assert cli.main(["inspect", str(folder)]) == 1
    assert "not loaded" in capsys.readouterr().err and not proof.exists(), "the pickle's code ran"
    (folder / "pytorch_model.bin").rename(folder / "model.safetensors")
    assert_refused(generate(**{"model" if role == "target" else role: folder}), "malicious")
    assert not proof.exists(), "the pickle's code ran"


def test_unknown_architecture(generate, tmp_path, capsys):
    folder = write_tiny_checkpoint(tmp_path / "llama")
    config = read_json(folder / "config.json") | {"model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert_refused(generate(model=folder), "llama", "Anole", "Lumina-mGPT")
    assert cli.main(["inspect", str(folder)]) == 1
    assert "llama" in capsys.readouterr().err


@pytest.mark.parametrize("config", ["", "{}", "[]", "null", '{"model_type": "chameleon"}', "\x00"])
def test_damaged_configuration(generate, tmp_path, config, capsys):
    folder = write_tiny_checkpoint(tmp_path / "damaged")
    (folder / "config.json").write_text(config, encoding="utf-8")
    assert_refused(generate(model=folder), "damaged")
    assert cli.main(["inspect", str(folder)]) == 1
    assert "damaged" in capsys.readouterr().err


def test_a_png_without_settings(generate):
    Image.new("RGB", (8, 8)).save("other.image", "PNG")
    assert_refused(generate(prompt=None, from_png="other.image"), "other.image", "no ADT-Tree settings")
    Path("other.image").write_bytes(b"no picture")
    assert_refused(generate(prompt=None, from_png="other.image"), "other.image")


@pytest.mark.parametrize("number", [FORMAT + 1, None])
def test_a_png_of_another_format_is_refused_and_kept(generate, monkeypatch, number):
    with monkeypatch.context() as patch:
        patch.setattr("adt_core.run.images.FORMAT", number)
        generate()
    Path("a.png").rename("other.image")
    content = Path("other.image").read_bytes()
    words = f"has format {number}, but this ADT-Tree reads format {FORMAT}; use the version that wrote it"
    assert_refused(generate(prompt=None, from_png="other.image"), "other.image", words)
    assert Path("other.image").read_bytes() == content


def test_debug_shows_the_traceback(generate):
    code, out, err = generate("--debug", model="nowhere")
    assert code == 1 and "Traceback" in err and "nowhere" in err.splitlines()[-1]


@pytest.mark.parametrize("value", ["--", "--output"])
def test_values_after_an_equals_sign_may_look_like_options(generate, value):
    code, _, err = generate(f"--prompt={value}", "--max-substitution=0.5", prompt=None, method="no-drafting")
    assert code == 0, err
    with Image.open("a.png") as image:
        assert json.loads(image.info["adt_tree"])["prompt"] == value
    code, _, err = generate("--seed=--")
    assert code == 2 and "--seed: invalid int value: '--'" in err
    code, _, err = generate("--exact=--")
    assert code == 2 and "--exact: invalid choice: '--'" in err


def test_device_memory_without_a_gpu_is_refused_before_loading(generate):
    code, _, err = generate(device_memory="4")
    assert code == 1 and "--device-memory is 4 GiB, but it limits a CUDA GPU and the device is cpu; remove it." in err
    code, _, err = generate(device_memory="much")
    assert code == 2 and "--device-memory" in err
