"""Estimate of the memory that a request needs, and checks whether the machine has enough.

If the main memory runs out, the operating system kills the process without a message. So a request on the CPU is
checked before it is decoded. If a GPU's memory runs out, torch raises an error. The decoding (:mod:`..decoding`) then
continues with fewer images at a time.
"""

from __future__ import annotations

import torch

from ...drafters.half_head import half_head_bytes
from ...errors import AdtError
from ...kernels import attend
from ...kernels.choice import supports_kernels
from ...memory_limit import memory_limit, usable_bytes
from ...models.batch_invariance import near_window
from ...models.cache import KVCache
from ...models.layers import GPU_PIECE_BYTES, Decoder
from ...models.quantised_matmul import supports_byte_matmul
from ...models.streamed import held_bytes
from ...rules.noise import Noise
from ...settings import ORIGINAL_SCRIPT
from ..graphs import MAX_GRAPHS
from ..request import ATTENDED_MULTIPLE, PREFIX_CHUNK, Request

CAPTURED_SIZES = 6
"""Typical number of different tree sizes that are captured. Each of these sizes is captured once for each number of
cache positions that a round can read (`ATTENDED_MULTIPLE`)."""
GRAPH_BYTES = 24 * 2**20
"""Estimated bytes of a captured round, as published; not measured with this package."""
WORKSPACE_BYTES = 32 * 2**20
"""Estimated bytes that matrix products allocate per CUDA stream, as published; not measured."""


def required_bytes(request: Request, batch_size: int, device: torch.device | None = None) -> int:
    """Return the bytes that decoding needs in addition to the weights.

    These are KV caches, noise, the activations of the largest forward pass, captured rounds, and the memory in which
    the codec decodes one image.

    Args:
        batch_size: Number of images that are decoded at the same time.
        device: Device on which the images will be decoded (default: the device of the weights).
    """
    target = request.target
    pixels = target.grid[0] * target.grid[1] * target.downsample**2
    return slot_bytes(request, batch_size, device) + target.codec.working_bytes(pixels)


