"""The sampler node: text in, codebook vectors out, one bar tick per decided token."""

from contextlib import closing

import comfy.model_management as mm
import torch
from comfy_api.v0_0_2 import io
from PIL import Image

from .. import adt_core
from ..adt_core.errors import AdtError
from .live_map import LiveMap
from .loaders import CATEGORY
from .runtime import Progress, check_cancelled, load, refusal
from .sockets import DrafterSocket, LanternSocket, LoadedDrafter, LoadedModel, ModelSocket, SettingsSocket, TraceSocket
from .stock import read_prompt, to_image


class ADTTreeSampler(io.ComfyNode):
    HAS_INTERMEDIATE_OUTPUT = True  # the map is shown again with a result from ComfyUI's cache; older versions know no such thing

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ADTTreeSampler",
            display_name="ADT-Tree Sampler",
            category=CATEGORY,
            description="Makes images token by token, several tokens per pass of the model. The seed alone decides the noise, so "
            "the same seed gives the same image with any drafter and any settings, only sooner or later; LANTERN alone changes it.",
            search_aliases=["autoregressive sampler", "speculative decoding", "generate image"],
            inputs=[
                ModelSocket.Input("model", tooltip="The model that makes the image."),
                io.Conditioning.Input("positive", tooltip="What to draw: a CLIP Text Encode node fed by this model's CLIP."),
                io.Conditioning.Input(
                    "negative",
                    optional=True,
                    tooltip="Usually left empty: guidance then compares the prompt with a row that has no text. A text here takes "
                    "the place of that row, so that the image is pushed away from what the text says.",
                ),
                DrafterSocket.Input(
                    "drafter",
                    optional=True,
                    tooltip="What guesses ahead. Without one the settings' method has to be 'autoregressive'.",
                ),
                SettingsSocket.Input("settings", optional=True, tooltip="How to draft; without it, ADT-Tree with its defaults."),
                io.Int.Input(
                    "seed",
                    default=0,
                    min=0,
                    max=2**64 - 1,
                    control_after_generate=True,
                    tooltip="Decides the noise, and with the prompt the image.",
                ),
                io.Float.Input(
                    "guidance",
                    default=3.0,
                    min=0.0,
                    max=100.0,
                    step=0.1,
                    tooltip="How strongly the image follows the prompt (classifier-free guidance). 1 switches guidance off.",
                ),
                io.Float.Input(
                    "temperature",
                    default=1.0,
                    min=0.0,
                    max=10.0,
                    step=0.05,
                    tooltip="Variety: 1 samples as the model was trained to, less plays safe, 0 always takes the likeliest token.",
                ),
                io.Int.Input("top_k", default=0, min=0, max=65536, tooltip="Keep only the k likeliest tokens; 0 keeps all."),
                io.Float.Input(
                    "top_p",
                    default=1.0,
                    min=0.01,
                    max=1.0,
                    step=0.01,
                    tooltip="Keep only the likeliest tokens that together have this probability; 1 keeps all.",
                ),
                io.Int.Input(
                    "batch_size",
                    default=1,
                    min=1,
                    max=64,
                    tooltip="Images of this prompt. Each has its own noise, and the first is the same whatever the number.",
                ),
                LanternSocket.Input("lantern", optional=True, tooltip="Relaxed acceptance, which changes the image; without it, exact."),
            ],
            outputs=[
                io.Latent.Output(display_name="LATENT", tooltip="The images as codebook vectors, for VAE Decode with this model's VAE."),
                TraceSocket.Output(display_name="trace", tooltip="What was drafted and accepted in each round."),
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.extra_pnginfo],
        )

    @classmethod
    def validate_inputs(cls, guidance: float = None, temperature: float = None, top_p: float = None) -> bool | str:
        return refusal(adt_core.Sampling, guidance=guidance, temperature=temperature, top_p=top_p)

    @classmethod
    def execute(
        cls,
        model: LoadedModel,
        positive: list,
        seed: int,
        guidance: float,
        temperature: float,
        top_k: int,
        top_p: float,
        batch_size: int,
        negative: list | None = None,
        drafter: LoadedDrafter | None = None,
        settings: "adt_core.Drafting | None" = None,
        lantern: "adt_core.Lantern | None" = None,
    ) -> io.NodeOutput:
        drafting = settings or (drafter.drafter.default if drafter is not None else adt_core.Drafting())
        _check_drafter(drafting, drafter, model)
        row = model.target.encode_prompt(read_prompt(positive, "positive").text)
        opposite = read_prompt(negative, "negative").text if negative is not None else ""
        decoding = adt_core.Decoding(
            model.target,
            [row] * batch_size,
            negatives=[model.target.encode_prompt(opposite)] * batch_size if opposite.strip() else None,
            sampling=adt_core.Sampling(seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, guidance=guidance),
            drafting=drafting,
            drafter=drafter.drafter if drafter is not None else None,
            lantern=lantern,
            image_indices=list(range(batch_size)),
            check=check_cancelled,
        )
        load(
            [model.patcher, model.codec, *([drafter.patcher] if drafter is not None and drafter.patcher is not None else [])],
            memory_required=decoding.memory_required(),
        )
        live_map = LiveMap(decoding.trace, model.target.name, cls.hidden)
        progress = Progress(decoding.total_tokens, cls.hidden.unique_id, lambda: _preview(model.target, decoding))
        _decode(decoding, progress, live_map)
        vectors = model.target.codec.lookup(decoding.grid_codes())
        ui = live_map.ui(lambda image: progress.last if image == 0 and progress.last else _preview(model.target, decoding, image))
        return io.NodeOutput({"samples": vectors.to(mm.intermediate_device(), torch.float32)}, decoding.trace, ui=ui)


