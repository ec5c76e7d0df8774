"""Two loader nodes: one for a target model with a CLIP and a VAE for ComfyUI's own nodes, and one for a drafter."""

import logging
import math

import comfy.model_management as mm
import torch
from comfy_api.v0_0_2 import io

from ..adt_core import AdtError, load_target
from ..adt_core.messages import message
from ..adt_core.models import FAMILIES, beside_bytes, check_device, image_bytes
from ..adt_core.recipe import AUTO
from ..adt_core.run import choose_dtype
from ..adt_core.settings import BUNDLED
from . import folders
from .clip_and_vae import ImageTokenizer, TextEncoder
from .comfy_runtime import check_cancelled, drop_unused_results, hardware, refusal, tell
from .drafting import open_drafter, own_path
from .missing_models import DOWNLOAD, EXPLAIN, IF_MISSING, about_models, download_missing, offered_downloads
from .schema import IMAGE_TOKENS, Tooltips, schema
from .sockets import DrafterSocket, LoadedModel, ModelSocket, checked
from .weights import load_where_it_fits, manage

_DTYPES = "float32", "bfloat16", "float16"
_WEIGHTS = {"int8 weights": "int8", "fp8 weights": "fp8", "int4 weights": "int4"}


def _dtype(dtype: str, path: str) -> torch.dtype:
    """Return the dtype to compute in for a value of the input `dtype`. Say so if the choice `auto` is float16."""
    machine = hardware()
    weights = _WEIGHTS.get(dtype)
    name = choose_dtype(dtype if dtype in _DTYPES else AUTO, path, weights, machine)
    if name == "float16" and dtype == AUTO:
        tell(message("card.float16"))
    return getattr(torch, name)


def _smaller_weights(dtype: str) -> str:
    """Return the end of an error message that names values of `dtype` that need less memory."""
    if dtype == "int4 weights":
        return message("remedy.smaller_model")
    return message("remedy.int4" if dtype in _WEIGHTS else "remedy.int8")


_MODEL_LOADER_TOOLTIPS = Tooltips(
    inputs={
        "model": "The model to load. 'bundled' is a small model of simple scenes that is included in the pack. A "
        "model with '(download, ...)' after its name is not installed; set if_missing to 'download' to get it.",
        "dtype": "Precision of the weights. auto: float32 for the bundled model and on the CPU, otherwise bfloat16 or "
        "the best that the device supports. int8 and fp8 weights need half the memory of bfloat16, int4 weights need "
        "30 %. All three change the image.",
        "exact": "For half precision, including int8, fp8 and int4 weights. On: drafting gives the exact image of "
        "no drafting. Off: faster, but drafting may give another, equally good image. Changing it changes the "
        "image.",
        "if_missing": "What happens if a published model is not installed. explain: an error names the download. "
        "download: the node downloads all files that the model needs from Hugging Face, and resumes an interrupted "
        "download.",
    },
    outputs={
        "model": "The model, for the ADT-Tree Drafter Loader and the samplers.",
        "CLIP": "The model's text tokenizer, for CLIP Text Encode.",
        "VAE": "The model's image tokenizer, for VAE Decode and VAE Encode.",
    },
)


