"""Tests of lists in an object store: `--output memory://...`, and a local server of S3 with `--all`."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock
from uuid import uuid4

import pytest

from adt_core import cli
from adt_core.app import object_store
from adt_core.run import tars
from tests.command import words

PROMPTS = ["a cat", "a dog", "a cow", "fog"]
SMALL_TARS = """
import sys
from adt_core import cli
from adt_core.run import tars
tars.TAR_SIZE = 2
sys.exit(cli.main(sys.argv[1:]))
"""
"""Program that runs a command with tars of two images."""
fsspec = pytest.importorskip("fsspec")


@pytest.fixture(params=["memory", pytest.param("s3", marks=pytest.mark.long)])
def url(request):
    """Return the URL of an empty folder of an object store."""
    if request.param == "memory":
        yield "memory://bucket/coco"
        fsspec.filesystem("memory").store.clear()
    else:
        yield from s3()


def s3():
    """Yield the URL of a folder of a local server of S3."""
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    bucket = uuid4().hex  # servers of one process share their buckets
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("FSSPEC_S3_ENDPOINT_URL", endpoint)  # read by child processes
        patch.setitem(fsspec.config.conf, "s3", {"endpoint_url": endpoint})
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir(bucket)
        yield f"s3://{bucket}/coco"
    server.stop()


@pytest.fixture
def generate(tiny, tmp_path, monkeypatch, capsys):
    """Return a function that runs `generate` with a list, and returns exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tars, "TAR_SIZE", 3)
    Path("list.txt").write_text("\n".join(PROMPTS), encoding="utf-8")
    usual = {"model": tiny / "target", "drafter": tiny / "drafter", "prompts": "list.txt", "method": "adt-tree"}
    usual |= {"dtype": "float64", "device": "cpu", "batch_size": 1, "format": "webdataset"}

    def run(output, *flags, **given):
        code = cli.main([*words("generate", **usual | {"output": output} | given), *flags])
        return code, *capsys.readouterr()

    return run


def names(url):
    store, root = fsspec.core.url_to_fs(url)
    store.invalidate_cache()
    return sorted(path.removeprefix(root).lstrip("/") for path in store.find(root))


def read(url):
    with fsspec.open(url, "rb") as file:
        return file.read()


def lines(url):
    return [json.loads(line) for line in read(url).splitlines()]


def options(folder):
    return {"tokens": f"{folder}/t.jsonl", "report": f"{folder}/r.json"}


def tokens(url):
    return [(line["image"], line["prompt"], line["tokens"]) for line in lines(url)]


def interrupt_after(patch, name):
    """Interrupt the run after it has copied a file to the object store."""
    put = object_store.Mirror._put

    def interrupted(self, urls):
        put(self, urls)
        if any(url.endswith(f"/{name}") for url in urls.values()):
            raise KeyboardInterrupt

    patch.setattr(object_store.Mirror, "_put", interrupted)


def test_a_list_in_an_object_store_is_the_list_of_a_folder(generate, url):
    assert generate("whole", **options("whole"))[0] == 0
    code, out, err = generate(url, **options(url))
    assert code == 0 and f"{url}:" in out, err
    packed = ["00000.tar", "00001.tar"]
    records = [f"records/{name}" for name in packed]
    assert names(url) == [*packed, "index.json", "r.json", "r.jsonl", *records, "t.jsonl"]
    assert tokens(f"{url}/t.jsonl") == tokens(Path("whole/t.jsonl").absolute().as_uri())
    listed = json.loads(read(f"{url}/index.json"))["shardlist"]
    assert [(tar["url"], tar["nsamples"]) for tar in listed] == [("00000.tar", 3), ("00001.tar", 1)]
    assert all(tar["filesize"] == len(read(f"{url}/{tar['url']}")) for tar in listed)
    for name in packed:
        Path(name).write_bytes(read(f"{url}/{name}"))
        assert [key for key, _ in tars._records(Path(name))] == [key for key, _ in tars._records(Path("whole", name))]


def test_a_list_continues_on_another_machine(generate, url, monkeypatch):
    """Nothing but the objects is left of the interrupted run."""
    with monkeypatch.context() as patch:
        interrupt_after(patch, "00000.tar")
        assert generate(url, **options(url))[0] == 130
    assert names(url) == ["00000.tar", "000001.png", "000002.png"], "the images of the tar are not deleted yet"
    code, out, err = generate(url, **options(url))
    assert code == 0 and "3 of 4 images were already there." in out, err
    assert not [name for name in names(url) if name.endswith(".png")]
    assert [image for image, _, _ in tokens(f"{url}/t.jsonl")] == [*range(1, 5)]
    code, out, _ = generate(url, **options(url))
    assert code == 0 and "4 of 4 images were already there." in out


