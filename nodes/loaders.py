"""The loader nodes: a target model with the CLIP and VAE that stock nodes can use, and a drafter for it."""

import comfy.model_management as mm
import torch
from comfy_api.v0_0_2 import io

from .. import adt_core
from ..adt_core.drafters.merged import MergedDrafter
from . import folders
from .runtime import check_cancelled, manage
from .sockets import DrafterSocket, LoadedDrafter, LoadedModel, ModelSocket
from .stock import ImageTokenizer, TextEncoder

CATEGORY = "ADT-Tree"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_WEIGHTS = {"int8 weights": "int8", "fp8 weights": "fp8"}


def _auto_dtype(name: str) -> torch.dtype:
    """float32 for the small bundled model and on the CPU; otherwise the half precision that the device is good at."""
    device = mm.get_torch_device()
    if name != folders.BUNDLED and device.type != "cpu":
        if mm.should_use_bf16(device):
            return torch.bfloat16
        if mm.should_use_fp16(device):
            return torch.float16
    return torch.float32


class ADTTreeModelLoader(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ADTTreeModelLoader",
            display_name="ADT-Tree Model Loader",
            category=CATEGORY,
            description="Loads a visual autoregressive model. Its CLIP goes into CLIP Text Encode, its VAE into VAE Decode "
            "and VAE Encode, and the model itself into the ADT-Tree Drafter Loader and Sampler.",
            search_aliases=[
                "anole",
                "chameleon",
                "lumina",
                "llamagen",
                "janus",
                "emu3",
                "autoregressive",
                "load model",
            ],
            inputs=[
                io.Combo.Input(
                    "model",
                    options=list(folders.models()),
                    default=folders.BUNDLED,
                    tooltip="'bundled' is a small model of simple scenes that comes with the pack. Others are checkpoints of Anole, Lumina-mGPT, LlamaGen, "
                    "Janus-Pro or Emu3-Gen as they were downloaded, in models/ar_image, models/LLM or models/diffusers, or in what "
                    "extra_model_paths.yaml adds to ar_image_models.",
                ),
                io.Combo.Input(
                    "dtype",
                    options=["auto", *_DTYPES, *_WEIGHTS],
                    default="auto",
                    tooltip="Precision of the weights. With float32 the image does not change when drafting is switched on or "
                    "off; in half precision rounding can tip a close decision. auto: float32 for the bundled model and on "
                    "the CPU, otherwise bfloat16 or float16. int8 and fp8 weights take half the memory of bfloat16 and compute as auto does.",
                ),
            ],
            outputs=[
                ModelSocket.Output(
                    display_name="model", tooltip="The model, for the ADT-Tree Drafter Loader and Sampler."
                ),
                io.Clip.Output(
                    display_name="CLIP", tooltip="The model's tokenizer, for the stock CLIP Text Encode node."
                ),
                io.Vae.Output(
                    display_name="VAE",
                    tooltip="The model's image tokenizer, for the stock VAE Decode and VAE Encode nodes.",
                ),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, model: str, dtype: str) -> str:
        return folders.fingerprint(folders.models().get(model, folders.BUNDLED))

    @classmethod
    def execute(cls, model: str, dtype: str) -> io.NodeOutput:
        path = folders.resolve(folders.models(), model, "model", folders.MODELS)
        target = adt_core.load_target(
            path,
            device=mm.unet_offload_device(),
            dtype=_DTYPES[dtype] if dtype in _DTYPES else _auto_dtype(model),
            check=check_cancelled,
            weights=_WEIGHTS.get(dtype),
        )
        codec = manage(target.codec)
        loaded = LoadedModel(
            target,
            manage(target.decoder),
            codec,
            manage(target.text_encoder) if target.text_encoder is not None else None,
        )
        return io.NodeOutput(loaded, TextEncoder(loaded), ImageTokenizer(codec, target.downsample))


class ADTTreeDrafterLoader(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ADTTreeDrafterLoader",
            display_name="ADT-Tree Drafter Loader",
            category=CATEGORY,
            description="Loads what guesses the next image tokens: a small network, or nothing but the model's own passes. The model checks every guess, so a "
            "drafter changes the speed and not the image.",
            search_aliases=["eagle", "draft model", "speculative decoding"],
            inputs=[
                ModelSocket.Input("model", tooltip="The model that the drafter was trained for."),
                io.Combo.Input(
                    "drafter",
                    options=list(folders.drafters()),
                    default=folders.BUNDLED,
                    tooltip="'bundled' belongs to the bundled model. 'jacobi' needs no files and suits every model. Others are "
                    "folders in the EAGLE layout (config.json and the weights) in models/ar_image_drafters, or in what "
                    "extra_model_paths.yaml adds to that key.",
                ),
                io.Boolean.Input(
                    "window",
                    default=False,
                    optional=True,
                    tooltip="Draft from the Jacobi window as well: the network makes its stalest guesses anew. The method 'auto' does so by "
                    "itself, or leaves the network out where that is faster.",
                ),
            ],
            outputs=[DrafterSocket.Output(display_name="drafter", tooltip="The drafter, for the ADT-Tree Sampler.")],
        )

    @classmethod
    def fingerprint_inputs(cls, drafter: str, model: LoadedModel | None = None, window: bool = False) -> str:
        return folders.fingerprint(folders.drafters().get(drafter, folders.BUNDLED))

    @classmethod
    def execute(cls, model: LoadedModel, drafter: str, window: bool = False) -> io.NodeOutput:
        path = folders.resolve(folders.drafters(), drafter, "drafter", folders.DRAFTERS)
        found = adt_core.load_drafter(path, model.target, check_cancelled, mm.unet_offload_device())
        patcher = manage(found) if isinstance(found, adt_core.EagleDrafter) else None
        if window and patcher is not None:
            found = MergedDrafter(found)
        return io.NodeOutput(LoadedDrafter(found, patcher, model.target, drafter))