def _check_drafter(drafting: "adt_core.Drafting", drafter: LoadedDrafter | None, model: LoadedModel) -> None:
    if drafter is None and drafting.method != "autoregressive":
        raise AdtError(
            f"drafter: the method '{drafting.method}' needs one; connect an ADT-Tree Drafter Loader, or an ADT-Tree Settings "
            "node with the method 'autoregressive'."
        )
    if drafter is not None and drafter.target is not model.target:
        raise AdtError("drafter: it was loaded for another model; connect the same ADT-Tree Model Loader to the Drafter Loader and the Sampler.")


def _decode(decoding: "adt_core.Decoding", progress: Progress, live_map: LiveMap) -> None:
    with closing(iter(decoding)) as rounds:  # caches go now, and not when a traceback is forgotten
        for count, _ in enumerate(rounds, start=1):
            live_map.update()
            done, total = decoding.done_tokens, decoding.total_tokens
            progress.update(done, f"{done} of {total} tokens in {count} pass{'' if count == 1 else 'es'}")
    report = decoding.trace.report()
    progress.say(
        f"{report['tokens']} tokens in {report['seconds']:.1f} s: {report['tokens_per_second']:.0f} a second, {report['tau']:.2f} per pass of the model"
    )


def _preview(target: "adt_core.Target", decoding: "adt_core.Decoding", image: int = 0) -> Image.Image:
    """An image as far as it is decided, what is missing in the mean colour of the rest."""
    codes = decoding.codes[image].reshape(target.grid)
    missing = codes < 0
    blank = target.codec.nearest(target.codec.codebook.mean(0).reshape(1, -1, 1, 1)).item()
    pixels = to_image(target.codec.decode(codes.masked_fill(missing, blank)[None], check=check_cancelled))[0].cpu()
    hidden = torch.nn.functional.interpolate(missing[None, None].float(), size=pixels.shape[:2])[0, 0] > 0
    if not hidden.all():
        pixels[hidden] = pixels[~hidden].mean(0)
    return Image.fromarray((pixels * 255).to(torch.uint8).numpy())
