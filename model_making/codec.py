"""Stage 2: train the VQ codec.

    python -m model_making.codec --data DIR --out DIR [--minutes 25]

The time budget is divided into three phases:

1. 6 %: train an autoencoder without quantisation, on crops.
2. 74 %: train with quantisation, on crops. The codebook is initialised by k-means and then updated by exponential
   moving averages.
3. 20 %: continue phase 2 on full images instead of crops.

The script prints the PSNR on held-out images. To resume training, run the same command again.

Tensor dimensions: B images, H x W pixels and h x w codes of an image, M vectors, C channels of a code vector.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adt_core.lab.training.run import muon_and_adam
from adt_core.models.vq import VQConfig, VQModel

from .data import example
from .timed_run import TimedRun

CONFIG = VQConfig(
    embed_dim=12,
    num_embeddings=1024,
    latent_channels=64,
    resolution=128,
    base_channels=32,
    channel_multiplier=(1, 1, 2, 4),
    num_res_blocks=1,
)
# Shares of the budget at which quantisation and training on full images begin.
QUANTISE_FROM = 0.06
FULL_IMAGES_FROM = 0.80
HELD_OUT_SEED = 2
# A code whose moving-average count is below _DEAD_BELOW is unused. It is replaced by a random encoder output, and its
# count is set to _RESTART_COUNT.
_DEAD_BELOW = 0.12
_RESTART_COUNT = 0.4


class Codebook:
    """Exponential-moving-average codebook update (van den Oord et al., arXiv 1711.00937, appendix A.1).

    Each row of ``quantize.embedding`` is a code. The update keeps each row at the mean of the encoder outputs that are
    assigned to its code.

    Attributes:
        weight: [codes, C] the model's codebook, updated in place.
        count: [codes] moving average of the number of vectors that are assigned to each code.
        total: [codes, C] moving average of the sum of these vectors.
        ready: Whether :meth:`seed` has run.
    """

    def __init__(self, model: VQModel, generator: torch.Generator, decay: float = 0.98):
        self.weight = model.quantize.embedding.weight.data
        self.decay = decay
        self.generator = generator
        self.count = torch.ones(len(self.weight))
        self.total = self.weight.clone()
        self.ready = False

    def _sample(self, vectors: Tensor, n: int) -> Tensor:
        return vectors[torch.randint(len(vectors), (n,), generator=self.generator)]

    def seed(self, vectors: Tensor, rounds: int = 12) -> None:
        """Initialise the codebook by k-means.

        Args:
            vectors: [M, C] encoder outputs.
        """
        centres = self._sample(vectors, len(self.weight)).clone()
        for _ in range(rounds):
            nearest = torch.cdist(vectors, centres).argmin(1)
            count = torch.zeros(len(centres)).index_add_(0, nearest, torch.ones(len(nearest)))
            total = torch.zeros_like(centres).index_add_(0, nearest, vectors)
            centres = torch.where(
                count[:, None] > 0, total / count[:, None].clamp_min(1), self._sample(vectors, len(centres))
            )
        self.weight.copy_(centres)
        self.count.fill_(1.0)
        self.total.copy_(centres)
        self.ready = True

    def update(self, vectors: Tensor, codes: Tensor) -> None:
        """Update the moving averages and restart unused codes.

        Args:
            vectors: [M, C] encoder outputs.
            codes: [M] nearest code of each vector.
        """
        self.count.mul_(self.decay).index_add_(0, codes, torch.full((len(codes),), 1 - self.decay))
        self.total.mul_(self.decay).index_add_(0, codes, vectors * (1 - self.decay))
        dead = self.count < _DEAD_BELOW
        self.total[dead] = self._sample(vectors, int(dead.sum())) * _RESTART_COUNT
        self.count[dead] = _RESTART_COUNT
        self.weight.copy_(self.total / self.count[:, None])


def quantise(model: VQModel, z: Tensor, codebook: Codebook) -> tuple[Tensor, Tensor]:
    """Quantise the encoder output with a straight-through gradient, and update the codebook.

    Args:
        z: [B, C, h, w] encoder output.

    Returns:
        Quantised `z` [B, C, h, w], and the commitment loss (a scalar).
    """
    codes = model.nearest(z.detach())
    codebook.update(_encoder_vectors(z), codes.flatten())
    q = model.lookup(codes)
    return z + (q - z).detach(), F.mse_loss(z, q.detach())


def reconstruction_loss(y: Tensor, x: Tensor) -> Tensor:
    """Return a weighted sum of three losses of a reconstruction `y` against the original `x`, both [B, 3, H, W].

    The mean squared error determines the PSNR. The L1 errors of pixels and of differences between neighbouring pixels
    favour edges and fine detail.
    """
    edges = sum(F.l1_loss(y.diff(dim=d), x.diff(dim=d)) for d in (2, 3))
    return 2 * F.mse_loss(y, x) + 0.5 * F.l1_loss(y, x) + 0.3 * edges


def batch(images: np.ndarray, fraction: float, rng: np.random.Generator) -> Tensor:
    """Sample a batch of crops, or of full images in the last phase of training. Half of the batch is mirrored.

    Args:
        images: [count, 128, 128, 3] uint8.
        fraction: Share of the time budget that is used up, from 0 to 1.
        rng: Generator that chooses the images and the crops.

    Returns:
        [B, 3, size, size] float32 in [-1, 1]: 16 crops of 64 pixels, or 4 images of 128 pixels.
    """
    size, count = (128, 4) if fraction > FULL_IMAGES_FROM else (64, 16)
    crops = []
    for index in np.sort(rng.integers(len(images), size=count)):
        y, x = 8 * rng.integers(0, (128 - size) // 8 + 1, 2)  # aligned with the renderer's 8-pixel grid
        crop = images[index, y : y + size, x : x + size]
        crops.append(crop[:, ::-1] if rng.random() < 0.5 else crop)
    pixels = torch.from_numpy(np.ascontiguousarray(crops)).permute(0, 3, 1, 2).float() / 127.5 - 1
    return pixels.contiguous()


@torch.no_grad()
def evaluate(weights: dict, count: int = 64) -> dict[str, float]:
    """Evaluate a codec on held-out images.

    Returns:
        "psnr": mean PSNR in dB.
        "psnr_worst": PSNR of the worst image in dB.
        "perplexity": Perplexity of the codes. It equals the number of codes if all are used equally often.
    """
    model = VQModel(CONFIG)
    model.load_state_dict(weights)
    model.eval()
    x = torch.from_numpy(np.stack([example(HELD_OUT_SEED, i)[0] for i in range(count)])).permute(0, 3, 1, 2) / 127.5 - 1
    codes = torch.cat([model.encode(part) for part in x.split(16)])
    y = torch.cat([model.decode(part) for part in codes.split(16)])
    psnr = -10 * torch.log10(((y - x) / 2).pow(2).mean((1, 2, 3)))
    use = torch.bincount(codes.flatten(), minlength=CONFIG.num_embeddings).float()
    p = use / use.sum()
    return {
        "psnr": psnr.mean().item(),
        "psnr_worst": psnr.min().item(),
        "perplexity": (-(p * p.clamp_min(1e-9).log()).sum()).exp().item(),
    }


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of stage 1")
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    parser.add_argument("--minutes", type=float, default=25, help="time budget")
    return parser.parse_args()


def _encoder_vectors(z: Tensor) -> Tensor:
    """Flatten encoder output [B, C, h, w] to detached vectors [B * h * w, C]."""
    return z.detach().permute(0, 2, 3, 1).reshape(-1, z.shape[1])


def main() -> None:
    """Train the codec."""
    args = _parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    images = np.load(args.data / "images.npy", mmap_mode="r")
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = VQModel(CONFIG)
    model.quantize.embedding.weight.requires_grad_(False)
    codebook = Codebook(model, generator)
    optimisers = muon_and_adam(model, muon_lr=0.02, adam_lr=2e-3)
    run = TimedRun(args.out / "codec.safetensors", model, optimisers, args.minutes, decay=0.995)
    if "count" in run.state:
        codebook.count = run.state["count"]
        codebook.total = run.state["total"]
        codebook.ready = run.state["ready"]
    rng = np.random.default_rng([7, run.step])
    vectors: list[Tensor] = []
    while run.fraction < 1:
        x = batch(images, run.fraction, rng)
        z = model.quant_conv(model.encoder(x))
        if run.fraction < QUANTISE_FROM:
            vectors = [*vectors, _encoder_vectors(z)][-16:]
            q = z
            commitment = z.new_zeros(())
        else:
            if not codebook.ready:
                codebook.seed(torch.cat(vectors))
            q, commitment = quantise(model, z, codebook)
        y = model.decoder(model.post_quant_conv(q))
        run.advance(reconstruction_loss(y, x) + 0.1 * commitment + 1e-3 * z.pow(2).mean())
        if run.checkpoint_due():
            weights = {**run.average, "quantize.embedding.weight": codebook.weight.clone()}
            run.save(weights=weights, count=codebook.count, total=codebook.total, ready=codebook.ready)
            print(f"held out: {evaluate(weights)}", flush=True)


if __name__ == "__main__":
    main()
