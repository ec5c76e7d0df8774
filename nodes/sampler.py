"""Sampler node: generates images from a prompt.

The output LATENT holds the codebook vectors of the images. VAE Decode decodes these vectors to pixels.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import comfy.model_management as mm
import torch
from comfy_api.v0_0_2 import io
from torch import Tensor

from ..adt_core import Decoding, Lantern
from ..adt_core.app import DEFAULT_KEEP
from ..adt_core.run import RAISE, Job
from .comfy_runtime import Progress
from .drafting import AUTO, drafting_input
from .latent import empty_mask_note, read_latent
from .live_map import LiveMap, finished
from .sampling import Run, invalid_prompts_input, noise_input, prepare, preset_input, previews, sampling_inputs
from .schema import IMAGE_TOKENS, Tooltips, input_ids, schema
from .sockets import (
    DrafterSocket,
    LanternSocket,
    LoadedDrafter,
    LoadedModel,
    ModelSocket,
    SettingsSocket,
    TraceSocket,
    checked,
)

_SAMPLER_TOOLTIPS = Tooltips(
    inputs={
        "model": "The model that generates the image.",
        "seed": "Sets the noise. The same seed and prompt give the same image.",
        "batch_size": "Number of images of this prompt. Each has its own noise, and the first image is the same for "
        "every batch size.",
        "negative": "Usually left empty. A text here pushes the image away from its content. If empty, guidance "
        "compares the prompt with no text (Emu3: with its published negative prompt).",
        "lantern": "Relaxed acceptance, which changes the image. If not connected, drafting decides.",
        "latent_image": "An image to start from, from VAE Encode with this model's VAE or another ADT-Tree Sampler. "
        "keep_top, or a mask from Set Latent Noise Mask, sets what stays. It must have the model's size; each of its "
        "images is generated batch_size times.",
        "keep_top": "With latent_image: share of its rows to keep, from the top. The rest is generated again. 0 keeps "
        "nothing but the batch. A mask replaces it.",
        "keep_left": "With latent_image: share of the first row below keep_top that is kept as well, from the left. A "
        "mask replaces it.",
        "noise": "ADT-Tree gives the same image on every device. original script gives the image that the model "
        "authors' script generates for this seed, in float32 on the same device. docs/models.md lists the scripts.",
    },
    outputs={
        "LATENT": "The images as codebook vectors. Connect it to VAE Decode with this model's VAE.",
        "trace": "Drafts and accepted tokens of each model pass, for ADT-Tree Map to Image and ADT-Tree Run Stats.",
    },
)
_SEARCHED = [
    *IMAGE_TOKENS,
    "autoregressive sampler",
    "text to image",
    "speculative decoding",
    "generate image",
    "faster",
    "upscale",
    "加速",
    "jacobi",
    "continue image",
    "inpaint",
    "outpaint",
    "variations",
    "文生图",
    "自回归采样",
    "推测解码",
    "续画",
]
"""Search terms for this node."""


class ADTTreeSampler(io.ComfyNode):
    # With this attribute, ComfyUI sends the acceptance map to the browser even if the node's result is cached.
    # Older versions of ComfyUI ignore the attribute.
    HAS_INTERMEDIATE_OUTPUT = True

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            "ADTTreeSampler",
            "ADT-Tree Sampler",
            tooltips=_SAMPLER_TOOLTIPS,
            description="Generates images token by token, with several tokens per model pass. The same seed gives the "
            "same image with every drafter and setting, except with LANTERN.",
            search_aliases=_SEARCHED,
            inputs=[
                ModelSocket.Input("model"),
                io.Conditioning.Input("positive"),
                io.Conditioning.Input("negative", optional=True),
                DrafterSocket.Input("drafter", optional=True),
                SettingsSocket.Input("settings", optional=True),
                *sampling_inputs(),
                io.Int.Input("batch_size", default=1, min=1, max=64),
                LanternSocket.Input("lantern", optional=True),
                io.Latent.Input("latent_image", optional=True),
                _share("keep_top", DEFAULT_KEEP),
                _share("keep_left", 0.0),
                drafting_input(),
                preset_input(),
                noise_input(),
                invalid_prompts_input(),
            ],
            outputs=[io.Latent.Output(display_name="LATENT"), TraceSocket.Output(display_name="trace")],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt, io.Hidden.extra_pnginfo],
        )

    @classmethod
    @checked
    def execute(
        cls,
        model: LoadedModel,
        positive: list,
        batch_size: int,
        negative: list | None = None,
        drafter: LoadedDrafter | None = None,
        settings: dict | None = None,
        lantern: Lantern | None = None,
        latent_image: dict | None = None,
        keep_top: float = DEFAULT_KEEP,
        keep_left: float = 0.0,
        drafting: str = AUTO,
        preset: str | None = None,
        invalid_prompts: str = RAISE,
        **sampling,
    ) -> io.NodeOutput:
        given = sampling | {"drafting": drafting, "preset": preset, "invalid_prompts": invalid_prompts}
        run = prepare(model, positive, negative, drafter=drafter, settings=settings, lantern=lantern, **given)
        kept = None
        indices = list(range(batch_size))
        if latent_image is not None:
            kept, indices = read_latent(latent_image, model, run.pipeline.target, keep_top, keep_left, batch_size)
            run = replace(run, notes=(empty_mask_note(latent_image, kept), *run.notes))
        seed = run.pipeline.recipe.sampling.seed
        jobs = [Job(number, run.prompt, seed, index, text=run.prompt) for number, index in enumerate(indices, 1)]
        decoding, vectors, shown = _decode(run, jobs, kept, cls.hidden, input_ids(cls))
        run.tell_remarks(decoding)
        return io.NodeOutput({"samples": vectors}, decoding.trace, ui=shown)


def _share(name: str, default: float, **more: str) -> io.Input:
    """Return the input for a share, 0 to 1, of `latent_image` that is kept."""
    return io.Float.Input(name, default=default, min=0.0, max=1.0, step=0.01, optional=True, **more)


def _decode(
    run: Run, jobs: Sequence[Job], kept: Tensor | None, hidden: io.Hidden, known: list[str]
) -> tuple[Decoding, Tensor, dict | None]:
    """Decode all images together, with progress and the live map.

    Returns:
        The decoding, the codebook vectors [B, C, H, W] of the images, and the node's `ui` output.
    """
    with closing(run.decode(jobs, len(jobs), kept)) as steps:
        decoding = next(steps).decoding
        live_map = LiveMap(decoding, hidden, known)
        shown = previews(decoding)
        progress = Progress(decoding.total_tokens, hidden.unique_id, shown)
        for step in steps:
            live_map.update()
            progress.update(step.done)  # without a line of text, because the map shows the progress as text
    codec = run.model.target.codec
    with run.loaded():
        vectors = codec.lookup(decoding.grid_codes()).to(mm.intermediate_device(), torch.float32)
        return decoding, vectors, finished([live_map], hidden, shown.picture)
