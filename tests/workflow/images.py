"""Images that a server made, as arrays."""

import io

import numpy as np
from comfy_server import Comfy
from PIL import Image


def images(comfy: Comfy, outputs: dict, *nodes: str) -> list[np.ndarray]:
    """Return the images [H, W, 3] that a prompt's outputs name, of the given nodes or of all."""
    chosen = {node: outputs[node] for node in nodes or outputs}
    return [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in comfy.files(chosen)]
