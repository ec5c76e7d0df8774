"""Nodes of another pack for the tests: a foreign model and prompt, a reader of traces, and reports about memory."""

import ctypes
import functools
import gc
import json
import sys
import time
import weakref

import comfy.model_base
import comfy.model_management
import comfy.supported_models
import psutil
import torch
from aiohttp import web
from comfy.model_patcher import ModelPatcher
from comfy_execution.graph_utils import GraphBuilder
from server import PromptServer

from . import costs, device  # noqa: F401
from .costs import pack


class DiffusionModel:
    """Diffusion model with a few thousand random weights, for ComfyUI's KSampler node."""

    CATEGORY = "probe"
    FUNCTION = "make"
    RETURN_TYPES = ("MODEL",)

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def make(self):
        shape = {
            "in_channels": 4,
            "out_channels": 4,
            "model_channels": 32,
            "channel_mult": [1, 2],
            "num_res_blocks": [1, 1],
        }
        attention = {
            "num_heads": 2,
            "context_dim": 16,
            "transformer_depth": [1, 1],
            "transformer_depth_output": [1] * 4,
        }
        rest = {
            "image_size": 32,
            "transformer_depth_middle": 1,
            "use_spatial_transformer": True,
            "dtype": torch.float32,
        }
        config = comfy.supported_models.SD15(
            {**shape, **attention, **rest, "use_linear_in_transformer": False, "adm_in_channels": None}
        )
        place = comfy.model_management.get_torch_device()
        model = comfy.model_base.BaseModel(config, device=place)
        return (ModelPatcher(model, load_device=place, offload_device=comfy.model_management.unet_offload_device()),)


class Embedding:
    """Prompt in the format of a diffusion model's text encoder."""

    CATEGORY = "probe"
    FUNCTION = "make"
    RETURN_TYPES = ("CONDITIONING",)

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def make(self):
        return ([[torch.zeros(1, 77, 16), {"pooled_output": torch.zeros(1, 16)}]],)


class Pressure:
    """Node that unloads all other models, as if a model that fills the device was loaded."""

    CATEGORY = "probe"
    FUNCTION = "press"
    RETURN_TYPES = ("MODEL",)

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "run": ("INT",)}}

    def press(self, model, run):
        comfy.model_management.free_memory(2**60, comfy.model_management.get_torch_device())
        return (model,)


class ReadTrace:
    CATEGORY = "probe"
    FUNCTION = "read"
    RETURN_TYPES = ()
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"trace": ("ADT_TRACE",)}}

    def read(self, trace):
        return {"ui": {"text": [json.dumps(trace.to_json())]}}


_watched: list[tuple[str, weakref.ref]] = []


class Watch:
    """Node that keeps weak references to its inputs and to their parts."""

    CATEGORY = "probe"
    FUNCTION = "watch"
    RETURN_TYPES = ()
    OUTPUT_NODE = True
    SOCKETS = {
        "model": "ADT_MODEL",
        "clip": "CLIP",
        "vae": "VAE",
        "drafter": "ADT_DRAFTER",
        "positive": "CONDITIONING",
        "samples": "LATENT",
        "trace": "ADT_TRACE",
        "images": "IMAGE",
        "results": "ADT_RESULTS",
        "sheet": "IMAGE",
    }

    @classmethod
    def INPUT_TYPES(cls):
        optional = "results", "sheet"
        sockets = {name: (kind,) for name, kind in cls.SOCKETS.items()}
        return {
            "required": {name: kind for name, kind in sockets.items() if name not in optional},
            "optional": {name: sockets[name] for name in optional},
        }

    def watch(self, model, drafter, positive, samples, results=None, **others):
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


class Loop:
    """Node that runs another node again with another seed. The page treats the copy as the original node."""

    CATEGORY = "probe"
    FUNCTION = "loop"
    RETURN_TYPES = ()
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {"samples": ("LATENT", {"rawLink": True}), "seed": ("INT", {})},
            "hidden": {"dynprompt": "DYNPROMPT"},
        }

    def loop(self, samples, seed, dynprompt):
        original = dynprompt.get_node(samples[0])
        graph = GraphBuilder()
        again = graph.node(original["class_type"], **{**original["inputs"], "seed": seed})
        again.set_override_display_id(samples[0])
        graph.node("PreviewAny", source=again.out(0))
        return {"result": (), "expand": graph.finalize()}


@PromptServer.instance.routes.get("/probe/memory")
async def memory(request):
    """Report the watched objects that still exist, and the classes of the pack that still have instances."""
    gc.collect()
    kinds = {type(thing) for thing in gc.get_objects()}
    prefix = f"{pack()}."
    ours = {kind.__name__ for kind in kinds if str(getattr(kind, "__module__", "")).startswith(prefix)}
    alive = [name for name, reference in _watched if reference() is not None]
    return web.json_response({"alive": alive, "classes": sorted(ours)})


@PromptServer.instance.routes.get("/probe/bytes")
async def resident(request):
    gc.collect()
    return web.json_response({"bytes": psutil.Process().memory_info().rss})


@PromptServer.instance.routes.get("/probe/trim")
async def trim(request):
    """Return freed memory to the system. Without this, the resident memory stays at its maximum."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return web.json_response({})


@PromptServer.instance.routes.get("/probe/pictures")
async def pictures(request):
    """Turn a failure of previews and map images on or off."""
    previews, images = (sys.modules[f"{pack()}.adt_core.run.{name}"] for name in ("previews", "images"))

    def fail(_):
        raise MemoryError("not enough memory for an image")

    previews.to_uint8 = fail if request.query["fail"] == "1" else images.to_uint8
    return web.json_response({})


@PromptServer.instance.routes.get("/probe/pace")
async def pace(request):
    """Let samplers pause for some seconds after each round; 0 for no pause."""
    live_map = sys.modules[f"{pack()}.nodes.live_map"].LiveMap
    update = getattr(live_map.update, "__wrapped__", live_map.update)
    seconds = float(request.query["seconds"])

    @functools.wraps(update)
    def paced(self):
        time.sleep(seconds)
        update(self)

    live_map.update = paced if seconds else update
    return web.json_response({})


NODE_CLASS_MAPPINGS = {
    "ProbeDiffusionModel": DiffusionModel,
    "ProbeEmbedding": Embedding,
    "ProbeLoop": Loop,
    "ProbePressure": Pressure,
    "ProbeReadTrace": ReadTrace,
    "ProbeWatch": Watch,
    **device.NODES,
}
