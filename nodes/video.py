"""Node that draws the replay of a run as video frames, for ComfyUI's own video nodes."""

import torch
import torch.nn.functional as F
from comfy_api.v0_0_2 import io

from ..adt_core import AdtError, Trace
from .comfy_runtime import check_cancelled
from .run_stats import coloured
from .schema import Tooltips, schema
from .sockets import TraceSocket, checked

MAX_FRAMES = 2_000  # maximum number of frames. Each frame of an image of 1024 pixels needs 24 MiB.
_UNDECIDED = 0.09  # gray level of tokens that are not generated yet

_VIDEO_TOOLTIPS = Tooltips(
    inputs={
        "trace": "The trace of an ADT-Tree Sampler.",
        "images": "The decoded images of the same run.",
        "image": "Index of the image to show. 0 is the first.",
        "seconds": "Duration of the video. The last second shows the finished image.",
        "fps": "Frames per second. Set the same number on Create Video.",
    },
    outputs={
        "IMAGE": "The frames, with the image on the left and its map on the right.",
        "fps": "Frames per second, for Create Video.",
    },
)


class ADTTreeMapToVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            "ADTTreeMapToVideo",
            "ADT-Tree Map to Video",
            tooltips=_VIDEO_TOOLTIPS,
            description="Draws how an image was made as video frames: the image and its map side by side. Connect the "
            "frames to Create Video, or to Save Animated WEBP.",
            search_aliases=["replay", "animation", "acceptance map", "回放", "视频"],
            inputs=[
                TraceSocket.Input("trace"),
                io.Image.Input("images"),
                io.Int.Input("image", default=0, min=0, max=4095),
                io.Float.Input("seconds", default=8.0, min=1.0, max=60.0, step=0.5),
                io.Float.Input("fps", default=12.0, min=1.0, max=60.0, step=1.0),
            ],
            outputs=[io.Image.Output(display_name="IMAGE"), io.Float.Output(display_name="fps")],
        )

    @classmethod
    @checked
    def execute(cls, trace: Trace, images: torch.Tensor, image: int, seconds: float, fps: float) -> io.NodeOutput:
        if len(images) != trace.images:
            raise AdtError("trace.other_images", count=len(images), traced=trace.images)
        if image >= trace.images:
            raise AdtError("trace.no_image", image=image, images=trace.images)
        count = round(seconds * fps)
        if count > MAX_FRAMES:
            raise AdtError("seconds.too_many", count=count, most=MAX_FRAMES)
        frames = _frames(trace, images[image : image + 1, ..., :3].float(), image, count, round(fps))
        return io.NodeOutput(frames, fps)


def _frames(trace: Trace, picture: torch.Tensor, image: int, count: int, last: int) -> torch.Tensor:
    """Return the frames [count, H, 2W, 3] of a replay. They are in main memory, because they may have many GiB.

    Args:
        picture: [1, H, W, 3] in [0, 1].
        count: Number of frames.
        last: Number of frames at the end that show the finished image.
    """
    size = picture.shape[1:3]

    def enlarged(values: torch.Tensor) -> torch.Tensor:
        return F.interpolate(values[None, None], size=size, mode="nearest")[0, 0]

    moments = enlarged(torch.tensor(trace.token_map("moment", image), dtype=torch.float32))
    values = torch.tensor([trace.token_map("acceptance", image)], dtype=torch.float32)
    finished = torch.cat((picture[0].cpu(), coloured(values, "acceptance", size)[1][0]), dim=1)
    moments = torch.cat((moments, moments), dim=1)[..., None]
    steps = max(1, count - last)
    frames = torch.empty(count, *finished.shape)
    for frame in range(count):
        check_cancelled()
        until = float(moments.max()) * min(1.0, frame / steps)
        frames[frame] = torch.where(moments <= until, finished, _UNDECIDED)
    return frames
