"""Reader for the images that a server has saved."""

import io

import numpy as np
from comfy_server import Comfy
from PIL import Image


def images(comfy: Comfy, outputs: dict, *nodes: str) -> list[np.ndarray]:
    """Return the saved images, [H, W, 3] each, of the given nodes. Without nodes, return the images of all nodes."""
    chosen = {node: outputs[node] for node in nodes or outputs}
    return [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in comfy.files(chosen)]