class ADTTreeModelLoader(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        lists = {"downloads": offered_downloads(), "installed": folders.installed_names(), "about": about_models()}
        return schema(
            "ADTTreeModelLoader",
            "ADT-Tree Model Loader",
            tooltips=_MODEL_LOADER_TOOLTIPS,
            description="Loads a visual autoregressive model, and downloads it first if you choose so. Connect CLIP to "
            "CLIP Text Encode, VAE to VAE Decode and VAE Encode, and model to the ADT-Tree Drafter Loader and Sampler.",
            search_aliases=[
                *(word for family in FAMILIES for word in family.search),
                *(*IMAGE_TOKENS, "autoregressive", "load model", "自回归模型", "加载模型"),
            ],  # fmt: skip
            inputs=[
                io.Combo.Input("model", options=folders.offered(), default=BUNDLED, extra_dict=lists),
                io.Combo.Input("dtype", options=[AUTO, *_DTYPES, *_WEIGHTS], default=AUTO),
                io.Boolean.Input("exact", default=True, optional=True, advanced=True),
                io.Combo.Input("if_missing", options=IF_MISSING, default=EXPLAIN),
            ],
            outputs=[
                ModelSocket.Output(display_name="model"),
                io.Clip.Output(display_name="CLIP"),
                io.Vae.Output(display_name="VAE"),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, model: str = BUNDLED, **_) -> str:
        path = folders.installed(model)
        return folders.fingerprint(path) if path is not None else ""

    @classmethod
    def validate_inputs(cls, model: str | None = None) -> bool | str:
        """Accept a published model that is not installed.

        The page would hide an error that this method returns. It shows the error that `execute` raises.
        """
        is_published = isinstance(model, str) and folders.is_published(model)
        return is_published or refusal(folders.find_model, name=model)

    @classmethod
    @checked
    def execute(cls, model: str, dtype: str, exact: bool = True, if_missing: str = EXPLAIN) -> io.NodeOutput:
        if if_missing == DOWNLOAD:
            download_missing(model, cls.hidden.unique_id)
        try:
            path = folders.find_model(model)
        except AdtError:
            # The line under the node is short and translated; the error has the complete instructions.
            tell(message("model.missing", model=model), logging.ERROR)
            raise
        drop_unused_results()
        weights = _WEIGHTS.get(dtype)
        torch_dtype = _dtype(dtype, path)
        check_device(weights, mm.get_torch_device(), torch_dtype)
        how = {"dtype": torch_dtype, "weights": weights, "exact": exact, "check": check_cancelled}
        how["device_memory"] = math.inf  # ComfyUI moves the weights
        target = load_where_it_fits(lambda device: load_target(path, device=device, **how))
        decoder = manage(target.decoder, target.name, _smaller_weights(dtype), target.decoder)
        decoder.tell_expected(image_bytes(target), beside_bytes(target))
        codec = manage(target.codec, message("title.codec", model=target.name), message("remedy.smaller_image"))
        text = None
        if target.text_encoder is not None:
            title = message("title.text_encoder", model=target.name)
            text = manage(target.text_encoder, title, message("remedy.smaller_model"))
        loaded = LoadedModel(target, path, decoder, codec, text)
        return io.NodeOutput(loaded, TextEncoder(loaded), ImageTokenizer(codec, target.downsample))


_DRAFTER_LOADER_TOOLTIPS = Tooltips(
    inputs={
        "model": "The model to draft for.",
        "drafter": "auto picks the best installed drafter for the model. jacobi works with every model and needs no "
        "files. Other entries are EAGLE drafters in models/ar_image_drafters, or in folders of "
        "extra_model_paths.yaml.",
        "window": "Also draft from the Jacobi window: the network refreshes its oldest drafts. Method auto decides "
        "this automatically.",
    },
    outputs={"drafter": "The drafter, for the ADT-Tree Sampler."},
)


class ADTTreeDrafterLoader(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            "ADTTreeDrafterLoader",
            "ADT-Tree Drafter Loader",
            tooltips=_DRAFTER_LOADER_TOOLTIPS,
            description="Loads a drafter, which proposes the next image tokens: a small network, or the model's own "
            "passes without a network. The model verifies every proposal, so a drafter changes the speed and not the "
            "image, except with LANTERN.",
            search_aliases=["eagle", "draft model", "speculative decoding", "草稿模型", "推测解码"],
            inputs=[
                ModelSocket.Input("model"),
                io.Combo.Input("drafter", options=list(folders.drafters()), default=folders.AUTO),
                io.Boolean.Input("window", default=False, optional=True),
            ],
            outputs=[DrafterSocket.Output(display_name="drafter")],
        )

    @classmethod
    def fingerprint_inputs(cls, drafter: str = folders.AUTO, **_) -> str:
        return folders.fingerprint(folders.drafters().get(drafter, BUNDLED))

    @classmethod
    @checked
    def execute(cls, model: LoadedModel, drafter: str, window: bool = False) -> io.NodeOutput:
        path = folders.resolve(folders.drafters(), drafter, "drafter", folders.DRAFTERS_KEY)
        return io.NodeOutput(open_drafter(model, own_path(model) if path == folders.AUTO else path, window))
