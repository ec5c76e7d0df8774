"""Small random models with the names of published models, on the local Hub server of tests/hub.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.torch import load, save

from adt_core.models.load import published
from tests.hub import Hub, content_of
from tests.layouts.janus import write_janus
from tests.layouts.llamagen import write_drafter, write_hugging_face

JANUS = "Janus-Pro-1B"
LLAMAGEN = "LlamaGen-T2I-2"


def publish(hub: Hub, folder: Path) -> None:
    """Publish a Janus-Pro model, and a LlamaGen model with its drafter.

    The parts of the LlamaGen model (target, codec and text encoder) are in three repositories.

    Args:
        folder: Folder for temporary files. It must not exist yet.
    """
    janus = content_of(write_janus(folder / JANUS))
    hub.repositories[f"deepseek-community/{JANUS}"] = {**janus, "README.md": b"# Janus-Pro"}
    hub.repositories[f"jadohu/{LLAMAGEN}"] = content_of(write_hugging_face(folder))
    codec = (folder / "vq_ds16_t2i.pt").read_bytes()
    hub.repositories["peizesun/llamagen_t2i"] = {"vq_ds16_t2i.pt": codec, "t2i_XL_stage2_512.pt": b"not needed"}
    hub.repositories["google/flan-t5-xl"] = _in_two_files(content_of(folder / "t5" / "flan-t5-xl"))
    hub.commits = {one.repository: one.commit for row in published() for one in row.downloads if one.commit}
    hub.repositories["jadohu/llamagen2_drafter"] = content_of(write_drafter(folder / "drafter", "t2i2"))
    shutil.rmtree(folder)


def _in_two_files(t5: dict[str, bytes]) -> dict[str, bytes]:
    """Split the weights of a text encoder into two files with an index, like the published T5."""
    tensors = load(t5["model.safetensors"])
    names = sorted(tensors)
    shards = {f"model-0000{n + 1}-of-00002.safetensors": names[n::2] for n in range(2)}
    index = {"metadata": {}, "weight_map": {name: file for file, of in shards.items() for name in of}}
    return {
        **{name: content for name, content in t5.items() if name != "model.safetensors"},
        **{file: save({name: tensors[name] for name in of}) for file, of in shards.items()},
        "model.safetensors.index.json": json.dumps(index).encode(),
    }
