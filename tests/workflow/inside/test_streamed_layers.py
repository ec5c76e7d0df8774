"""Tests of a decoder of which ComfyUI loads single layers.

A pretended GPU has a device of its own, but its memory is that of the CPU. ComfyUI's own functions load and unload the
weights. They read the free memory from the pretended GPU.
"""

import math
import weakref
from importlib import import_module

import numpy as np
import pytest
import torch

from tests.raising import raises_key

LAYERS = 8
NAMES = "eight-a", "eight-b"


@pytest.fixture
def mm(pack):
    """Return ComfyUI's memory management. It is imported after the options of the command line are set."""
    return import_module("comfy.model_management")


class Card:
    """Pretended GPU.

    Attributes:
        size: Bytes of its memory.
        patchers: Patchers of all weights that may be loaded there.
    """

    device = torch.device("cpu", 0)

    def __init__(self, mm, patch):
        self._mm = mm
        self.size = 2**60
        self.patchers = weakref.WeakSet()
        replaced = {
            "get_torch_device": lambda: self.device,
            "unet_offload_device": lambda: torch.device("cpu"),
            "is_device_cpu": lambda device: device == torch.device("cpu"),
            "get_free_memory": self.free,
            "get_total_memory": lambda device: self.size,
            "soft_empty_cache": lambda: None,
            "vram_state": mm.VRAMState.NORMAL_VRAM,
            "lowvram_available": True,
            "MIN_WEIGHT_MEMORY_RATIO": 0,
            "current_loaded_models": [],
        }
        for name, value in replaced.items():
            patch.setattr(mm, name, value)

    def free(self, device=None, torch_free_too=False):
        free = self.size - sum(patcher.loaded_size() for patcher in self.patchers)
        return (free, 0) if torch_free_too else free

    def allow(self, size):
        """Set the size, so that ComfyUI grants a number of bytes for all weights."""
        self.size = math.ceil(self._mm.minimum_inference_memory()) + size + 1


@pytest.fixture
def card(mm, monkeypatch):
    card = Card(mm, monkeypatch)
    yield card
    mm.unload_all_models()


@pytest.fixture(scope="module")
def written(pack):
    from tests.tiny import write_tiny_checkpoint, write_tiny_drafter

    for seed, name in enumerate(NAMES):
        folder = pack.base / "models" / "ar_image" / name
        write_tiny_checkpoint(folder, scale=3.0, resolution=48, layers=LAYERS, seed=seed)
        write_tiny_drafter(pack.base / "models" / "ar_image_drafters" / name, folder)


class Eight:
    def __init__(self, pack, card, name):
        self._pack = pack
        self._card = card
        self.model, self.clip, _ = pack.run("ADTTreeModelLoader", model=name, dtype="auto")
        (self.drafter,) = pack.run("ADTTreeDrafterLoader", model=self.model, drafter=name)
        card.patchers.update((self.model.patcher, self.model.codec, self.drafter.patcher))
        self.decoder = self.model.target.decoder
        self.size = pack.package(".adt_core.models.streamed").layer_bytes(self.decoder)
        self.others = pack.package(".adt_core.models.streamed").other_bytes(self.decoder)
        self.beside = self.model.codec.model_size() + self.drafter.patcher.model_size()

    @property
    def streamed(self):
        return len(self.decoder.stream) if self.decoder.stream is not None else 0

    def allow(self, layers):
        """Let the pretended GPU have memory for a number of layers, buffers included, and for all other weights."""
        self._card.allow(self.beside + self.others + int(layers * self.size))

    def draw(self):
        positive = self._pack.run("CLIPTextEncode", clip=self.clip, text="a cat")[0]
        numbers = {"seed": 5, "guidance": 3.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "preset": "custom"}
        inputs = {"model": self.model, "positive": positive, "drafter": self.drafter, **numbers}
        return self._pack.run("ADTTreeSampler", **inputs)[0]["samples"].numpy()


@pytest.fixture
def eight(pack, card, written):
    return Eight(pack, card, NAMES[0])


@pytest.fixture
def expected(mm, eight):
    image = eight.draw()
    assert eight.streamed == 0 and eight.model.patcher.loaded_size() == eight.others + LAYERS * eight.size
    mm.unload_all_models()
    return image


