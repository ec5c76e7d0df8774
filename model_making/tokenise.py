"""Stage 3: the caption tokenizer, and every image as codes.

    python -m model_making.tokenise --data DIR --codec DIR/codec.pt --out DIR

writes ``tokenizer.json`` (byte-level BPE, so that any prompt can be read) and ``tokens.npz`` with ``codes``
(uint16 [count, 256]) and ``captions`` (int16 [count, longest], -1 padded).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from adt_core.models.vq import VQModel

from .codec import CONFIG


def train_tokenizer(captions: list[str], size: int = 640) -> Tokenizer:
    """Byte-level BPE of ``size`` tokens; the captions' words become single tokens, anything else falls to pieces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(captions, trainer)
    return tokenizer


@torch.inference_mode()
def encode_images(model: VQModel, images: np.ndarray, batch: int = 64) -> np.ndarray:
    codes = []
    for start in range(0, len(images), batch):
        pixels = torch.from_numpy(np.array(images[start : start + batch])).permute(0, 3, 1, 2) / 127.5 - 1
        codes.append(model.encode(pixels).flatten(1).to(torch.uint16).numpy())
    return np.concatenate(codes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--codec", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    captions = (args.data / "captions.txt").read_text().splitlines()
    tokenizer = train_tokenizer(captions)
    tokenizer.save(str(args.out / "tokenizer.json"))
    encoded = [encoding.ids for encoding in tokenizer.encode_batch(captions, add_special_tokens=False)]
    table = np.full((len(encoded), max(map(len, encoded))), -1, np.int16)
    for row, ids in zip(table, encoded):
        row[: len(ids)] = ids
    model = VQModel(CONFIG)
    model.load_state_dict(torch.load(args.codec, weights_only=True)["weights"])
    codes = encode_images(model.eval(), np.load(args.data / "images.npy", mmap_mode="r"))
    np.savez(args.out / "tokens.npz", codes=codes, captions=table)
    print(f"{len(codes)} images, longest caption {table.shape[1]} tokens, {len(np.unique(codes))} codes in use")


if __name__ == "__main__":
    main()
