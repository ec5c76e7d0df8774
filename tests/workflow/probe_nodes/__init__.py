"""Nodes of another pack for the tests: a foreign model and prompt, a reader of traces, and reports about memory."""

import functools
import gc
import json
import sys
import time
import weakref
from importlib import import_module

import comfy.model_base
import comfy.model_management
import comfy.supported_models
import psutil
import torch
from comfy.model_patcher import ModelPatcher
from comfy_execution.graph_utils import GraphBuilder

from . import device
from .common import Probe, answer, pack


class DiffusionModel(Probe):
    """Diffusion model with a few thousand random weights, for ComfyUI's KSampler node."""

    RETURN_TYPES = ("MODEL",)

    def run(self):
        sizes = {"image_size": 32, "in_channels": 4, "out_channels": 4, "model_channels": 32, "channel_mult": [1, 2]}
        attention = {"num_heads": 2, "context_dim": 16, "transformer_depth": [1, 1], "transformer_depth_middle": 1}
        attention |= {"transformer_depth_output": [1] * 4, "use_spatial_transformer": True}
        rest = {"num_res_blocks": [1, 1], "use_linear_in_transformer": False, "adm_in_channels": None}
        config = comfy.supported_models.SD15({**sizes, **attention, **rest, "dtype": torch.float32})
        place = comfy.model_management.get_torch_device()
        model = comfy.model_base.BaseModel(config, device=place)
        return (ModelPatcher(model, load_device=place, offload_device=comfy.model_management.unet_offload_device()),)


class Embedding(Probe):
    """Prompt in the format of a diffusion model's text encoder."""

    RETURN_TYPES = ("CONDITIONING",)

    def run(self):
        return ([[torch.zeros(1, 77, 16), {"pooled_output": torch.zeros(1, 16)}]],)


class Pressure(Probe):
    """Node that unloads all other models, as if a model that fills the device was loaded."""

    RETURN_TYPES = ("MODEL",)
    INPUTS = {"model": "MODEL", "run": "INT"}

    def run(self, model, run):
        comfy.model_management.free_memory(2**60, comfy.model_management.get_torch_device())
        return (model,)


class ReadTrace(Probe):
    """Node that outputs a trace as JSON."""

    OUTPUT_NODE = True
    INPUTS = {"trace": "ADT_TRACE"}

    def run(self, trace):
        return {"ui": {"text": [json.dumps(trace.to_json())]}}


_watched: list[tuple[str, weakref.ref]] = []


class Watch(Probe):
    """Node that keeps weak references to its inputs and to their parts."""

    OUTPUT_NODE = True
    INPUTS = {"model": "ADT_MODEL", "clip": "CLIP", "vae": "VAE", "drafter": "ADT_DRAFTER"}
    INPUTS |= {"positive": "CONDITIONING", "samples": "LATENT", "trace": "ADT_TRACE", "images": "IMAGE"}
    OPTIONAL = {"results": "ADT_RESULTS", "sheet": "IMAGE"}

    def run(self, model, drafter, positive, samples, results=None, **others):
        parts = {
            "target": model.target,
            "decoder": model.target.decoder,
            "codec": model.target.codec,
            "patcher": model.patcher,
            "codec patcher": model.codec,
            "network": drafter.drafter,
            "network patcher": drafter.patcher,
            "ids": positive[0][0],
            "prompt": positive[0][1]["adt_tree_prompt"],
            "vectors": samples["samples"],
        }
        if results is not None:
            parts |= {"results": results, "batch": results.images}
        found = {"model": model, "drafter": drafter, **others, **parts}
        _watched[:] = [(name, weakref.ref(value)) for name, value in found.items()]
        return {}


class Loop(Probe):
    """Node that runs another node again with another seed. The page treats the copy as the original node."""

    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {"samples": ("LATENT", {"rawLink": True}), "seed": ("INT", {})},
            "hidden": {"dynprompt": "DYNPROMPT"},
        }

    def run(self, samples, seed, dynprompt):
        original = dynprompt.get_node(samples[0])
        graph = GraphBuilder()
        again = graph.node(original["class_type"], **{**original["inputs"], "seed": seed})
        again.set_override_display_id(samples[0])
        graph.node("PreviewAny", source=again.out(0))
        return {"result": (), "expand": graph.finalize()}


@answer("costs")
def costs():
    """Make the pack use its estimated costs from now on, so that ``auto`` also drafts on a busy machine."""
    import_module(f"{pack()}.adt_core.engine.device.profiles").find_costs = lambda name, images: None


@answer("memory")
def memory():
    """Report the watched objects that still exist, and the classes of the pack that still have instances."""
    gc.collect()
    kinds = {type(thing) for thing in gc.get_objects()}
    ours = {kind.__name__ for kind in kinds if str(getattr(kind, "__module__", "")).startswith(f"{pack()}.")}
    alive = [name for name, reference in _watched if reference() is not None]
    return {"alive": alive, "classes": sorted(ours)}


@answer("bytes")
def resident():
    gc.collect()
    return {"bytes": psutil.Process().memory_info().rss}


@answer("pictures")
def pictures(fail: str):
    """Turn a failure of previews and map images on or off."""
    previews, images = (sys.modules[f"{pack()}.adt_core.run.{name}"] for name in ("previews", "images"))

    def failing(_):
        raise MemoryError("not enough memory for an image")

    previews.to_uint8 = failing if fail == "1" else images.to_uint8


@answer("pace")
def pace(seconds: str):
    """Let samplers pause for some seconds after each round; 0 for no pause."""
    live_map = sys.modules[f"{pack()}.nodes.live_map"].LiveMap
    update = getattr(live_map.update, "__wrapped__", live_map.update)

    @functools.wraps(update)
    def paced(self):
        time.sleep(float(seconds))
        update(self)

    live_map.update = paced if float(seconds) else update


NODE_CLASS_MAPPINGS = {
    "ProbeDiffusionModel": DiffusionModel,
    "ProbeEmbedding": Embedding,
    "ProbeKeep": device.Keep,
    "ProbeLoop": Loop,
    "ProbePressure": Pressure,
    "ProbeReadTrace": ReadTrace,
    "ProbeWatch": Watch,
}
