"""Tests of workers on Ray: the results equal those of a single process, even if a worker or a machine is lost."""

import os
from collections import Counter
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from PIL import Image

from adt_core import cli
from adt_core.app import args, distributed, generate_worker, workers
from adt_core.app import generate as command
from adt_core.lab import benchmark, records
from adt_core.recipe import Placement
from adt_core.run import store
from tests.command import read_json, read_lines, words

ROOT = Path(__file__).resolve().parents[3]
PROMPTS = ["a cat", "a dog", "a cow", "a red house", "fog", "a blue sky", "a tree"]
LOST = 1
"""Index of the prompt whose worker is killed."""
KILLS = 2
"""Number of times that a worker is killed."""


@pytest.fixture(scope="module")
def ray():
    return pytest.importorskip("ray")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return a working directory with a list of prompts. Workers can import the package from it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    Path("list.txt").write_text("\n".join(PROMPTS), encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def cluster(ray):
    """Start a Ray cluster of one machine with two cores. Tests add more machines."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("RAY_worker_niceness", "0")  # otherwise, other tests in parallel would slow the workers down
        head = {"num_cpus": 2, "object_store_memory": distributed.OBJECT_STORE}
        found = Cluster(initialize_head=True, head_node_args=head)
        yield found
        found.shutdown()


@pytest.fixture
def run(tiny, capsys):
    """Return a function that runs a command. It returns the exit code, standard output and standard error."""
    usual = {"model": tiny / "target", "drafter": tiny / "drafter", "prompts": "list.txt"}
    usual |= {"device": "cpu", "dtype": "float64"}

    def run(command, output, **given):
        return cli.main(words(command, **usual | {"output": output} | given)), *capsys.readouterr()

    return run


def fragile(module, maker, folder):
    """Return a factory of workers. A worker is killed KILLS times before it returns the images of the prompt LOST."""
    name = module.__name__  # workers import the module without patches

    def build(*arguments):
        import importlib
        import signal

        worker = getattr(importlib.import_module(name), maker)(*arguments)

        class Fragile(type(worker)):
            def __call__(self, task):
                number = task[0] // 2 if isinstance(task, list) else task  # two images per prompt
                found = list(super().__call__(task))
                with (folder / "begun").open("a", encoding="utf-8") as file:
                    file.write(f"{number} {os.getpid()}\n")
                kills = len(list(folder.glob("killed-*")))
                if number == LOST and kills < KILLS:
                    (folder / f"killed-{kills}").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return found

        worker.__class__ = Fragile
        return worker

    return build


def tries(folder):
    """Return how often each prompt was decoded, and the number of processes that decoded prompts."""
    lines = [line.split() for line in (folder / "begun").read_text(encoding="utf-8").splitlines()]
    return Counter(int(number) for number, _ in lines), len({process for _, process in lines})


def without_times(decodings):
    """Return the rounds of traces without their times, and without the forward passes that the batch shared."""
    omitted = dict.fromkeys(("seconds", "drafting", "drafter_forwards"))
    return [
        [d["image"], d["prompt"], d["acceptance"], [{**round, **omitted} for round in d["rounds"]]] for d in decodings
    ]


@pytest.mark.long
def test_prompt_of_a_killed_worker_is_decoded_again(ray, run, folder, monkeypatch):
    def generate(folder, **more):
        files = {name: f"{folder}/{name}.json" for name in ("tokens", "trace", "report")}
        return run("generate", folder, num_images_per_prompt=2, batch_size=2, method="adt-tree", **files, **more)

    assert generate("single")[0] == 0
    monkeypatch.setattr(command, "GenerateWorker", fragile(generate_worker, "GenerateWorker", folder))
    code, out, err = generate("spread", workers=2)
    assert code == 0, err
    decoded, processes = tries(folder)
    assert decoded == Counter(range(len(PROMPTS))) + Counter([LOST] * KILLS), "one again after each kill, others once"
    assert 1 + KILLS <= processes <= 2 + KILLS, "the last tasks may be finished before a process is replaced"
    assert not ray.is_initialized() and "2 workers" in out
    assert 1 <= err.count("A worker failed") <= KILLS and "raylet" not in out + err

    names = sorted(path.name for path in Path("single").iterdir())
    assert sorted(path.name for path in Path("spread").iterdir()) == names and len(names) == 2 * len(PROMPTS) + 5
    assert read_lines("single/tokens.json") == read_lines("spread/tokens.json")
    assert without_times(read_lines("single/trace.json")) == without_times(read_lines("spread/trace.json"))
    for name in names[: 2 * len(PROMPTS)]:
        with Image.open(f"single/{name}") as one, Image.open(f"spread/{name}") as two:
            assert one.tobytes() == two.tobytes() and one.info["parameters"] == two.info["parameters"]
    single = read_json("single/report.json")
    spread = read_json("spread/report.json")
    assert spread["workers"] == 2 and spread["elapsed_seconds"] > 0
    for counted in ("tokens", "images", "tau", "mean_depth", "verified_drafts"):
        assert single[counted] == pytest.approx(spread[counted])

    (folder / "spread" / "000003.png").unlink()
    code, out, err = generate("spread", workers=2)
    assert code == 0 and "13 of 14 images were already there." in out, err
    assert read_lines("single/tokens.json") == read_lines("spread/tokens.json")


COUNTED = "tokens tau target_forwards agreement acceptance substitution_rate picture".split()


def assert_same_results(prompts):
    """Check that a benchmark in one process and a benchmark with two workers have the same results."""
    single = read_json("single/results.json")
    spread = read_json("spread/results.json")
    assert [record["text"] for record in spread["records"]] == prompts and spread["settings"]["workers"] == 2
    for one, two in zip(single["records"], spread["records"]):
        assert one["prompt"] == two["prompt"]
        for name, run_single in one["runs"].items():
            assert all(run_single[figure] == two["runs"][name][figure] for figure in COUNTED)
            contents = (Path(folder, run_single["picture"]).read_bytes() for folder in ("single", "spread"))
            assert next(contents) == next(contents)


@pytest.mark.long
def test_a_benchmark_survives_a_kill_and_an_interrupt(run, cluster, folder, monkeypatch):
    options = {"methods": "eagle2,jacobi+lantern", "lantern_delta": 0.5}
    assert run("benchmark", "single", **options)[0] == 0
    monkeypatch.setattr(benchmark, "load", fragile(benchmark, "load", folder))
    add_line = records.add_line
    added = []

    def interrupted(*arguments):
        if len(added) == 6:
            added.clear()
            raise KeyboardInterrupt
        added.append(arguments)
        add_line(*arguments)

    monkeypatch.setattr(records, "add_line", interrupted)
    on_ray = {**options, "workers": 2, "ray_address": cluster.address}
    code, _, err = run("benchmark", "spread", **on_ray)
    assert code == 130 and "Interrupted" in err
    before = Path("spread/runs.jsonl").read_text(encoding="utf-8")
    assert before.count("\n") == 6 and (folder / "killed-0").exists()
    code, _, err = run("benchmark", "spread", **on_ray)
    assert code == 0, err
    assert Path("spread/runs.jsonl").read_text(encoding="utf-8").startswith(before)

    assert_same_results(PROMPTS)


@pytest.mark.long
def test_the_tasks_of_a_lost_machine_are_taken_by_others(run, cluster, monkeypatch):
    """All cores are in use, so the worker can't restart. Another takes its task."""
    machine = cluster.add_node(num_cpus=1, object_store_memory=distributed.OBJECT_STORE)
    add = store.PngStore.add
    added = []
    cluster.wait_for_nodes()

    def lose_the_machine(self, job, png, record):
        if not added:
            cluster.remove_node(machine, allow_graceful=False)
        assert png is None, "the workers write their images"
        added.append(job.number)
        add(self, job, png, record)

    assert run("generate", "single", tokens="single.json")[0] == 0
    monkeypatch.setattr(store.PngStore, "add", lose_the_machine)
    code, _, err = run("generate", "spread", batch_size=1, workers=3, ray_address=cluster.address, tokens="spread.json")
    cluster.wait_for_nodes(timeout=100)  # wait until Ray notices the loss, because later tests need two free cores
    assert code == 0, err
    assert sorted(added) == [*range(1, len(PROMPTS) + 1)]
    assert sorted(os.listdir("spread")) == [*(f"{number:06}.png" for number in sorted(added)), "manifest.csv"]
    assert read_lines("single.json") == read_lines("spread.json")


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_worker_writes_its_images_only_into_a_shared_folder(tiny, folder, is_shared):
    mark = folder / "out" / "mark"
    if is_shared:
        mark.parent.mkdir()
        mark.touch()
    given = {"model": str(tiny / "target"), "drafter": str(tiny / "drafter"), "dtype": "float64"}
    files = args.OutputArgs(output=Path("out"))
    inputs = args.InputArgs(prompts=Path("list.txt"))
    wanted = args.GenerateArgs(files, inputs, given, placement=Placement(device="cpu"))
    worker = generate_worker.GenerateWorker(replace(command.plan(wanted), mark=mark))
    [image] = [image for step in worker([2]) for image in step.images]
    assert image.job.number == 2 and (image.png is None) == is_shared
    assert Path("out/000002.png").exists() == is_shared


# ---- bad input ------------------------------------------------------------


def assert_refused(result, *named, code=1):
    found, out, err = result
    assert found == code and out == "" and err.count("\n") == 1 and "unexpected" not in err, err
    assert all(name in err for name in named), err
    assert sorted(os.listdir()) == ["list.txt"]


@pytest.mark.parametrize(("command", "output", "code"), [("generate", "a.png", 2), ("benchmark", "out", 1)])
def test_invalid_options(run, command, output, code, monkeypatch):
    assert_refused(run(command, output, workers=0), "--workers", "0", code=2)
    monkeypatch.setattr(
        workers.importlib.util, "find_spec", lambda name: None if name == "ray" else ModuleSpec(name, None)
    )
    assert_refused(run(command, output, workers=2), "--workers", "-m pip install ray", code=code)
    assert_refused(run(command, output, ray_address="auto"), "--ray-address", "-m pip install ray", code=code)


def test_the_registrys_archive_has_no_workers(run, monkeypatch):
    monkeypatch.setattr(workers.importlib.util, "find_spec", lambda name: None)
    assert_refused(run("generate", "a.png", workers=2), "--workers", "clone this pack's repository", code=2)


@pytest.mark.parametrize("option", [{"workers": 2}, {"ray_address": "auto"}])
def test_a_single_prompt_is_rejected(run, option):
    assert_refused(run("generate", "a.png", prompts=None, prompt="a cat", **option), "--workers", "--prompts", code=2)


@pytest.mark.long
def test_an_address_without_a_cluster(ray, run):
    for address in ("127.0.0.1:9", "nonsense"):
        assert_refused(run("generate", "out", ray_address=address), "--ray-address", address, "ray start")


@pytest.mark.long
def test_a_cluster_that_is_too_small(run, cluster):
    result = run("generate", "out", workers=3, ray_address=cluster.address)
    assert_refused(result, "--workers is 3", "CPU", "has only 2")
    assert_refused(run("generate", "out", ray_address=cluster.address, device="cuda"), "GPU", "--device cpu")


@pytest.mark.long
def test_errors_of_a_worker_are_reported(run, cluster):
    assert_refused(run("generate", "out", ray_address=cluster.address, model="nowhere"), "nowhere", "machine")
