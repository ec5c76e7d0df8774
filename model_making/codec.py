"""Stage 2: train the VQ codec.

    python -m model_making.codec --data DIR --out DIR [--minutes 25]

Resumable: run it again with the same ``--out``. Three phases over the time budget: a plain
autoencoder (6 %), then quantisation with a codebook seeded by k-means and kept by exponential
moving averages, and at the end (20 %) whole pictures instead of crops. Prints held-out PSNR.
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
from .progress import TimedRun

CONFIG = VQConfig(
    embed_dim=12,
    num_embeddings=1024,
    latent_channels=64,
    resolution=128,
    base_channels=32,
    channel_multiplier=(1, 1, 2, 4),
    num_res_blocks=1,
)
WARMUP, WHOLE = 0.06, 0.80
HELD_OUT_SEED = 2


class Codebook:
    """Keeps ``quantize.embedding`` at the running means of the vectors assigned to each code."""

    def __init__(self, model: VQModel, generator: torch.Generator, decay: float = 0.98):
        self.weight, self.decay, self.generator = model.quantize.embedding.weight.data, decay, generator
        self.count, self.total = torch.ones(len(self.weight)), self.weight.clone()
        self.ready = False

    def _draw(self, vectors: Tensor, n: int) -> Tensor:
        return vectors[torch.randint(len(vectors), (n,), generator=self.generator)]

    def seed(self, vectors: Tensor, rounds: int = 12) -> None:
        """k-means on ``vectors`` [M, C]."""
        centres = self._draw(vectors, len(self.weight)).clone()
        for _ in range(rounds):
            nearest = torch.cdist(vectors, centres).argmin(1)
            count = torch.zeros(len(centres)).index_add_(0, nearest, torch.ones(len(nearest)))
            total = torch.zeros_like(centres).index_add_(0, nearest, vectors)
            centres = torch.where(
                count[:, None] > 0, total / count[:, None].clamp_min(1), self._draw(vectors, len(centres))
            )
        self.weight.copy_(centres)
        self.count.fill_(1.0)
        self.total.copy_(centres)
        self.ready = True

    def update(self, vectors: Tensor, codes: Tensor) -> None:
        """One moving-average step from ``vectors`` [M, C] and their ``codes`` [M]; restarts dead codes."""
        self.count.mul_(self.decay).index_add_(0, codes, torch.full((len(codes),), 1 - self.decay))
        self.total.mul_(self.decay).index_add_(0, codes, vectors * (1 - self.decay))
        dead = self.count < 0.12
        self.total[dead] = self._draw(vectors, int(dead.sum())) * 0.4
        self.count[dead] = 0.4
        self.weight.copy_(self.total / self.count[:, None])


def quantise(model: VQModel, z: Tensor, codebook: Codebook) -> tuple[Tensor, Tensor]:
    """Straight-through quantisation of z [B, C, h, w]: (quantised, commitment loss)."""
    flat = z.detach().permute(0, 2, 3, 1).reshape(-1, z.shape[1])
    codes = model.nearest(z.detach())
    codebook.update(flat, codes.flatten())
    q = model.lookup(codes)
    return z + (q - z).detach(), F.mse_loss(z, q.detach())


def reconstruction_loss(y: Tensor, x: Tensor) -> Tensor:
    """MSE for PSNR, L1 and gradient L1 for edges and small detail."""
    edges = sum(F.l1_loss(y.diff(dim=d), x.diff(dim=d)) for d in (2, 3))
    return 2 * F.mse_loss(y, x) + 0.5 * F.l1_loss(y, x) + 0.3 * edges


def batch(images: np.ndarray, fraction: float, rng: np.random.Generator) -> Tensor:
    size, count = (128, 4) if fraction > WHOLE else (64, 16)
    crops = []
    for index in np.sort(rng.integers(len(images), size=count)):
        y, x = 8 * rng.integers(0, (128 - size) // 8 + 1, 2)  # on the lattice that the renderer paints on
        crop = images[index, y : y + size, x : x + size]
        crops.append(crop[:, ::-1] if rng.random() < 0.5 else crop)
    pixels = torch.from_numpy(np.ascontiguousarray(crops)).permute(0, 3, 1, 2).float() / 127.5 - 1
    return pixels.contiguous()


@torch.no_grad()
def evaluate(weights: dict, count: int = 64) -> dict[str, float]:
    """PSNR (dB, over uint8 pixels) and codebook perplexity on held-out pictures."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=25)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    images = np.load(args.data / "images.npy", mmap_mode="r")
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = VQModel(CONFIG)
    model.quantize.embedding.weight.requires_grad_(False)
    codebook = Codebook(model, generator)
    run = TimedRun(
        args.out / "codec.pt", model, muon_and_adam(model, muon_lr=0.02, adam_lr=2e-3), args.minutes, decay=0.995
    )
    if "count" in run.state:
        codebook.count, codebook.total, codebook.ready = (run.state[name] for name in ("count", "total", "ready"))
    rng, vectors = np.random.default_rng([7, run.step]), []

    while run.fraction < 1:
        x = batch(images, run.fraction, rng)
        z = model.quant_conv(model.encoder(x))
        if run.fraction < WARMUP:
            vectors = [*vectors, z.detach().permute(0, 2, 3, 1).reshape(-1, z.shape[1])][-16:]
            q, commitment = z, z.new_zeros(())
        else:
            if not codebook.ready:
                codebook.seed(torch.cat(vectors))
            q, commitment = quantise(model, z, codebook)
        y = model.decoder(model.post_quant_conv(q))
        run.advance(reconstruction_loss(y, x) + 0.1 * commitment + 1e-3 * z.pow(2).mean())
        if run.due():
            weights = {**run.average, "quantize.embedding.weight": codebook.weight.clone()}
            run.save(weights=weights, count=codebook.count, total=codebook.total, ready=codebook.ready)
            print(f"held out: {evaluate(weights)}", flush=True)


if __name__ == "__main__":
    main()
