"""Stage 8: sharper pictures from the same codes.

    python -m model_making.sharpen --out DIR [--minutes 60] [--model adt_core/bundled/target]

Only ``decoder`` and ``post_quant_conv`` of the model's codec learn; at the end they are written into the model.
Encoder and codes stay, so the target, the drafter and all their figures stay valid. Two terms join the reconstruction
loss. The texture loss compares the local energy of fixed band-pass filters: it asks for waves where waves were, but
not for each wave. The adversarial loss of a small patch discriminator (Isola et al., arXiv 1611.07004, section 3.2.2),
weighed as in VQGAN (Esser et al., arXiv 2012.09841, equation 7), asks for edges like those of drawn pictures.
Resumable: run it again with the same ``--out``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor, nn

from adt_core import load_target
from adt_core.files import write
from adt_core.lab.training.run import muon_and_adam
from adt_core.models.vq import VQModel

from .codec import evaluate, reconstruction_loss
from .data import example
from .progress import TimedRun

TEXTURE, ADVERSARIAL = 0.25, 0.1
ADVERSARIAL_FROM = 0.35  # share of the budget; before that the decoder learns what regression can teach
SEED, BATCH = 1, 6
LEARNS = ("decoder.", "post_quant_conv.")


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


def patch_discriminator(width: int = 32) -> nn.Module:
    """Pictures [B, 3, H, W] -> a score [B, 1, H / 8, W / 8] of every patch of 38 pixels: positive means drawn."""
    layers: list[nn.Module] = []
    channels = 3
    for out in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(channels, out, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
        channels = out
    return nn.Sequential(*layers, nn.Conv2d(channels, 1, 3, padding=1))


class Sharpening(nn.Module):
    """What learns, and its loss: a codec's decoder, and the discriminator that it has to convince."""

    def __init__(self, codec: VQModel):
        super().__init__()
        self.codec = codec.requires_grad_(False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.discriminator = patch_discriminator()
        for name, parameter in codec.named_parameters():
            parameter.requires_grad_(name.startswith(LEARNS))
        self.bank = filter_bank()

    def loss(self, x: Tensor, adversarial: bool) -> Tensor:
        """For pictures x [B, 3, H, W] in [-1, 1]. adversarial: is the discriminator asked, and does it learn?"""
        y = self.codec._decode(self.codec.lookup(self.codec.encode(x))).float()
        regression = reconstruction_loss(y, x) + TEXTURE * texture_loss(y, x, self.bank)
        if not adversarial:
            return regression
        fixed = {name: value.detach() for name, value in self.discriminator.named_parameters()}
        convinced = -torch.func.functional_call(self.discriminator, fixed, y).mean()
        told_apart = F.relu(1 - self.discriminator(x)).mean() + F.relu(1 + self.discriminator(y.detach())).mean()
        return regression + ADVERSARIAL * self._balance(regression, convinced) * convinced + told_apart

    def _balance(self, regression: Tensor, convinced: Tensor) -> Tensor:
        """How many times larger the gradient of ``regression`` is at the last layer than that of ``convinced``."""
        last = self.codec.decoder.conv_out.weight
        strong, weak = (torch.autograd.grad(part, last, retain_graph=True)[0] for part in (regression, convinced))
        return (strong.norm() / (weak.norm() + 1e-6)).clamp(max=100)


def pictures(step: int) -> Tensor:
    """The batch of a step: [BATCH, 3, H, W] in [-1, 1]; no picture is drawn twice."""
    drawn = np.stack([example(SEED, step * BATCH + i)[0] for i in range(BATCH)])
    return torch.from_numpy(drawn).permute(0, 3, 1, 2).float() / 127.5 - 1


def write_decoder(weights: dict[str, Tensor], model: Path) -> None:
    """Put the decoder of a codec's ``weights`` into the checkpoint in the folder ``model``, in the dtype it has."""
    path = model / "model.safetensors"
    stored = load_file(path)
    for name, value in weights.items():
        if name.startswith(LEARNS):
            key = f"model.vqmodel.{name}"
            stored[key] = value.to(stored[key].dtype).contiguous()
    write(path, save(stored, {"format": "pt"}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--model", type=Path, default=Path("adt_core/bundled/target"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    learner = Sharpening(load_target(args.model).codec)
    optimisers = muon_and_adam(learner, muon_lr=0.01, adam_lr=5e-4, not_muon=("discriminator",))
    run = TimedRun(args.out / "sharp.pt", learner, optimisers, args.minutes, decay=0.99)
    while run.fraction < 1:
        run.advance(learner.loss(pictures(run.step), run.fraction > ADVERSARIAL_FROM), warmup=0.05)
        if run.due():
            run.save()
            print(f"held out: {evaluate(codec_weights(run))}", flush=True)
    write_decoder(codec_weights(run), args.model)


def codec_weights(run: TimedRun) -> dict[str, Tensor]:
    """The averaged weights of the codec alone."""
    return {name.removeprefix("codec."): value for name, value in run.average.items() if name.startswith("codec.")}


if __name__ == "__main__":
    main()