@pytest.mark.parametrize("allowed, streamed", [(LAYERS, 0), (LAYERS - 1, 3), (5, 5), (2, LAYERS), (0, LAYERS)])
def test_as_many_layers_are_loaded_as_comfyui_grants(eight, expected, allowed, streamed):
    """Two of the allowed layers are the buffers. Codec and drafter are always loaded, whichever ComfyUI loads first."""
    eight.allow(allowed)
    np.testing.assert_array_equal(eight.draw(), expected)
    assert eight.streamed == streamed
    held = LAYERS - streamed + (2 if streamed else 0)
    assert eight.model.patcher.loaded_size() == eight.others + held * eight.size
    for patcher in (eight.model.codec, eight.drafter.patcher):
        assert patcher.loaded_size() == patcher.model_size()


def test_another_model_takes_layers_and_caches_and_not_all_weights(mm, card, eight, expected):
    eight.allow(LAYERS)
    eight.draw()
    patcher = eight.model.patcher
    kept = type("Kept", (), {"num_bytes": 10})()
    eight.decoder.pooled_slots["probe"] = kept
    kept = weakref.ref(kept)
    linear = torch.nn.Linear((eight.beside + eight.size // 2) // 4, 1, bias=False)
    patcher_class = import_module("comfy.model_patcher").ModelPatcher
    other = patcher_class(linear, load_device=card.device, offload_device=torch.device("cpu"))
    card.patchers.add(other)
    mm.load_models_gpu([other])
    assert kept() is None, "captured rounds contain addresses of weights"
    assert eight.streamed == 4, "ComfyUI asks for 10 % more than the other model needs"
    assert patcher.loaded_size() == eight.others + (LAYERS - 2) * eight.size
    assert other.loaded_size() == other.model_size()
    np.testing.assert_array_equal(eight.draw(), expected)


def test_novram_streams_all_layers(mm, eight, expected, monkeypatch):
    monkeypatch.setattr(mm, "vram_state", mm.VRAMState.NO_VRAM)
    np.testing.assert_array_equal(eight.draw(), expected)
    assert eight.streamed == LAYERS


def test_highvram_streams_the_layers_that_do_not_fit(mm, eight, expected, monkeypatch):
    """ComfyUI asks for all weights with `--highvram` and `--gpu-only`."""
    monkeypatch.setattr(mm, "vram_state", mm.VRAMState.HIGH_VRAM)
    eight.allow(5)
    np.testing.assert_array_equal(eight.draw(), expected)
    assert 0 < eight.streamed < LAYERS
    mm.unload_all_models()
    eight.allow(LAYERS + 1)
    np.testing.assert_array_equal(eight.draw(), expected)
    assert eight.streamed == 0


def test_highvram_loads_a_model_that_does_not_fit_in_main_memory(pack, mm, card, written, monkeypatch):
    monkeypatch.setattr(mm, "unet_offload_device", lambda: card.device)
    loaders = pack.package(".nodes.loaders")
    load = loaders.load_target
    tried = []

    def load_target(path, device, **more):
        tried.append(device)
        if device == card.device:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return load(path, device=device, **more)

    monkeypatch.setattr(loaders, "load_target", load_target)
    eight = Eight(pack, card, NAMES[0])
    assert tried == [card.device, torch.device("cpu")]
    assert eight.model.patcher.offload_device == torch.device("cpu")


def test_reserved_memory_stays_free(mm, eight, monkeypatch):
    eight.allow(6)
    monkeypatch.setattr(mm, "EXTRA_RESERVED_VRAM", mm.EXTRA_RESERVED_VRAM + 2 * eight.size)
    eight.draw()
    assert eight.streamed == 6


def test_layers_stay_where_they_are_if_the_free_memory_hardly_changes(pack, eight, monkeypatch):
    placed = []
    streamed = pack.package(".adt_core.models.streamed")
    place = streamed.place
    monkeypatch.setattr(streamed, "place", lambda *values, **more: placed.append(values) or place(*values, **more))
    for allowed, count in ((5, 1), (5.5, 1), (6.1, 1), (4.2, 1), (7.1, 2), (3, 3)):
        eight.allow(allowed)
        eight.draw()
        assert len(placed) == count, allowed


def test_a_cancelled_run_leaves_nothing_on_the_device_after_unloading(pack, mm, eight, expected, monkeypatch):
    eight.allow(4)
    calls = []

    def cancel():
        calls.append(0)
        if len(calls) > 40:
            raise pack.Cancelled

    with monkeypatch.context() as patch:
        patch.setattr(pack.package(".nodes.sampling"), "check_cancelled", cancel)
        with pytest.raises(pack.Cancelled):
            eight.draw()
    np.testing.assert_array_equal(eight.draw(), expected)
    buffers = weakref.ref(eight.decoder.stream.buffers[0])
    mm.unload_all_models()
    assert eight.streamed == 0 and buffers() is None
    assert not mm.current_loaded_models and eight.model.patcher.loaded_size() == 0


def test_two_models_in_turns(pack, card, eight, expected):
    """ComfyUI first unloads the small modules of the idle model, and then as many of its layers as it needs."""
    other = Eight(pack, card, NAMES[1])
    card.allow(2 * (eight.beside + eight.others) + 12 * eight.size)
    second = other.draw()
    for _ in range(2):
        for drawing, image, idle in ((eight, expected, other), (other, second, eight)):
            np.testing.assert_array_equal(drawing.draw(), image)
            assert drawing.streamed == 0
            assert 0 < idle.streamed < LAYERS, "the idle model keeps a part of its layers"


def test_too_little_memory_for_two_layers_is_refused(pack, card, eight):
    card.size = eight.beside + eight.others + 2 * eight.size
    with raises_key("gpu.too_small", title=NAMES[0], device="cpu:0", total="0.0"):
        eight.draw()


@pytest.mark.parametrize("limit", [-1, 2**30])
def test_pinned_memory_is_comfyuis(pack, mm, eight, monkeypatch, limit):
    """With `--disable-pinned-memory`, ComfyUI's limit is -1."""
    pinners = []
    streamed = pack.package(".adt_core.models.streamed")
    monkeypatch.setattr(streamed, "place", lambda *values, **more: pinners.append(values[3]))
    asked = []
    monkeypatch.setattr(mm, "MAX_PINNED_MEMORY", limit)
    monkeypatch.setattr(mm, "pin_memory", lambda memory: asked.append(memory) or False)
    eight.allow(4)
    eight.model.patcher.partially_load(eight.model.patcher.load_device, 0)
    (pinner,) = pinners
    assert (pinner is None) == (limit < 0)
    if pinner is not None:
        memory = torch.empty(1)
        assert not pinner.pin(memory) and asked == [memory]


@pytest.fixture
def told(pack, monkeypatch):
    lines = []
    for name in (".nodes.weights", ".nodes.loaders"):
        monkeypatch.setattr(pack.package(name), "tell", lambda text, *_, **__: lines.append(str(text)))
    return lines


def test_the_loader_and_the_sampler_say_which_part_is_streamed(pack, mm, card, eight, told):
    eight.allow(5)
    eight.draw()
    assert told == ["0.0 of 0.0 GiB on the GPU, the rest is streamed: about 3e-05 s a pass."]
    eight.draw()
    assert len(told) == 1, "only if it has changed"
    told.clear()
    pack.run("ADTTreeModelLoader", model=NAMES[0], dtype="auto")
    assert [text.partition(":")[0] for text in told] == ["0.0 of 0.0 GiB on the GPU, the rest is streamed"]
    told.clear()
    card.size = 2**40
    pack.run("ADTTreeModelLoader", model=NAMES[0], dtype="auto")
    assert told == []


def test_sizes_and_seconds_of_the_sentence(pack, eight, monkeypatch):
    """13.9 GiB with 20 of 40 layers streamed from pinned memory at 24 GB/s."""
    streamed = pack.package(".adt_core.models.streamed")
    monkeypatch.setattr(streamed, "layer_bytes", lambda decoder: int(0.4 * 2**30))
    monkeypatch.setattr(streamed, "device_bytes", lambda decoder, count: int(13.9 * 2**30))
    text = streamed.streamed_message(eight.decoder, 20, 20 * 0.4 * 2**30 / 24e9)
    assert text == "5.9 of 13.9 GiB on the GPU, the rest is streamed: about 0.4 s a pass."


def test_loading_the_codec_after_a_run_moves_no_layers(eight):
    """Then ComfyUI would grant the memory of the caches to the layers, and take it away before the next run."""
    eight.allow(4)
    eight.draw()
    before = eight.streamed
    eight.allow(LAYERS)
    run = eight.model.patcher
    from_weights = eight._pack.package(".nodes.weights")
    with from_weights.loaded([run, eight.model.codec]):
        assert eight.streamed == before
    with from_weights.loaded([run, eight.model.codec], memory_required=1):
        assert eight.streamed < before
