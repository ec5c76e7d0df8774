"""Simulation of a second device for weights, on a machine that has only one device.

On a CPU, ComfyUI loads and unloads models without moving anything. These nodes move the weights as if to a GPU and
back. Parameters get new storage. It is created in inference mode when a node loads the weights, and outside of it when
the user unloads them. While weights are unloaded, their values are stored elsewhere and replaced by NaN. If a node
forgets to load the weights, its results are therefore wrong.
"""

import math

import torch
from aiohttp import web
from comfy.model_patcher import ModelPatcher
from server import PromptServer

made = ModelPatcher.__init__
moves = {"loaded": 0, "unloaded": 0}
load = ModelPatcher.load
unload = ModelPatcher.unpatch_model


def is_ours(model: torch.nn.Module) -> bool:
    return type(model).__name__ == "ADTTreeWeights"


def tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def leave(model: torch.nn.Module) -> None:
    """Replace the values of all weights by NaN, and store the values elsewhere."""
    if getattr(model, "elsewhere", None) is None:
        model.elsewhere = [tensor.detach().clone() for tensor in tensors(model)]
        for tensor in tensors(model):
            tensor.data = torch.full_like(tensor, math.nan if tensor.is_floating_point() else 0)


def arrive(model: torch.nn.Module) -> None:
    if model.elsewhere is not None:
        for tensor, numbers in zip(tensors(model), model.elsewhere):
            tensor.data = numbers.clone()
        model.elsewhere = None


def init(self, model, *args, **kwargs):
    made(self, model, *args, **kwargs)
    if is_ours(model):
        leave(model)


def loading(self, *args, **kwargs):
    load(self, *args, **kwargs)
    if is_ours(self.model):
        arrive(self.model)
        moves["loaded"] += 1


def unloading(self, device_to=None, unpatch_weights=True):
    unload(self, device_to, unpatch_weights)
    if is_ours(self.model) and unpatch_weights:
        leave(self.model)
        moves["unloaded"] += 1


ModelPatcher.__init__ = init
ModelPatcher.load = loading
ModelPatcher.unpatch_model = unloading


@PromptServer.instance.routes.get("/moving/moves")
async def count(request):
    return web.json_response(moves)


NODE_CLASS_MAPPINGS: dict[str, type] = {}
