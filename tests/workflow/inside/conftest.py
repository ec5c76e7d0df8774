"""Fixtures with ComfyUI in this process, without a server. ComfyUI's loader loads the pack. Then tests call its nodes.

The tests of this folder need the Python environment of ComfyUI. ``../test_inside.py`` runs them there, once for each
release. To run them by hand:

    PYTHONPATH=.cache/comfyui/comfyui-0.30.0 .cache/comfyui/env-*/bin/python -m pytest tests/workflow/inside
"""

import asyncio
import importlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from reference import draw
from small import SMALL, write_small

ROOT = Path(__file__).resolve().parents[3]
PROBE = Path(__file__).resolve().parents[1] / "probe_nodes"
EXTRAS = "nodes_clip_sdxl.py", "nodes_model_merging.py"  # ComfyUI's extra node files that tests need
INSIDE = importlib.util.find_spec("comfy") is not None
collect_ignore_glob = [] if INSIDE else ["test_*.py"]

SOURCES = {
    "loader": {"class_type": "ADTTreeModelLoader", "inputs": {}},
    "theirs": {"class_type": "ProbeDiffusionModel", "inputs": {}},
    "text": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["loader", 1], "text": "a cat"}},
    "sampler": {"class_type": "ADTTreeSampler", "inputs": {"model": ["loader", 0], "positive": ["text", 0]}},
    "picture": {"class_type": "VAEDecode", "inputs": {"samples": ["sampler", 0], "vae": ["loader", 2]}},
    "decoder": {"class_type": "ADTTreeGLMImageDecoderLoader", "inputs": {}},
    "batch": {"class_type": "ADTTreeBatchSampler", "inputs": {"model": ["loader", 0], "prompts": "a cat"}},
}
PLUGS = {
    "ADT_MODEL": ["loader", 0],
    "ADT_GLM_DECODER": ["decoder", 0],
    "CONDITIONING": ["text", 0],
    "MODEL": ["theirs", 0],
    "LATENT": ["sampler", 0],
    "IMAGE": ["picture", 0],
    "ADT_TRACE": ["sampler", 1],
    "ADT_RESULTS": ["batch", 2],
    "STRING": "a cat",
}
"""Type of an input -> value for required inputs of this type: a link to a node of `SOURCES`, or a text."""


class Pack:
    """All nodes of a ComfyUI that has loaded this pack."""

    def __init__(self, base: Path):
        from comfy.cli_args import args

        args.cpu = True
        args.base_directory = str(base)
        in_order = "utils.install_util", "execution", "nodes", "server"  # as main.py: there are two packages utils
        _, self._execution, nodes, server = map(importlib.import_module, in_order)
        self.base = base
        self._loop = asyncio.new_event_loop()
        for folder in ("input", "output"):
            (base / folder).mkdir(exist_ok=True)
        server.PromptServer(self._loop)
        extras = Path(nodes.__file__).parent / "comfy_extras"
        for place in (ROOT, PROBE, *(extras / name for name in EXTRAS)):
            assert self._loop.run_until_complete(nodes.load_custom_node(str(place))), place
        self.nodes = nodes.NODE_CLASS_MAPPINGS
        package, _ = self.nodes["ADTTreeSampler"].__module__.rsplit(".nodes.", 1)
        self.bundled = ROOT / "adt_core" / "bundled"
        self.package = lambda name: importlib.import_module(package + name)
        self.AdtError = self.package(".adt_core.errors").AdtError
        self.Cancelled = importlib.import_module("comfy.model_management").InterruptProcessingException

    @property
    def ours(self) -> dict[str, dict]:
        """Definitions of the pack's nodes, as in ``/object_info``."""
        return {name: node.GET_NODE_INFO_V1() for name, node in self.nodes.items() if name.startswith("ADTTree")}

    def run(self, kind: str, **inputs) -> tuple:
        node = self.nodes[kind]
        if hasattr(node, "PREPARE_CLASS_CLONE"):
            return node.PREPARE_CLASS_CLONE({"hidden_inputs": {}}).execute(**inputs).args
        return getattr(node(), node.FUNCTION)(**inputs)

    def fails(self, kind: str, **inputs) -> ValueError:
        """Run a node that must fail. Check that it writes no file, and return the error."""
        before = set(self.base.rglob("*"))
        with pytest.raises(self.AdtError) as error:
            self.run(kind, **inputs)
        assert set(self.base.rglob("*")) == before, "something was written"
        return error.value

    def refused(self, kind: str, **inputs) -> list[str]:
        """Return the errors that ComfyUI finds in a node's inputs before a run. The list may be empty.

        An input that isn't given has its default, or a link to a node of the right type. None removes an input.
        """
        needed = {name: type for name, (type, *_) in info_inputs(self.nodes[kind], "required").items()}
        plugs = {name: PLUGS[type] for name, type in needed.items() if isinstance(type, str) and type in PLUGS}
        own = {name: value for name, value in (plugs | inputs).items() if value is not None}
        prompt = SOURCES | {"own": {"class_type": kind, "inputs": own}}
        _, errors, _ = self._loop.run_until_complete(self._execution.validate_inputs("prompt", prompt, "own", {}))
        return [error["details"] for error in errors]


