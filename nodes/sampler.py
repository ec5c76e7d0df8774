"""The sampler node: text in, codebook vectors out, one bar tick per decided token."""

from contextlib import closing

import comfy.model_management as mm
import torch
from comfy_api.v0_0_2 import io
from PIL import Image

from .. import adt_core
from ..adt_core.app.continuation import KEEP, kept_tokens
from .latent import read_latent
from .live_map import LiveMap
from .loaders import CATEGORY
from .runtime import Progress, check_cancelled, load, refusal
from .sampling import choose_drafting, patchers, sampling_inputs
from .sockets import DrafterSocket, LanternSocket, LoadedDrafter, LoadedModel, ModelSocket, SettingsSocket, TraceSocket
from .stock import encode, read_prompt, to_image, to_picture


class ADTTreeSampler(io.ComfyNode):
    HAS_INTERMEDIATE_OUTPUT = (
        True  # the map is shown again with a result from ComfyUI's cache; older versions know no such thing
    )

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
                io.Conditioning.Input(
                    "positive", tooltip="What to draw: a CLIP Text Encode node fed by this model's CLIP."
                ),
                io.Conditioning.Input(
                    "negative",
                    optional=True,
                    tooltip="Usually left empty: guidance then compares the prompt with a row that has no text (Emu3: with its published negative "
                    "prompt). A text here takes the place of that row, so that the image is pushed away from what the text says.",
                ),
                DrafterSocket.Input(
                    "drafter",
                    optional=True,
                    tooltip="What guesses ahead. Without one the settings' method has to be 'autoregressive'.",
                ),
                SettingsSocket.Input(
                    "settings", optional=True, tooltip="How to draft; without it, ADT-Tree with its defaults."
                ),
                *sampling_inputs("Decides the noise, and with the prompt the image."),
                io.Int.Input(
                    "batch_size",
                    default=1,
                    min=1,
                    max=64,
                    tooltip="Images of this prompt. Each has its own noise, and the first is the same whatever the number.",
                ),
                LanternSocket.Input(
                    "lantern", optional=True, tooltip="Relaxed acceptance, which changes the image; without it, exact."
                ),
                io.Latent.Input(
                    "latent_image",
                    optional=True,
                    tooltip="What to start from: a VAE Encode node fed by this model's VAE, or another ADT-Tree Sampler. keep says how much of it "
                    "stays. The size is always the model's own. The LATENT decides the batch, and batch_size how many images are made of each of its images.",
                ),
                io.Float.Input(
                    "keep",
                    default=KEEP,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    optional=True,
                    tooltip="With latent_image: the share of its rows, from the top, that stays; the rest is drawn anew. 0 keeps nothing but the batch.",
                ),
                io.Float.Input(
                    "keep_left",
                    default=0.0,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    optional=True,
                    tooltip="With latent_image: the share of the first row below those, from the left, that stays too.",
                    advanced=True,
                ),
            ],
            outputs=[
                io.Latent.Output(
                    display_name="LATENT",
                    tooltip="The images as codebook vectors, for VAE Decode with this model's VAE.",
                ),
                TraceSocket.Output(display_name="trace", tooltip="What was drafted and accepted in each round."),
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.extra_pnginfo],
        )

    @classmethod
    def validate_inputs(
        cls,
        guidance: float = None,
        temperature: float = None,
        top_p: float = None,
        keep: float = None,
        keep_left: float = None,
    ) -> bool | str:
        return refusal(_check, guidance=guidance, temperature=temperature, top_p=top_p, keep=keep, keep_left=keep_left)

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
        latent_image: dict | None = None,
        keep: float = KEEP,
        keep_left: float = 0.0,
    ) -> io.NodeOutput:
        drafting = choose_drafting(settings, drafter, model)
        row, opposite = read_rows(model, positive, negative)
        prefix, indices = None, list(range(batch_size))
        if latent_image is not None:
            prefix, indices = read_latent(latent_image, model, keep, keep_left, batch_size)
        decoding = adt_core.Decoding(
            model.target,
            [row] * len(indices),
            negatives=[opposite] * len(indices) if opposite else None,
            sampling=adt_core.Sampling(seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, guidance=guidance),
            drafting=drafting,
            drafter=drafter.drafter if drafter is not None else None,
            lantern=lantern,
            image_indices=indices,
            prefix=prefix,
            check=check_cancelled,
        )
        load(patchers(model, drafter), memory_required=decoding.memory_required())
        live_map = LiveMap(decoding.trace, model.target.name, cls.hidden)
        progress = Progress(decoding.total_tokens, cls.hidden.unique_id, lambda: preview(model.target, decoding))
        _decode(decoding, progress, live_map)
        vectors = model.target.codec.lookup(decoding.grid_codes())
        whole = live_map.whole(
            lambda image: progress.last if image == 0 and progress.last else preview(model.target, decoding, image)
        )
        return io.NodeOutput(
            {"samples": vectors.to(mm.intermediate_device(), torch.float32)},
            decoding.trace,
            ui={"adt_tree_map": [whole]},
        )


def _check(keep: float = 0.0, keep_left: float = 0.0, **sampling) -> None:
    adt_core.Sampling(**sampling)
    kept_tokens((1, 1), keep, keep_left)


def read_rows(
    model: LoadedModel, positive: list, negative: list | None
) -> "tuple[adt_core.Prompt, adt_core.Prompt | None]":
    """The prompt's row, and the negative prompt's if there is one."""
    row = encode(model, read_prompt(positive, "positive").text)
    opposite = read_prompt(negative, "negative").text if negative is not None else ""
    return row, encode(model, opposite) if opposite.strip() else None


def _decode(decoding: "adt_core.Decoding", progress: Progress, live_map: LiveMap) -> None:
    with closing(iter(decoding)) as rounds:  # caches go now, and not when a traceback is forgotten
        for _ in rounds:
            live_map.update()
            progress.update(decoding.done_tokens)  # in words, the map says it
    report = decoding.trace.report()
    progress.say(
        f"{report['tokens']} tokens in {report['seconds']:.1f} s: {report['tokens_per_second']:.0f} a second, {report['tau']:.2f} per pass of the model"
    )


def preview(target: "adt_core.Target", decoding: "adt_core.Decoding", image: int = 0) -> Image.Image:
    """An image as far as it is decided, what is missing in the mean colour of the rest."""
    codes = decoding.grid_codes()[image]
    missing = codes < 0
    blank = target.codec.nearest(target.codec.codebook.mean(0).reshape(1, -1, 1, 1)).item()
    pixels = to_image(target.codec.decode(codes.masked_fill(missing, blank)[None], check=check_cancelled))[0].cpu()
    hidden = torch.nn.functional.interpolate(missing[None, None].float(), size=pixels.shape[:2])[0, 0] > 0
    if not hidden.all():
        pixels[hidden] = pixels[~hidden].mean(0)
    return to_picture(pixels)