def test_images_wait_for_their_tar_in_the_object_store(generate, url, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_after(patch, "000002.png")
        assert generate(url)[0] == 130
    assert names(url) == ["000001.png", "000002.png"]
    code, out, _ = generate(url)
    assert code == 0 and "2 of 4 images were already there." in out


def test_shards_are_merged_in_the_object_store(generate, url, capsys):
    assert generate("whole", **options("whole"))[0] == 0
    for number in (1, 2):
        code, _, err = generate(url, shard=f"{number}/2", **options(url))
        assert code == 0, err
    assert "index.json" not in names(url), "a shard does not know the tars of the others"
    assert cli.main(["merge", f"{url}/t.jsonl", f"{url}/r.json"]) == 0
    assert f"{url}/r.json: 4 images from 2 files" in capsys.readouterr().out
    assert tokens(f"{url}/t.jsonl") == tokens(Path("whole/t.jsonl").absolute().as_uri())
    assert lines(f"{url}/r.json")[0]["images"] == 4
    code, out, err = generate(url, **options(url))
    assert code == 0 and "4 of 4 images were already there." in out, err
    index = json.loads(read(f"{url}/index.json"))
    assert sum(tar["nsamples"] for tar in index["shardlist"]) == 4


def test_images_of_other_settings_are_kept(generate, url):
    assert generate(url)[0] == 0
    code, _, err = generate(url, temperature=0.5)
    assert code == 1 and f"'{url}/00000.tar' has an image that was made with temperature" in err
    before = read(f"{url}/00000.tar")
    assert generate(url, "--overwrite", temperature=0.5)[0] == 0
    assert read(f"{url}/00000.tar") != before and len(names(url)) == 5


def test_lists_and_lines_alone_can_be_urls(generate, url):
    with fsspec.open(f"{url}/list.txt", "w") as file:
        file.write("\n".join(PROMPTS))
    assert generate("out", prompts=f"{url}/list.txt", tokens=f"{url}/t.jsonl", format="png")[0] == 0
    assert len(list(Path("out").glob("*.png"))) == 4
    assert names(url) == ["list.txt", "t.jsonl"] and len(lines(f"{url}/t.jsonl")) == 4


@pytest.mark.long
def test_killed_shards_lose_no_image_that_the_server_has(tiny, tmp_path):
    """Two shards write to S3, and each is killed twice. Only the objects are left of a killed run."""
    url = next(server := s3())
    prompts = "\n".join(f"{prompt} {number}" for number in range(3) for prompt in PROMPTS)
    Path(tmp_path, "list.txt").write_text(prompts, encoding="utf-8")
    root = Path(__file__).resolve().parents[3]
    usual = {"model": tiny / "target", "drafter": tiny / "drafter", "prompts": tmp_path / "list.txt", "device": "cpu"}
    usual |= {"dtype": "float64", "batch_size": 1, "format": "webdataset", "output": url, **options(url)}

    def start(shard):
        line = [sys.executable, "-c", SMALL_TARS, *words("generate", **usual, shard=shard)]
        return subprocess.Popen(line, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def images():
        found = set()
        for name in names(url):
            with suppress(FileNotFoundError):  # packed since
                found |= {int(name[:-4])} if name.endswith(".png") else set()
                if tars.is_tar(name):
                    Path(tmp_path, "t.tar").write_bytes(read(f"{url}/{name}"))
                    found |= {int(key) for key, _ in tars._records(Path(tmp_path, "t.tar"))}
        return found

    for kill in range(2):
        runs = [start(f"{number}/2") for number in (1, 2)]
        deadline = time.monotonic() + 100
        while len(images()) < 4 * (kill + 1) and time.monotonic() < deadline:
            time.sleep(0.05)
        for run in runs:
            os.kill(run.pid, signal.SIGKILL)
            run.communicate()
    before = images()
    assert 8 <= len(before) < 12
    outputs = [start(f"{number}/2").communicate()[0] for number in (1, 2)]
    present = sum(int(output.partition(" of 6 images were already there")[0].split()[-1]) for output in outputs)
    assert present == len(before), outputs
    assert images() == set(range(1, 13)) and not [name for name in names(url) if name.endswith(".png")]
    assert cli.main(["merge", f"{url}/t.jsonl", f"{url}/r.json"]) == 0
    assert [image for image, _, _ in tokens(f"{url}/t.jsonl")] == [*range(1, 13)]
    server.close()


def test_only_the_folder_of_the_list_is_searched(generate, monkeypatch):
    """A bucket may have millions of other objects, and the user may not be allowed to list it."""
    store = fsspec.filesystem("memory")
    find = type(store).find
    searched = []
    monkeypatch.setattr(type(store), "find", lambda *given, **more: searched.append(given[1]) or find(*given, **more))
    assert generate("memory://bucket/coco", shard="1/4")[0] == 0
    store.store.clear()
    assert searched == ["/bucket/coco"]


@pytest.mark.parametrize("given", [{"format": "png"}, {"prompts": None, "prompt": "a cat"}])
def test_only_tars_are_written_to_urls(generate, given):
    code, _, err = generate("memory://bucket/coco", **given)
    assert code == 2 and "--output is memory://bucket/coco" in err and "--format to webdataset" in err


def test_what_is_missing_is_named(generate, monkeypatch):
    code, _, err = generate("nowhere://bucket/coco")
    assert code == 2 and "'nowhere://bucket/coco' can't be reached" in err
    fsspec.register_implementation("s4", "s4fs.S4", errtxt="Install s4fs")
    code, _, err = generate("s4://bucket/coco")
    assert code == 2 and "needs a package that is not installed (Install s4fs)" in err
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    code, _, err = generate("s3://bucket/coco")
    assert code == 2 and "needs the package fsspec" in err and "pip install fsspec" in err


def test_an_unreachable_server_is_named(generate, monkeypatch):
    store = fsspec.filesystem("memory")
    assert generate("memory://bucket/coco", shard="1/4")[0] == 0

    monkeypatch.setattr(type(store), "put_file", Mock(side_effect=ConnectionError("no route to host")))
    code, _, err = generate("memory://bucket/coco", shard="2/4")
    monkeypatch.undo()
    store.store.clear()
    assert code == 1 and "memory://bucket/coco" in err and "no route to host" in err and "run this again" in err


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("s3://bucket/a/b.json", "s3://bucket/a/b.json"),
        ("file:///tmp/a", "file:///tmp/a"),
        ("out/a.png", None),
        ("C:/out/a.png", None),
    ],
)
def test_urls_are_recognised(path, url):
    assert object_store.url_of(Path(path)) == url
