"""Nodes of another pack, for the tests: what a stranger's model, prompt and trace reader look like."""

import json

import comfy.model_base
import comfy.model_management
import comfy.supported_models
import torch
from comfy.model_patcher import ModelPatcher


class DiffusionModel:
    """A diffusion model of a few thousand random weights, for the stock KSampler."""

    CATEGORY, FUNCTION, RETURN_TYPES = "probe", "make", ("MODEL",)

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def make(self):
        shape = {"in_channels": 4, "out_channels": 4, "model_channels": 32, "channel_mult": [1, 2], "num_res_blocks": [1, 1]}
        attention = {"num_heads": 2, "context_dim": 16, "transformer_depth": [1, 1], "transformer_depth_output": [1] * 4}
        rest = {"image_size": 32, "transformer_depth_middle": 1, "use_spatial_transformer": True, "dtype": torch.float32}
        config = comfy.supported_models.SD15({**shape, **attention, **rest, "use_linear_in_transformer": False, "adm_in_channels": None})
        device = comfy.model_management.get_torch_device()
        model = comfy.model_base.BaseModel(config, device=device)
        return (ModelPatcher(model, load_device=device, offload_device=comfy.model_management.unet_offload_device()),)


class Embedding:
    """A prompt as a diffusion model's text encoder makes it."""

    CATEGORY, FUNCTION, RETURN_TYPES = "probe", "make", ("CONDITIONING",)

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def make(self):
        return ([[torch.zeros(1, 77, 16), {"pooled_output": torch.zeros(1, 16)}]],)


class ReadTrace:
    """Shows a trace as JSON."""

    CATEGORY, FUNCTION, RETURN_TYPES, OUTPUT_NODE = "probe", "read", (), True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"trace": ("ADT_TRACE",)}}

    def read(self, trace):
        return {"ui": {"text": [json.dumps(trace.to_json())]}}


NODE_CLASS_MAPPINGS = {"ProbeDiffusionModel": DiffusionModel, "ProbeEmbedding": Embedding, "ProbeReadTrace": ReadTrace}
