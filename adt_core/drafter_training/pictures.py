"""What a drafter is trained on: captions, and the codes of their pictures, drawn by the target or encoded from files.

Codes are kept in ``codes.npy``, int32 [pictures, tokens], -1 where nothing is decided yet, so that making them can be interrupted at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ..app.continuation import open_picture, to_pixels
from ..app.prompts import read_prompts, sample
from ..engine.decoding import Decoding
from ..errors import AdtError
from ..models.target import Target
from ..policies.shape import Drafting
from ..rules.sampling import Sampling

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")

Check = Callable[[], None]


class Pictures:
    """Captions and codes; the first ``held_out`` pictures are for measuring, the rest for training."""

    def __init__(self, path: Path, prompts: list[str], length: int, held_out: int):
        """Open or begin the file of codes at ``path`` for pictures of ``length`` tokens, one per prompt."""
        self.prompts, self.held_out = prompts, held_out
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            made = np.lib.format.open_memmap(path, "w+", np.int32, (len(prompts), length))
            made[:] = -1
            made.flush()
        self._codes = np.lib.format.open_memmap(path, "r+")
        if self._codes.shape != (len(prompts), length):
            raise AdtError(
                f"{path} holds {self._codes.shape[0]} pictures of {self._codes.shape[1]} tokens, but {len(prompts)} of {length} are needed; "
                "delete it, or name another --output."
            )

    def __len__(self) -> int:
        return len(self.prompts)

    def missing(self) -> list[int]:
        """Numbers of the pictures that are yet to be made."""
        return np.flatnonzero((self._codes < 0).any(1)).tolist()

    def put(self, numbers: list[int], codes: Tensor) -> None:
        """Enter the codes [len(numbers), tokens] of some pictures."""
        self._codes[numbers] = codes.numpy()
        self._codes.flush()

    def codes(self, numbers: list[int]) -> Tensor:
        """Codes [len(numbers), tokens] int64 of some pictures."""
        return torch.from_numpy(self._codes[numbers].astype(np.int64))


def share_prompts(prompts: list[str], pictures: int, held_out: int, seed: int) -> list[str]:
    """One prompt per picture, in an order that ``seed`` fixes: ``held_out`` of them come first and are used once, the others over and over."""
    prompts = sample(prompts, len(prompts), seed)
    rest = prompts[held_out:]
    return prompts[:held_out] + [rest[i % len(rest)] for i in range(pictures)]


def draw(pictures: Pictures, target: Target, sampling: Sampling, batch: int, check: Check | None = None) -> None:
    """Let the target draw what is missing, ``batch`` pictures at once: picture i is image i of the seed's noise.

    Plain decoding: with many pictures at once the target's forwards are full anyway, and there is nothing for drafts to win.
    """
    missing = pictures.missing()
    with tqdm(
        total=len(missing), unit=" pictures", desc="drawing", disable=not missing, mininterval=0.5, leave=False
    ) as bar:
        for start in range(0, len(missing), batch):
            numbers = missing[start : start + batch]
            rows = [target.encode_prompt(pictures.prompts[i]) for i in numbers]
            decoding = Decoding(
                target,
                rows,
                sampling=sampling,
                drafting=Drafting(method="autoregressive"),
                image_indices=numbers,
                check=check,
            )
            for _ in decoding:
                pass
            pictures.put(numbers, decoding.codes)
            bar.update(len(numbers))


def find_captioned(folder: Path) -> tuple[list[Path], list[str]]:
    """The pictures of a folder and their captions: ``NAME.jpg`` or ``.png`` or ``.webp`` beside ``NAME.txt``. Raises AdtError."""
    if not folder.is_dir():
        raise AdtError(f"--images: '{folder}' is not a folder; give one of pictures with captions, 1.jpg beside 1.txt.")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise AdtError(
            f"--images: '{folder}' holds no {', '.join(SUFFIXES)}; give a folder of pictures with captions, 1.jpg beside 1.txt."
        )
    captions = []
    for path in paths:
        try:
            captions.append(path.with_suffix(".txt").read_text(encoding="utf-8-sig").strip())
        except (OSError, UnicodeDecodeError):
            captions.append("")
        if not captions[-1]:
            raise AdtError(
                f"--images: '{path}' has no caption; write what it shows into {path.with_suffix('.txt').name} beside it."
            )
    return paths, captions


def encode(pictures: Pictures, paths: list[Path], target: Target, check: Check | None = None) -> None:
    """Encode the missing pictures from their files, each cut to the model's shape in its middle."""
    missing = pictures.missing()
    height, width = (side * target.downsample for side in target.grid)
    for number in tqdm(missing, unit=" pictures", desc="encoding", disable=not missing, mininterval=0.5, leave=False):
        if check is not None:
            check()
        picture = open_picture(paths[number], "--images", "take it out or save it anew")
        with torch.inference_mode():
            codes = target.codec.encode(to_pixels(picture, height, width))
        pictures.put([number], target.tokens(codes.flatten(1).cpu()))


def prompts_of(path: str | Path) -> list[str]:
    """The prompts of a file, each once, in their order. Raises AdtError."""
    return list(dict.fromkeys(read_prompts(path)))
