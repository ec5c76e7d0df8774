"""Stage 3: make the caption tokenizer and encode the images.

    python -m model_making.tokenise --data DIR --out DIR [--codec DIR/codec.safetensors]

writes ``tokenizer.json`` and ``codes.npy`` (uint16 [images, 256 tokens]). Without ``--codec``, the bundled model's
codec encodes the images.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from adt_core import load_target
from adt_core.lab.training import training_state
from adt_core.models.vq import VQModel

from .captions import UNKNOWN, vocabulary
from .codec import CONFIG


def make_tokenizer() -> Tokenizer:
    """Return a tokenizer with one token for each word of the captions. All other words become the unknown token."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary())}, UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("removed")]
    )
    return tokenizer


def open_codec(file: Path | None) -> VQModel:
    """Load the codec of stage 2 from `file`. If `file` is None, load the bundled model's codec."""
    if file is None:
        return load_target().codec
    model = VQModel(CONFIG)
    model.load_state_dict(training_state.read(file)["weights"])
    return model.eval()


@torch.inference_mode()
def encode_images(model: VQModel, images: np.ndarray, batch: int = 64) -> np.ndarray:
    """Encode images.

    Args:
        images: [count, H, W, 3] uint8.
        batch: Number of images per forward pass.

    Returns:
        [count, tokens] uint16 codes.
    """
    codes = []
    for start in range(0, len(images), batch):
        pixels = torch.from_numpy(np.array(images[start : start + batch])).permute(0, 3, 1, 2) / 127.5 - 1
        codes.append(model.encode(pixels).flatten(1).to(torch.uint16).numpy())
    return np.concatenate(codes)


def main() -> None:
    """Write tokenizer and codes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of stage 1")
    parser.add_argument("--codec", type=Path, help="codec.safetensors of stage 2")
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    make_tokenizer().save(str(args.out / "tokenizer.json"))
    codes = encode_images(open_codec(args.codec), np.load(args.data / "images.npy", mmap_mode="r"))
    np.save(args.out / "codes.npy", codes)
    print(f"{len(codes)} images, {len(np.unique(codes))} codes in use")


if __name__ == "__main__":
    main()
