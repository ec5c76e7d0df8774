"""What the engine gives without ComfyUI: run by the environment's Python in a process of its own.

    python reference.py ROOT OUTPUT.npz '{"prompt": ..., "negative": ..., "sampling": {...}, "drafting": {...},
    "lantern": {...}, "count": 1}'

writes the codebook vectors (``samples``) and the pixels as uint8 (``images``) of the images that this asks for.
"""

import json
import sys

root, output, request = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
sys.path.insert(0, root)

import numpy as np  # noqa: E402
import torch  # noqa: E402

import adt_core  # noqa: E402

with torch.inference_mode():
    target = adt_core.load_target()
    count, negative = request.get("count", 1), request.get("negative")
    decoding = adt_core.Decoding(
        target,
        [target.encode_prompt(request["prompt"])] * count,
        negatives=[target.encode_prompt(negative)] * count if negative else None,
        sampling=adt_core.Sampling(**request.get("sampling", {})),
        drafting=adt_core.Drafting.of(request.get("drafting", {})),
        drafter=adt_core.load_drafter("bundled", target),
        lantern=adt_core.Lantern(**request["lantern"]) if "lantern" in request else None,
        image_indices=list(range(count)),
    )
    for _ in decoding:
        pass
    codes = decoding.grid_codes()
    pixels = torch.cat([target.codec.decode(one) for one in codes.split(1)])
    images = (pixels.float().movedim(1, -1) / 2 + 0.5).clamp(0, 1).numpy()

# The last step as the stock Save Image node does it.
np.savez(
    output, samples=target.codec.lookup(codes).float().numpy(), images=np.clip(images * 255.0, 0, 255).astype(np.uint8)
)
