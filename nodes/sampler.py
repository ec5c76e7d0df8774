"""The sampler node: text in, codebook vectors out, one bar tick per decided token."""

from contextlib import closing

import comfy.model_management as mm
import torch
from comfy_api.v0_0_2 import io
from PIL import Image

from .. import adt_core
from .loaders import CATEGORY
from .runtime import Progress, check_cancelled, load, refusal
from .sampling import choose_drafting, patchers, sampling_inputs
from .sockets import DrafterSocket, LanternSocket, LoadedDrafter, LoadedModel, ModelSocket, SettingsSocket, TraceSocket
from .stock import read_prompt, to_image


class ADTTreeSampler(io.ComfyNode):
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
                *sampling_inputs("Decides the noise, and with the prompt the image."),
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
            hidden=[io.Hidden.unique_id],
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
        drafting = choose_drafting(settings, drafter, model)
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
        load(patchers(model, drafter), memory_required=decoding.memory_required())
        _decode(decoding, Progress(decoding.total_tokens, cls.hidden.unique_id, lambda: preview(model.target, decoding)))
        vectors = model.target.codec.lookup(decoding.grid_codes())
        return io.NodeOutput({"samples": vectors.to(mm.intermediate_device(), torch.float32)}, decoding.trace)


def _decode(decoding: "adt_core.Decoding", progress: Progress) -> None:
    with closing(iter(decoding)) as rounds:  # caches go now, and not when a traceback is forgotten
        for count, _ in enumerate(rounds, start=1):
            done, total = decoding.done_tokens, decoding.total_tokens
            progress.update(done, f"{done} of {total} tokens in {count} pass{'' if count == 1 else 'es'}")
    report = decoding.trace.report()
    progress.say(
        f"{report['tokens']} tokens in {report['seconds']:.1f} s: {report['tokens_per_second']:.0f} a second, {report['tau']:.2f} per pass of the model"
    )


def preview(target: "adt_core.Target", decoding: "adt_core.Decoding") -> Image.Image:
    """The first image as far as it is decided, what is missing in the mean colour of the rest."""
    codes = decoding.codes[0].reshape(target.grid)
    missing = codes < 0
    blank = target.codec.nearest(target.codec.codebook.mean(0).reshape(1, -1, 1, 1)).item()
    image = to_image(target.codec.decode(codes.masked_fill(missing, blank)[None], check=check_cancelled))[0].cpu()
    hidden = torch.nn.functional.interpolate(missing[None, None].float(), size=image.shape[:2])[0, 0] > 0
    if not hidden.all():
        image[hidden] = image[~hidden].mean(0)
    return Image.fromarray((image * 255).to(torch.uint8).numpy())
