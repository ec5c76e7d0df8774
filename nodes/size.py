"""The image size node: for the families that draw more than one."""

from dataclasses import replace

from comfy_api.v0_0_2 import io

from .loaders import CATEGORY
from .sockets import LoadedModel, ModelSocket


class ADTTreeImageSize(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ADTTreeImageSize",
            display_name="ADT-Tree Image Size",
            category=CATEGORY,
            description="Sets the size of the images for models that draw several, Lumina-mGPT and Emu3-Gen; the others refuse any but "
            "their own. Put it between the Model Loader and the samplers.",
            search_aliases=["resolution", "width", "height", "aspect ratio"],
            inputs=[
                ModelSocket.Input("model", tooltip="The model whose images get another size."),
                io.Int.Input(
                    "width",
                    default=768,
                    min=16,
                    max=8192,
                    step=16,
                    tooltip="Pixels; Lumina-mGPT takes multiples of 32.",
                ),
                io.Int.Input(
                    "height",
                    default=768,
                    min=16,
                    max=8192,
                    step=16,
                    tooltip="Pixels; width times height is bounded by what the model was made for.",
                ),
            ],
            outputs=[ModelSocket.Output(display_name="model", tooltip="The same weights, for images of this size.")],
        )

    @classmethod
    def execute(cls, model: LoadedModel, width: int, height: int) -> io.NodeOutput:
        return io.NodeOutput(replace(model, target=model.target.sized(width, height)))
