"""Image size node, for model families that can generate images of several sizes."""

from dataclasses import replace

from comfy_api.v0_0_2 import io

from .schema import Tooltips, schema
from .sockets import LoadedModel, ModelSocket, checked

_IMAGE_SIZE_TOOLTIPS = Tooltips(
    inputs={
        "model": "The model to set the size for.",
        "width": "Width in pixels. Lumina-mGPT and GLM-Image need multiples of 32.",
        "height": "Height in pixels. The model limits the area, width times height.",
    },
    outputs={"model": "The same model, for images of this size."},
)


class ADTTreeImageSize(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            "ADTTreeImageSize",
            "ADT-Tree Image Size",
            tooltips=_IMAGE_SIZE_TOOLTIPS,
            description="Sets the image size of models that support several sizes: Lumina-mGPT, Emu3-Gen and "
            "GLM-Image. Connect it between the Model Loader and the samplers.",
            search_aliases=["resolution", "width", "height", "aspect ratio", "分辨率", "宽高比"],
            inputs=[
                ModelSocket.Input("model"),
                io.Int.Input("width", default=768, min=16, max=8192, step=16),
                io.Int.Input("height", default=768, min=16, max=8192, step=16),
            ],
            outputs=[ModelSocket.Output(display_name="model")],
        )

    @classmethod
    @checked
    def execute(cls, model: LoadedModel, width: int, height: int) -> io.NodeOutput:
        return io.NodeOutput(replace(model, target=model.target.sized(width, height)))
