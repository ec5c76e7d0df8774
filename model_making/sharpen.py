"""Stage 8: fine-tune the codec's decoder for sharper images from the same codes.

    python -m model_making.sharpen --out DIR [--minutes 60] [--model adt_core/bundled/target]

Only ``decoder`` and ``post_quant_conv`` of the model's codec are trained. At the end, the script writes them into the
model. Encoder and codebook don't change, so the target and the drafter remain valid.

Two terms are added to the reconstruction loss:

- The texture loss compares how strongly the original and the decoded image respond to band-pass filters in each
  neighbourhood. The texture of the decoded image must be as strong as the texture of the original, but need not be
  equal to it pixel by pixel.
- The adversarial loss sharpens edges. It uses a small patch discriminator (Isola et al., arXiv 1611.07004, section
  3.2.2) and is weighted as in VQGAN (Esser et al., arXiv 2012.09841, equation 7).

To resume training, run the same command again.
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
from .timed_run import TimedRun

TEXTURE_WEIGHT = 0.25
ADVERSARIAL_WEIGHT = 0.1
ADVERSARIAL_FROM = 0.35
"""Share of the time budget after which the adversarial loss is added. Until then, only the other losses are used."""
SEED = 1
BATCH = 6
TRAINED_PREFIXES = ("decoder.", "post_quant_conv.")
"""Prefixes of the trained parameters of the codec."""


def filter_bank(size: int = 7) -> Tensor:
    """Return oriented band-pass filters: four directions at two wavelengths, with zero mean and unit norm.

    Args:
        size: Edge of a filter, in pixels.

    Returns:
        [8, 1, size, size] float32.
    """
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
    """Return the mean absolute difference of local root-mean-square filter responses.

    Args:
        y: [B, 3, H, W] reconstruction.
        x: [B, 3, H, W] original.
        bank: Filters from :func:`filter_bank`. They are applied to the mean of the three colour channels.
        window: Edge of the square window over which squared responses are averaged, in pixels.
    """

    def energy(image: Tensor) -> Tensor:
        response = F.conv2d(image.mean(1, keepdim=True), bank)
        return (F.avg_pool2d(response.square(), window, window // 2) + 1e-4).sqrt()

    return F.l1_loss(energy(y), energy(x))


def patch_discriminator(width: int = 32) -> nn.Module:
    """Return a network that distinguishes rendered images from decoded images.

    It maps images [B, 3, H, W] to scores [B, 1, H / 8, W / 8]. Each score depends on a patch of 38 x 38 pixels. After
    training, the score is positive for rendered images and negative for decoded images.
    """
    layers: list[nn.Module] = []
    channels = 3
    for out in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(channels, out, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
        channels = out
    return nn.Sequential(*layers, nn.Conv2d(channels, 1, 3, padding=1))


class SharpeningModel(nn.Module):
    """Codec with a trainable decoder, the discriminator, and the losses that train decoder and discriminator."""

    def __init__(self, codec: VQModel):
        super().__init__()
        self.codec = codec.requires_grad_(False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.discriminator = patch_discriminator()
        for name, parameter in codec.named_parameters():
            parameter.requires_grad_(name.startswith(TRAINED_PREFIXES))
        self.bank = filter_bank()

    def loss(self, x: Tensor, adversarial: bool) -> Tensor:
        """Return the loss of a batch.

        Args:
            x: [B, 3, H, W] images in [-1, 1].
            adversarial: Whether to add the adversarial loss of the decoder and the hinge loss of the discriminator.
        """
        y = self.codec._decode(self.codec.lookup(self.codec.encode(x))).float()
        regression = reconstruction_loss(y, x) + TEXTURE_WEIGHT * texture_loss(y, x, self.bank)
        if not adversarial:
            return regression
        # The generator loss is the adversarial loss of the decoder. The discriminator's parameters are detached here,
        # so that this loss doesn't train the discriminator.
        frozen = {name: value.detach() for name, value in self.discriminator.named_parameters()}
        generator_loss = -torch.func.functional_call(self.discriminator, frozen, y).mean()
        hinge_loss = F.relu(1 - self.discriminator(x)).mean() + F.relu(1 + self.discriminator(y.detach())).mean()
        weight = ADVERSARIAL_WEIGHT * self._adaptive_weight(regression, generator_loss)
        return regression + weight * generator_loss + hinge_loss

    def _adaptive_weight(self, regression: Tensor, generator_loss: Tensor) -> Tensor:
        """Return |gradient of `regression`| / |gradient of `generator_loss`| at the decoder's last layer.

        With this weight, both losses change the decoder by similar amounts (VQGAN, equation 7).
        """
        last = self.codec.decoder.conv_out.weight
        losses = (regression, generator_loss)
        numerator, denominator = (torch.autograd.grad(loss, last, retain_graph=True)[0].norm() for loss in losses)
        return (numerator / (denominator + 1e-6)).clamp(max=100)


def image_batch(step: int) -> Tensor:
    """Render the images of a step, [BATCH, 3, H, W] in [-1, 1]. Each step has new images."""
    images = np.stack([example(SEED, step * BATCH + i)[0] for i in range(BATCH)])
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


def write_decoder(weights: dict[str, Tensor], model: Path) -> None:
    """Replace the codec's decoder in a checkpoint. The dtypes of the checkpoint are kept."""
    path = model / "model.safetensors"
    stored = load_file(path)
    for name, value in weights.items():
        if name.startswith(TRAINED_PREFIXES):
            key = f"model.vqmodel.{name}"
            stored[key] = value.to(stored[key].dtype).contiguous()
    write(path, save(stored, {"format": "pt"}))


def main() -> None:
    """Fine-tune the decoder and write it into the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the training checkpoint")
    parser.add_argument("--minutes", type=float, default=60, help="time budget")
    parser.add_argument(
        "--model", type=Path, default=Path("adt_core/bundled/target"), help="folder of the model, which is changed"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    learner = SharpeningModel(load_target(args.model).codec)
    optimisers = muon_and_adam(learner, muon_lr=0.01, adam_lr=5e-4, not_muon=("discriminator",))
    run = TimedRun(args.out / "sharp.safetensors", learner, optimisers, args.minutes, decay=0.99)
    while run.fraction < 1:
        run.advance(learner.loss(image_batch(run.step), run.fraction > ADVERSARIAL_FROM), warmup=0.05)
        if run.checkpoint_due():
            run.save()
            print(f"held out: {evaluate(codec_weights(run))}", flush=True)
    write_decoder(codec_weights(run), args.model)


def codec_weights(run: TimedRun) -> dict[str, Tensor]:
    """Return the averaged weights of the codec."""
    return {name.removeprefix("codec."): value for name, value in run.average.items() if name.startswith("codec.")}


if __name__ == "__main__":
    main()