def slot_bytes(request: Request, batch_size: int, device: torch.device | None = None) -> int:
    """Return the bytes of slots and their captured rounds. It has the arguments of :func:`required_bytes`."""
    state = state_bytes(request, batch_size, device)
    if not _is_replayed(request, device):
        return state
    lengths = 1 + (-(-request.cache_length // ATTENDED_MULTIPLE) - 1).bit_length()
    sizes = 1 if request.active_drafter is None else CAPTURED_SIZES
    graphs = WORKSPACE_BYTES + min(sizes * lengths, MAX_GRAPHS) * GRAPH_BYTES
    return state + _activation_bytes(request, batch_size, device) + graphs


def state_bytes(request: Request, batch_size: int, device: torch.device | None = None) -> int:
    """Return the bytes of KV caches, noise and activations. It has the arguments of :func:`required_bytes`."""
    target = request.target
    decoder = request.target.decoder
    itemsize = decoder.embedding.element_size()
    cache_length = request.cache_length_on(_is_replayed(request, device))
    # When new images enter, their noise and drafter state are made first and then copied into the slots. So up to
    # 2 * batch_size images have noise and drafter state at the same time.
    held = min(2 * batch_size, request.images)
    caches = KVCache.num_bytes(decoder.config, request.groups * batch_size, cache_length, itemsize)
    if request.active_drafter is not None:
        caches += request.active_drafter.cache_bytes(request.groups * held, cache_length, itemsize)
        if request.active_drafter.network is not None:
            caches += half_head_bytes(decoder, device or decoder.embedding.device)
    shared = request.script_batch if request.sampling.noise == ORIGINAL_SCRIPT and request.images > 1 else 0
    wide = decoder.wide_dtype.itemsize
    noise = Noise.num_bytes(held + shared, target.length, target.num_tokens, request.noise_ahead, wide)
    return caches + noise + _activation_bytes(request, batch_size, device)


def _is_replayed(request: Request, device: torch.device | None) -> bool:
    return request.replayed if device is None else device.type != "cpu"


def _activation_bytes(request: Request, batch_size: int, device: torch.device | None) -> int:
    """Return the bytes of the activations of the largest forward pass, including converted weights."""
    target = request.target
    decoder = request.target.decoder
    config = request.target.decoder.config
    replayed = _is_replayed(request, device)
    cache_length = request.cache_length_on(replayed)
    prompt = request.padded_on(replayed) + request.start
    rows = request.groups * batch_size
    tokens = max(prompt, request.largest.drafts + 1, request.longest_read)
    numbers = 2 * config.intermediate_size + 8 * config.hidden_size + cache_length + target.num_codes
    where = device or decoder.embedding.device
    near = _near_bytes(request, cache_length, prompt, where)
    return decoder.wide_dtype.itemsize * rows * tokens * numbers + rows * near + _converted_bytes(decoder, where)


def _converted_bytes(decoder: Decoder, device: torch.device) -> int:
    """Return the bytes of quantised weights that are converted to half precision before their use.

    A CPU converts weights in small pieces, and a GPU int4 weights in larger ones. A GPU converts a complete int8 or fp8
    matrix, unless it multiplies the stored numbers directly.
    """
    if decoder.weights is None or device.type == "cpu":
        return 0
    matrix = 2 * 2 * decoder.config.hidden_size * decoder.config.intermediate_size
    if decoder.weights == "int4":
        return min(matrix, GPU_PIECE_BYTES) * 5 // 4  # a quarter is the temporary copy of half of the levels
    stored = decoder.layers[0].get_parameter("gate_up").dtype
    return matrix if device.type == "cuda" and not supports_byte_matmul(device, stored) else 0


def _near_bytes(request: Request, cache_length: int, prompt: int, device: torch.device) -> int:
    """Return the bytes that batch-invariant attention (:mod:`...models.batch_invariance`) needs for one batch row.

    These are the near keys, their values and three tables of attention scores, all in float64. The kernel of
    :mod:`...kernels.attend` instead needs the attention to each chunk of far keys in float32.
    """
    decoder = request.target.decoder
    config = request.target.decoder.config
    if not decoder.tile:
        return 0
    stays = device.type == decoder.embedding.device.type
    near = request.near if stays else near_window(device, decoder.dtype, config.head_dim)
    read = request.start if near is not None else prompt
    tokens = max(request.largest.drafts + 1, min(max(read, request.longest_read), PREFIX_CHUNK))
    width = cache_length if near is None else near + tokens
    near_bytes = 8 * width * (2 * config.num_kv_heads * config.head_dim + 3 * config.num_heads * tokens)
    if near is None or not supports_kernels(device):
        return near_bytes
    chunks = -(-cache_length // attend.chunk_size(device))
    return max(near_bytes, 4 * chunks * tokens * config.num_heads * (config.head_dim + 2))


def check_memory(request: Request, batch_size: int) -> None:
    """Raise AdtError if the weights are on the CPU and `batch_size` images need too much memory."""
    if shortage := cpu_memory_shortage(request, batch_size):
        raise shortage


def cpu_memory_shortage(request: Request, batch_size: int) -> AdtError | None:
    """Return an error if the weights are on the CPU and `batch_size` images need too much memory."""
    decoder = request.target.decoder
    if decoder.embedding.device.type != "cpu":
        return None
    weights = held_bytes(decoder)
    work = required_bytes(request, batch_size)
    limit = memory_limit()
    usable = usable_bytes(limit)
    if weights + work <= usable:
        return None
    sizes = {"needed": work, "beside": weights, "most": usable, "total": limit.bytes}
    return AdtError(
        "memory.too_many_images" if batch_size > 1 else "memory.one_image",
        count=batch_size,
        model=request.target.name,
        owner=limit.owner,
        **{name: f"{size / 2**30:.3g} GiB" for name, size in sizes.items()},
    )
