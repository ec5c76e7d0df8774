"""Stage 3b: give the decoder more time, and texture, without touching the codes.

    python -m model_making.sharpen --data DIR --tokens DIR --out DIR [--minutes 12]

Only ``decoder`` and ``post_quant_conv`` learn, from stored codes, so the target and the drafter stay valid. To the
reconstruction loss comes a texture term: the local energy of fixed band-pass filters, compared over windows. It asks
for grass where grass was, blade by blade or not, where plain regression would answer with the mean of all lawns.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adt_core.drafter_training.run import muon_and_adam
from adt_core.models.vq import VQModel

from .codec import CONFIG, evaluate, reconstruction_loss
from .progress import TimedRun

TEXTURE = 0.5


def filter_bank(size: int = 7) -> Tensor:
    """Oriented band-pass filters [8, 1, size, size]: four directions at two wavelengths, zero mean, unit norm."""
    at = torch.arange(size) - size // 2
    y, x = torch.meshgrid(at, at, indexing="ij")
    filters = []
    for wavelength in (3.0, 6.0):
        for angle in torch.arange(4) * torch.pi / 4:
            phase = (x * angle.cos() + y * angle.sin()) * 2 * torch.pi / wavelength
            kernel = phase.cos() * torch.exp(-(x**2 + y**2) / (2 * (wavelength / 2) ** 2))
            kernel = kernel - kernel.mean()
            filters.append(kernel / kernel.norm())
    return torch.stack(filters)[:, None]


def texture_loss(y: Tensor, x: Tensor, bank: Tensor, window: int = 12) -> Tensor:
    """Mean difference of local root-mean-square filter responses of the two pictures' brightness."""

    def energy(image: Tensor) -> Tensor:
        response = F.conv2d(image.mean(1, keepdim=True), bank)
        return (F.avg_pool2d(response.square(), window, window // 2) + 1e-4).sqrt()

    return F.l1_loss(energy(y), energy(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokens", type=Path, required=True, help="folder of tokens.npz and codec.pt")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=12)
    args = parser.parse_args()
    images, codes = np.load(args.data / "images.npy", mmap_mode="r"), np.load(args.tokens / "tokens.npz")["codes"]
    model, bank = VQModel(CONFIG), filter_bank()
    model.load_state_dict(torch.load(args.tokens / "codec.pt", weights_only=True)["weights"])
    model.requires_grad_(False)
    model.decoder.requires_grad_(True)
    model.post_quant_conv.requires_grad_(True)
    run = TimedRun(
        args.out / "sharp.pt", model, muon_and_adam(model, muon_lr=0.01, adam_lr=1e-3), args.minutes, decay=0.99
    )
    while run.fraction < 1:
        pick = np.sort(np.random.default_rng([21, run.step]).integers(len(codes), size=4))
        x = torch.from_numpy(np.array(images[pick])).permute(0, 3, 1, 2).float() / 127.5 - 1
        y = model.decoder(
            model.post_quant_conv(model.lookup(torch.from_numpy(codes[pick].astype(np.int64)).view(-1, 16, 16)))
        )
        run.advance(reconstruction_loss(y, x) + TEXTURE * texture_loss(y, x, bank), warmup=0.05)
        if run.due():
            run.save(weights=run.average)
            print(f"held out: {evaluate(run.average)}", flush=True)


if __name__ == "__main__":
    main()
