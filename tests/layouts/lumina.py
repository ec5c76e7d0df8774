"""Small random checkpoint in Lumina-mGPT's layout.

The layout follows the conversion script and the model classes in github.com/Alpha-VLLM/Lumina-mGPT (lumina_mgpt/model):

- The tensors have Chameleon's names. The norms of q and k have the shape [model_parallel_size = 1, head_dim].
- config.json has another architecture name than Chameleon, and the fields ``z_loss_weight``, ``mask_image_logits`` and
  ``dropout``.
- The checkpoint includes Chameleon's VQGAN, but not the VQGAN's decoder. The complete VQGAN is in a separate file,
  Meta's vqgan.ckpt. Its ``state_dict`` also has tensors ``loss.*`` of a discriminator.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.tiny import write_tiny_checkpoint


def write_lumina(folder: Path, *, size_tokens: int = 25, **shape) -> Path:
    """Write a random target in two files, with ``vqgan.ckpt`` in the folder above it.

    Args:
        size_tokens: Number of tokens that state a width or a height. 25 are enough for 0 to 768 pixels.
        **shape: Options of ``write_tiny_checkpoint``.
    """
    write_tiny_checkpoint(folder, **{"codes": 40, "resolution": 64, "max_positions": 3000, "downsample": 16, **shape})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "model.safetensors")
    vocabulary = config["vocabulary_map"]
    for name in ["<reserved08799>", *(f"<reserved{8800 + n:05}>" for n in range(size_tokens))]:
        vocabulary[name] = len(vocabulary)
    generator = torch.Generator().manual_seed(9)
    added = len(vocabulary) - config["vocab_size"]
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = torch.randn(added, config["hidden_size"], generator=generator) * tensors[name].std()
        tensors[name] = torch.cat([tensors[name], rows])
    for name in [name for name in tensors if "_norm." in name and "self_attn" in name]:
        tensors[name] = tensors[name][:1].clone()
    prefix = "model.vqmodel."
    codec = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    tensors = {name: value for name, value in tensors.items() if not name.startswith(f"{prefix}decoder.")}
    codec["loss.discriminator.main.0.weight"] = torch.zeros(4, 3, 4, 4)
    torch.save({"state_dict": codec}, folder.parent / "vqgan.ckpt")
    (folder / "model.safetensors").unlink()
    save_shards(folder, tensors, 2)
    config |= {"architectures": ["ChameleonXLLMXForConditionalGeneration"], "vocab_size": len(vocabulary)}
    config |= {"model_parallel_size": 1, "z_loss_weight": 0.0, "mask_image_logits": False, "dropout": 0.0}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def save_shards(folder: Path, tensors: dict[str, torch.Tensor], shards: int, is_pickled: bool = False) -> None:
    """Write ``model-0000i-of-0000n.safetensors`` files or pickles, and their index, as ``save_pretrained`` does."""
    stem, suffix = ("pytorch_model", ".bin") if is_pickled else ("model", ".safetensors")
    names = sorted(tensors)
    files: dict[str, str] = {}
    for i in range(shards):
        file = f"{stem}-{i + 1:05}-of-{shards:05}{suffix}"
        part = {name: tensors[name].contiguous() for name in names[i::shards]}
        if is_pickled:
            torch.save(part, folder / file)
        else:
            save_file(part, folder / file, metadata={"format": "pt"})
        files |= dict.fromkeys(part, file)
    total = sum(value.nbytes for value in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (folder / f"{stem}{suffix}.index.json").write_text(json.dumps(index), encoding="utf-8")


def share_norms(folder: Path) -> None:
    """Reduce the q and k norms of a drafter to [1, head_dim], the shape in LANTERN's drafter for Lumina-mGPT."""
    tensors = load_file(folder / "model.safetensors")
    norms = {name: value[:1].clone() for name, value in tensors.items() if "self_attn" in name and "_norm." in name}
    save_file(tensors | norms, folder / "model.safetensors")
