"""Tests of the command `benchmark` with a tiny random model: all columns, interruptions, and invalid input."""

import json
import re
from unittest import mock

import pytest
from PIL import Image

from adt_core import Lantern, Pipeline, Recipe, cli
from adt_core.app.prompts import BUNDLED_CAPTIONS, read_prompts
from adt_core.lab import benchmark
from adt_core.lab.report import COLUMNS, verdict
from adt_core.policies import PLAIN, POLICIES, method_title
from adt_core.run.images import read_settings
from tests.command import read_json, read_lines, read_table, words

METHODS = "eagle2 adt-tree static:mc_sim_7b_63 jacobi jacobi-64 merged-chain merged merged-64 auto auto-jacobi".split()
METHODS += ["eagle2+lantern", "merged+lantern", "jacobi+lantern"]
QUICK = ["adt-tree", "merged-chain", "auto", "eagle2+lantern"]
"""Methods that are tested in the default tier (tests that run without ``--all``)."""


@pytest.fixture
def run(tiny, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("a cat\na dog\na cow\n", encoding="utf-8")

    def run(*extra: str, methods: str = ",".join(METHODS), prompts: str = "prompts.txt"):
        files = {"model": tiny / "target", "drafter": tiny / "drafter", "prompts": tmp_path / prompts}
        how = {"output": tmp_path / "out", "dtype": "float64", "methods": methods, "lantern_delta": 0.5}
        return cli.main([*words("benchmark", **files, **how), *extra]), *capsys.readouterr()

    return run


@pytest.mark.parametrize("methods", [QUICK, pytest.param(METHODS, marks=pytest.mark.long)], ids=["quick", "every"])
def test_every_method_and_every_column(run, tmp_path, methods):
    code, out, _ = run(methods=",".join(methods))
    assert code == 0 and all(f"| {method_title(name)} |" in out for name in methods)
    results = read_json(tmp_path / "out" / "results.json")
    assert [row["method"] for row in results["summary"]] == ["no-drafting", *methods]
    assert all(set(row) == set(COLUMNS) for row in results["summary"])
    named = {"engine", "device", "dtype", "torch", "commit", "prompts", "sampling", "lantern"}
    assert named <= set(results["settings"])
    for row in results["summary"]:
        assert row["low"] is row["high"] is None and row["speedup"] > 0 and row["totals"] > 0 and row["seconds"] > 0
        if "lantern" not in row["method"]:
            assert row["identical"] == 3 and row["agreement"] == 1 and row["substitution_rate"] == 0
    plain = results["summary"][0]
    relaxed = results["summary"][-1]
    assert plain["speedup"] == 1 and plain["tau"] == 1 and relaxed["substitution_rate"] > 0 and relaxed["agreement"] < 1
    table = read_table(tmp_path / "out" / "results.csv")
    assert [row["method"] for row in table] == ["no-drafting", *methods]
    page = (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
    assert page in out and page.splitlines()[0] == f"**{verdict(results['summary'], 3)}**"
    assert "CI" not in page and "ratio of totals" in page, "three prompts have no interval"
    learned = re.search(r"Cost profiles were learned from (\d+) to (\d+) earlier decodings", page).groups()
    runs = [measured for record in results["records"] for measured in record["runs"].values()]
    profiles = [measured["profile"] for measured in runs if measured.get("profile")]
    assert [int(count) for count in learned] == [f(p.get("decodings", 0) for p in profiles) for f in (min, max)]


@pytest.mark.parametrize(
    "methods, line",
    [
        ({}, "Same image: yes."),
        (
            {"auto": (2.14, 4), "jacobi": (1.5, 4)},
            "Same image: yes. Fastest: Auto, about 2.1 times as fast as without drafts. 95 % interval: 2.0 to 2.3.",
        ),
        (
            {"auto": (2.14, 4), "jacobi": (1.5, 3), "auto+lantern": (3.0, 0)},
            "Same image: no (Jacobi window). Changed by LANTERN: Auto + LANTERN. "
            "Fastest: Auto + LANTERN, about 3.0 times as fast as without drafts. 95 % interval: 2.9 to 3.2.",
        ),
        (
            {"eagle2": (0.8, 4), "jacobi": (0.84, 4)},
            "Same image: yes. Fastest: Jacobi window, about 0.8 times as fast as without drafts. "
            "95 % interval: 0.7 to 1.0.",
        ),
    ],
    ids=["only without drafts", "same image", "other images", "slower than without drafts"],
)
def test_the_verdict_names_changed_images_and_the_fastest_method(methods, line):
    """``methods`` has the speed-up of each method over decoding without drafts, and its identical images of four."""
    rows = [
        {"method": name, "speedup": speed, "low": speed - 0.1, "high": speed + 0.2, "identical": identical}
        for name, (speed, identical) in {PLAIN: (1.0, 4), **methods}.items()
    ]
    found = verdict(rows, 4)
    assert found == line
    assert all(part.key for part in found.parts), "every part has translations"


def test_shards_together_measure_all_prompts(run, tmp_path):
    code, text, _ = run("--shard", "1/2", methods="eagle2")
    assert code == 0 and "2 of 3 prompts are measured; run the other shards" in text
    code, text, _ = run("--shard", "2/2", methods="eagle2")
    assert code == 0 and "prompts are measured" not in text
    files = [tmp_path / "out" / f"runs-{number}-of-2.jsonl" for number in (1, 2)]
    read = [[line.get("text") for line in read_lines(file)] for file in files]
    assert read == [[None, "a cat", "a cow"], [None, "a dog"]]
    saved = read_json(tmp_path / "out" / "results.json")
    assert [record["prompt"] for record in saved["records"]] == [0, 1, 2]
    table = (tmp_path / "out" / "results.csv").read_bytes()
    (tmp_path / "out" / "results.csv").unlink()
    assert cli.main(["merge", str(tmp_path / "out")]) == 0, "the tables need no model"
    assert (tmp_path / "out" / "results.csv").read_bytes() == table
    assert run(methods="eagle2")[0] == 0, "a run without a shard measures what is missing: nothing"
    assert len(read_lines(tmp_path / "out" / "runs.jsonl")) == 1
    assert run("--shard", "3/2", methods="eagle2")[0] != 0


def test_an_interrupted_benchmark_resumes(run, tmp_path, monkeypatch):
    make_decoding = Pipeline.decoding
    started = []

    def interrupted(*args, **kwargs):
        started.append(1)
        if len(started) == 6:
            raise KeyboardInterrupt
        return make_decoding(*args, **kwargs)

    monkeypatch.setattr(Pipeline, "decoding", interrupted)
    code, _, err = run(methods="eagle2")  # the warm-up needs two requests, then each prompt needs two
    assert code == 130 and "Interrupted" in err
    runs = tmp_path / "out" / "runs.jsonl"
    lines = runs.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2 and json.loads(lines[1])["text"] == "a cat"
    with runs.open("a", encoding="utf-8") as file:
        file.write('{"prompt": 1, "te')  # incomplete record, as after a power failure
    monkeypatch.setattr(Pipeline, "decoding", make_decoding)
    assert run(methods="eagle2")[0] == 0
    after = runs.read_text(encoding="utf-8").splitlines()
    assert after[:2] == lines and after[2].startswith('{"prompt": 1, "te'), "existing records must stay unchanged"
    assert [json.loads(line)["text"] for line in [after[1], *after[3:]]] == ["a cat", "a dog", "a cow"]
    assert run(methods="eagle2")[0] == 0 and runs.read_text(encoding="utf-8").splitlines() == after


@pytest.mark.parametrize(
    "first, then", [("--seed=3", "--seed=4"), ("--exact=on", "--exact=off"), ("", "--weights=int8")]
)
def test_results_with_other_settings_are_rejected(run, first, then):
    common = "--dtype=bfloat16", "--count=1"
    assert run(*common, *filter(None, [first]), methods="eagle2")[0] == 0
    code, _, err = run(*common, then, methods="eagle2")
    assert code == 1 and "--output" in err and "other settings" in err


def test_a_sample_of_the_prompts(run, tmp_path):
    assert run("--count", "2", "--sample-seed", "1", methods="jacobi-chain")[0] == 0
    assert len(read_json(tmp_path / "out" / "results.json")["records"]) == 2


@pytest.mark.parametrize(
    "extra, options, named",
    [
        ([], {"methods": "eagle3"}, ["--methods"]),
        ([], {"methods": "no-drafting+lantern"}, ["--methods"]),
        ([], {"prompts": "nowhere.txt"}, ["--prompts"]),
        (["--count", "0"], {}, ["--count"]),
        (["--lantern-factor", "2"], {}, ["--lantern-factor"]),
        (["--drafter", "jacobi"], {"methods": "jacobi,merged"}, ["--drafter", "'merged'"]),
    ],
)
def test_invalid_input(run, tmp_path, extra, options, named):
    code, out, err = run(*extra, **options)
    assert code in (1, 2) and out == "" and all(word in err for word in named) and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_invalid_output_folder_is_reported_before_loading(run, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "load", mock.Mock(side_effect=AssertionError("the model was loaded")))
    (tmp_path / "out").write_text("a file at the path of the folder", encoding="utf-8")
    code, _, err = run(methods="eagle2")
    assert code == 1 and "--output" in err and "not a folder with write access" in err


def test_the_preset_determines_the_jacobi_window(run, tiny):
    assert run("--drafter", f"{tiny / 'drafter'}+jacobi", "--count", "1", methods="static:mc_sim_7b_63,merged")[0] == 0


def test_bundled_captions():
    prompts = read_prompts(BUNDLED_CAPTIONS)
    assert len(prompts) == len(set(prompts)) >= 100


def test_images_are_reproduced_from_their_pngs(run, tiny, tmp_path):
    """Images must be reproducible with every drafter. This includes LANTERN images, which depend on the drafts."""
    methods = ["eagle2-top-k", "jacobi+lantern", "merged+lantern", "adt-tree+lantern"]
    assert run("--count", "1", methods=",".join(methods))[0] == 0
    folders = {path.parent.name: path for path in tmp_path.glob("out/images/*/*.png")}
    assert {"no-drafting", "jacobi+lantern", "adt-tree+lantern"} <= set(folders)
    for name, path in folders.items():
        again = tmp_path / "again.png"
        settings = read_settings(path)
        assert settings["model"] == "target", "the folders of a machine are nobody else's business"
        drafter = settings["drafter"]
        network = drafter if drafter in (None, "jacobi") else tiny / drafter
        models = [f"--model={tiny / 'target'}", *([f"--drafter={network}"] if network else [])]
        assert cli.main(["generate", "--from-png", str(path), *models, "--output", str(again)]) == 0, name
        with Image.open(path) as one, Image.open(again) as two:
            assert one.tobytes() == two.tobytes(), name
        reproduced = {**read_settings(again), "benchmark_method": name, "drafter": mock.ANY}
        assert read_settings(path) == reproduced


def test_additional_policies_can_be_compared(monkeypatch):
    monkeypatch.setitem(POLICIES, "mine", POLICIES["eagle2"])
    compared = benchmark.Benchmark(["a cat"], ["mine", "mine+lantern"], Recipe(lantern=Lantern()))
    assert list(compared.presets) == ["no-drafting", "mine", "mine+lantern"]
    assert compared.presets["mine"].drafting.method == "mine" and compared.presets["mine+lantern"].lantern == Lantern()
