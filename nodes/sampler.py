"""The sampler node: text in, codebook vectors out."""

from contextlib import closing

import comfy.model_management as mm
import torch
from comfy_api.v0_0_2 import io

from ..adt_core.app.continuation import KEEP, kept_tokens
from ..adt_core.app.jobs import rounds
from ..adt_core.engine.decoding import Decoding
from ..adt_core.rules.sampling import Sampling
from ..adt_core.rules.verify import Lantern
from .latent import read_latent
from .live_map import LiveMap
from .runtime import Progress, check_cancelled, refusal
from .sampling import choose_drafting, loaded_for, preview, read_rows, sampling_inputs
from .saved_map import attach
from .schema import schema
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


class ADTTreeSampler(io.ComfyNode):
    HAS_INTERMEDIATE_OUTPUT = True  # results from ComfyUI's cache bring their map along; older versions ignore this

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            "ADTTreeSampler",
            "ADT-Tree Sampler",
            description="Makes images token by token, several tokens per pass of the model. The seed alone decides the "
            "noise, so the same seed gives the same image with any drafter and any settings, only sooner or later; "
            "LANTERN alone changes it.",
            search_aliases=["autoregressive sampler", "speculative decoding", "generate image"],
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
                io.Float.Input("keep", default=KEEP, min=0.0, max=1.0, step=0.01, optional=True),
                io.Float.Input("keep_left", default=0.0, min=0.0, max=1.0, step=0.01, optional=True, advanced=True),
            ],
            outputs=[io.Latent.Output(display_name="LATENT"), TraceSocket.Output(display_name="trace")],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt, io.Hidden.extra_pnginfo],
        )

    @classmethod
    def validate_inputs(
        cls,
        guidance: float | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        keep: float | None = None,
        keep_left: float | None = None,
    ) -> bool | str:
        return refusal(_check, guidance=guidance, temperature=temperature, top_p=top_p, keep=keep, keep_left=keep_left)

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
        keep: float = KEEP,
        keep_left: float = 0.0,
        **sampling,
    ) -> io.NodeOutput:
        drafting = choose_drafting(settings, drafter, model)
        row, opposite = read_rows(model, positive, negative)
        prefix, indices = None, list(range(batch_size))
        if latent_image is not None:
            prefix, indices = read_latent(latent_image, model, keep, keep_left, batch_size)
        decoding = Decoding(
            model.target,
            [row] * len(indices),
            negatives=[opposite] * len(indices) if opposite else None,
            sampling=Sampling(**sampling),
            drafting=drafting,
            drafter=drafter.drafter if drafter is not None else None,
            lantern=lantern,
            image_indices=indices,
            prefix=prefix,
            check=check_cancelled,
        )
        with loaded_for([decoding], model, drafter):
            whole = _decode(decoding, model, cls.hidden)
            vectors = model.target.codec.lookup(decoding.grid_codes()).to(mm.intermediate_device(), torch.float32)
        attach(cls.hidden, [whole])
        return io.NodeOutput({"samples": vectors}, decoding.trace, ui={"adt_tree_map": [whole]})


def _check(keep: float = 0.0, keep_left: float = 0.0, **sampling) -> None:
    """Raises AdtError for a value that is out of bounds."""
    Sampling(**sampling)
    kept_tokens((1, 1), keep, keep_left)


def _decode(decoding: Decoding, model: LoadedModel, hidden: io.Hidden) -> dict:
    """Decode to the end, with progress and the live map. Returns the whole map."""
    live_map = LiveMap(decoding.trace, model.target.name, hidden)
    progress = Progress(decoding.total_tokens, hidden.unique_id, lambda: preview(model.target, decoding))
    with closing(rounds(decoding)) as running:
        for _ in running:
            live_map.update()
            progress.update(decoding.done_tokens)  # without a line of text: the map says as much
    last = progress.last
    return live_map.whole(lambda image: last if image == 0 and last else preview(model.target, decoding, image))
