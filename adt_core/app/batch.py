"""An image for each prompt of a list, kept as soon as it is finished: a batch that was stopped goes on where it was.

An image is what its prompt and the settings make of it. So a folder belongs to the settings, and holds one PNG for each prompt, which carries
its tokens and figures besides: a prompt whose PNG is there is done, whichever list asked for it and in whatever company it was decoded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..drafters.base import Drafter
from ..drafters.load import WITH_WINDOW
from ..drafters.merged import MergedDrafter
from ..engine.decoding import Check, Decoding
from ..errors import AdtError
from ..models.target import Target
from ..policies.shape import Drafting
from ..rules.sampling import NOISE_VERSION, Sampling
from ..rules.verify import Lantern
from ..version import VERSION
from .images import digest, is_whole, read_settings, save_png
from .prompts import slug

STRETCH = 8
"""Prompts of one decoding, for each image at once: most images that finish are followed by another, and prompts need not all be held in memory."""


class Picture(NamedTuple):
    """A finished image: its prompt, its PNG, its codes [rows, columns] int64 on the CPU, and its figures, by the names of ``Trace.report``."""

    prompt: str
    path: Path
    codes: Tensor
    figures: dict


@dataclass(frozen=True)
class Batch:
    """How the images of a list are made.

    Every image has the index 0 of the noise key, as if it were the only one of its prompt, so it is the one that decoding the prompt alone
    gives. drafter: what drafts; None for plain decoding. drafter_name: what PNGs and figures call it. negative: the text that guidance pushes
    away from; empty for the row without text. texts: further text chunks of the PNGs.
    """

    target: Target
    sampling: Sampling
    drafting: Drafting
    drafter: Drafter | None = None
    drafter_name: str = "none"
    lantern: Lantern | None = None
    negative: str = ""
    texts: dict[str, str] = field(default_factory=dict)

    def key(self) -> str:
        """The same for settings that give the same images: under exact acceptance, whatever drafts them."""
        relaxed = None
        if self.lantern is not None:
            network = self.drafter.network if isinstance(self.drafter, MergedDrafter) else self.drafter
            relaxed = {
                **asdict(self.lantern),
                **asdict(self.drafting),
                "drafter": self._drafter_name,
                "drafter_weights": fingerprint(network) if isinstance(network, nn.Module) else None,
            }
        modules = (self.target.decoder, self.target.codec, self.target.text_encoder)
        weights = [fingerprint(module) for module in modules if module is not None]
        return digest(
            {
                "weights": weights,
                "stored": self.target.decoder.weights,
                "grid": list(self.target.grid),
                "dtype": self._dtype,
                "sampling": asdict(self.sampling),
                "negative": self.negative.strip(),
                "lantern": relaxed,
                "noise_version": NOISE_VERSION,
            }
        )

    def path(self, folder: Path, prompt: str) -> Path:
        """Where a prompt's image lies in the folder."""
        return folder / ("-".join(filter(None, (slug(prompt), digest(prompt)))) + ".png")

    def find(self, folder: Path, prompt: str) -> Picture | None:
        """The image of a prompt if it is in the folder; None if it is not, or is damaged, or was saved anew without what it carried."""
        path = self.path(folder, prompt)
        try:
            saved = read_settings(path)
            codes = torch.tensor(saved["tokens"], dtype=torch.long)
            figures = dict(saved["figures"])
        except (AdtError, KeyError, TypeError, ValueError):
            return None
        sound = saved.get("prompt") == prompt and tuple(codes.shape) == tuple(self.target.grid)
        return Picture(prompt, path, codes, figures) if sound and is_whole(path) else None

    def start(self, prompts: list[str], at_once: int, check: Check | None = None) -> Decoding:
        """A decoding of these prompts, so many images at once."""
        negatives = [self.target.encode_prompt(self.negative)] * len(prompts) if self.negative.strip() else None
        return Decoding(
            self.target,
            [self.target.encode_prompt(prompt) for prompt in prompts],
            negatives=negatives,
            sampling=self.sampling,
            drafting=self.drafting,
            drafter=self.drafter,
            lantern=self.lantern,
            at_once=at_once,
            check=check,
        )

    def run(
        self, decoding: Decoding, prompts: list[str], folder: Path, check: Check | None = None
    ) -> Iterator[list[tuple[Picture, Tensor]]]:
        """Decode to the end, and write each image as soon as its last token is decided.

        Yields once a round: the images that it finished, each with its pixels [1, 3, H, W] in [-1, 1]. decoding: what :meth:`start` gave for
        ``prompts``. Raises AdtError if an image can't be written.
        """
        open_images = dict(enumerate(prompts))
        with closing(iter(decoding)) as rounds:
            for _ in rounds:
                done = [image for image in open_images if decoding.codes[image, -1] >= 0]
                yield [self._keep(decoding, image, open_images.pop(image), folder, check) for image in done]

    def _keep(
        self, decoding: Decoding, image: int, prompt: str, folder: Path, check: Check | None
    ) -> tuple[Picture, Tensor]:
        codec, codes = self.target.codec, decoding.grid_codes()[image].clone()
        pixels = codec.decode(codes[None].to(codec.codebook.device), check=check)
        figures = {
            name: value
            for name, value in decoding.trace.part([image]).report().items()
            if name not in ("sampling", "drafting", "lantern")
        }
        figures |= {"drafter": self._drafter_name, "images_at_once": decoding.at_once}
        path = self.path(folder, prompt)
        try:
            save_png(
                path, pixels[0], {**self.settings(prompt), "figures": figures, "tokens": codes.tolist()}, self.texts
            )
        except OSError as error:
            raise AdtError(
                f"'{path}' can't be written ({error.strerror}); make room or give access to the folder, and start the batch again: "
                "what is finished is kept."
            ) from error
        return Picture(prompt, path, codes, figures), pixels

    def settings(self, prompt: str) -> dict:
        """What makes an image what it is, by the names of the options of ``generate``."""
        relaxed = self.lantern
        lantern = (
            {
                "lantern_k": relaxed.neighbours,
                "lantern_delta": relaxed.delta if relaxed.factor is None else None,
                "lantern_lambda": relaxed.factor,
                "max_substitution": relaxed.max_substitution,
            }
            if relaxed
            else {}
        )
        drafter = {"drafter": self._drafter_name} if self.drafter is not None else {}
        side = self.target.downsample
        size = [self.target.grid[1] * side, self.target.grid[0] * side] if self.target.usual_grid else None
        return {
            "prompt": prompt,
            "negative": self.negative.strip(),
            "model": self.target.name,
            **drafter,
            "dtype": self._dtype,
            "weights": self.target.decoder.weights,
            "size": size,
            **asdict(self.sampling),
            "image_index": 0,
            **asdict(self.drafting),
            **lantern,
            "noise_version": NOISE_VERSION,
            "versions": {"adt-tree": VERSION, "torch": torch.__version__},
        }

    @property
    def _dtype(self) -> str:
        return str(self.target.decoder.dtype).removeprefix("torch.")

    @property
    def _drafter_name(self) -> str:
        return self.drafter_name + (WITH_WINDOW if isinstance(self.drafter, MergedDrafter) else "")


def fingerprint(module: nn.Module) -> str:
    """Tells the weights of modules apart by some numbers of every parameter and every buffer but counters."""
    values = [*module.parameters(), *(buffer for buffer in module.buffers() if buffer.is_floating_point())]
    numbers = torch.cat([value.detach().flatten()[:64].to("cpu", torch.float32) for value in values])
    return hashlib.sha256(numbers.numpy().tobytes()).hexdigest()[:12]
