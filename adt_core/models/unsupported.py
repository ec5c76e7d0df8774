"""Errors for files that users choose by mistake.

Each message names the kind of file that the user has chosen, and the file to choose instead.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import AdtError, shown
from ..files import list_visible
from .families.chameleon import ANOLE
from .family import model_type
from .reading.checkpoint import Checkpoint
from .reading.paths import STAGE

_NO_WEIGHTS = {
    "model.is_image": (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    "model.is_text": (".json", ".txt", ".md", ".yaml", ".yml", ".py", ".jinja"),
}
"""Files without weights in the folders of models, which users may choose: key of the error -> suffixes."""
_OTHER_CHECKPOINTS = (
    (r"[._]lora_(A|B|up|down|magnitude_vector)\b|^(base_model\.|lora_)|\.(hada_w1_a|lokr_w1)$", "model.adapter"),
    (r"^(first_stage_model|conditioner|cond_stage_model|model\.diffusion_model)\.", "model.diffusion_checkpoint"),
    (r"^(input_blocks|down_blocks|(double|joint|transformer|single_transformer)_blocks)\.\d", "model.diffusion"),
    (r"^quantize\.embedding", "model.image_decoder"),
    (r"^(encoder\.down|decoder\.up)(_blocks)?\.\d", "model.vae"),
    (r"^(text_model\.encoder|encoder\.block\.\d+\.layer)\.", "model.text_encoder"),
)
"""Kinds of checkpoints that are not targets.

Each item contains a pattern and the key of the error. A checkpoint is of this kind if the pattern matches the
name of at least one of its tensors."""
_UNSUPPORTED_MODELS = {"xomni": "model.x_omni", "blip3o": "model.blip3o"}
"""Unsupported models that generate image tokens: part of a name -> key of the error.

A checkpoint belongs to such a model if the name of its folder or of its architecture contains the part of the name."""

_EAGLE3 = re.compile(r"(^|\.)(midlayer\.|layers\.0\.hidden_norm\.|(d2t|t2d)$)")
"""Pattern of tensor names in EAGLE-3 drafters, as saved by EAGLE-3's authors, SpecForge and vLLM."""


def refuse_layout(path: Path) -> None:
    """Raise an AdtError if a path is a file of a known but unsupported kind, or a folder of such files."""
    names = {path.name} if path.is_file() else {file.name for file in list_visible(path, "*")}
    key = next((key for key, suffixes in _NO_WEIGHTS.items() if path.suffix.lower() in suffixes), None)
    if key is not None and path.is_file():
        raise AdtError(key, path=path)
    if "model_index.json" in names:
        raise AdtError("model.diffusers", path=path)
    if any(name.lower().endswith(".gguf") for name in names):
        raise AdtError("model.gguf", path=path)
    if any(name.lower().endswith(".onnx") for name in names) or any(path.glob("onnx/*.onnx")):
        raise AdtError("model.onnx", path=path)
    is_nested = path.is_dir() and any(path.glob("models/*/consolidated*.pth"))
    if is_nested or any(name.startswith("consolidated") and name.endswith(".pth") for name in names):
        raise AdtError("model.meta", path=path, command=ANOLE.command(path.parent))


def refuse_kind(checkpoint: Checkpoint) -> None:
    """Raise an AdtError if a checkpoint is of a known kind that is not a target, such as a drafter."""
    path = checkpoint.path
    part = checkpoint.config.get("_class_name")
    refuse_eagle3(checkpoint, str(path))
    if "fc.weight" in checkpoint.names and any(name.startswith("layers.0.") for name in checkpoint.names):
        raise AdtError("model.is_drafter", path=path)
    model_name = re.sub("[^a-z0-9]", "", f"{model_type(checkpoint.config)} {checkpoint.name}".lower())
    key = next((key for name, key in _UNSUPPORTED_MODELS.items() if name in model_name), None)
    if key is not None:
        raise AdtError(key, path=path)
    if part is not None:
        if (path.parent / STAGE).is_dir():
            raise AdtError("model.part", path=path, part=shown(part), folder=path.parent)
        raise AdtError("model.part_of_diffusion", path=path, part=shown(part))
    for pattern, key in _OTHER_CHECKPOINTS:
        if any(re.search(pattern, name) for name in checkpoint.names):
            raise AdtError(key, path=path)


def refuse_eagle3(checkpoint: Checkpoint, called: str) -> None:
    """Raise an AdtError if a checkpoint is a drafter of EAGLE-3 (arXiv 2503.01840).

    An EAGLE-3 drafter reads the features of three layers of its target, so its weight ``fc`` is [h, 3 * h], where h is
    the length of a feature. Some EAGLE-3 drafters draft only a part of the vocabulary.

    Args:
        called: Name of the checkpoint in the error message.
    """
    fc = checkpoint["fc.weight"].shape if "fc.weight" in checkpoint.names else ()
    is_wide = len(fc) == 2 and fc[1] == 3 * fc[0]
    if is_wide or any(map(_EAGLE3.search, checkpoint.names)):
        raise AdtError("drafter.eagle3", called=called)