def info_inputs(node: type, *sections: str) -> dict[str, list]:
    """Return (type, options) of each input in these sections of a node's inputs."""
    known = node.INPUT_TYPES()
    return {name: one for section in sections for name, one in known.get(section, {}).items()}


@pytest.fixture(scope="session")
def pack(tmp_path_factory, meter):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["main.py"])
        base = tmp_path_factory.mktemp("comfyui")
        write_small(base / "models", side=64)
        with meter.uncounted():
            pack = Pack(base)
        yield pack


@pytest.fixture(scope="session")
def loaded(pack):
    return pack.run("ADTTreeModelLoader", model="bundled", dtype="auto")


@pytest.fixture(scope="session")
def model(loaded):
    return loaded[0]


@pytest.fixture(scope="session")
def encoded(pack, loaded):
    """Return a function that encodes a text with the node CLIP Text Encode."""
    return lambda text: pack.run("CLIPTextEncode", clip=loaded[1], text=text)[0]


class Small:
    """Small random model with its drafter. The class also gives the images that the engine generates with them."""

    PROMPT = "A blue sailboat in the middle of a calm lake at sunset."
    NUMBERS = {"seed": 5, "guidance": 3.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "preset": "custom"}

    def __init__(self, pack: Pack):
        self._pack = pack
        self.model, self.clip, self.vae = pack.run("ADTTreeModelLoader", model=SMALL, dtype="auto")
        self.drafters = {name: self.run("ADTTreeDrafterLoader", drafter=name)[0] for name in (SMALL, "jacobi")}
        folders = {"model": "ar_image", "network": "ar_image_drafters"}
        self._places = {name: str(pack.base / "models" / folder / SMALL) for name, folder in folders.items()}

    def run(self, kind: str, **inputs) -> tuple:
        return self._pack.run(kind, model=self.model, **inputs)

    def text(self, text: str) -> list:
        return self._pack.run("CLIPTextEncode", clip=self.clip, text=text)[0]

    def sample(self, **inputs) -> tuple:
        """Run the sampler. Return its latent and its trace. By default, the sampler has a prompt and a drafter."""
        usual = {"positive": self.text(self.PROMPT), "drafter": self.drafters[SMALL], "batch_size": 1}
        return self.run("ADTTreeSampler", **{**usual, **self.NUMBERS, **inputs})

    def vectors(self, **inputs) -> np.ndarray:
        """Run the sampler. Return its codebook vectors [B, C, h, w]."""
        return self.sample(**inputs)[0]["samples"].numpy()

    def expected(self, **asked) -> dict[str, np.ndarray]:
        return draw(**{"prompt": self.PROMPT, "sampling": {"seed": 5}} | asked, **self._places)


@pytest.fixture(scope="session")
def small(pack):
    return Small(pack)
