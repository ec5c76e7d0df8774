"""What can be downloaded, from where: models that this version reads, what belongs beside them, and drafters.

All are repositories on Hugging Face. Sizes that nobody states are computed from the number of weights, and say "about".
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..errors import pip_install

PLACE = Path("models/ar_image")
"""Where models belong in ComfyUI's folder."""
_CHAMELEON = "Chameleon's, for research"


class Download(NamedTuple):
    """A repository, or some ``files`` of it.

    size: in words. folder: where it belongs below the folder of the models, "" for that one itself.
    """

    repository: str
    size: str
    licence: str
    folder: str
    files: tuple[str, ...] = ()

    def command(self, home: Path) -> str:
        """What fetches it, to be copied to a terminal. It goes on where it stopped. home: the folder of the models."""
        place = (home / self.folder).as_posix()
        place = f'"{place}"' if " " in place else place
        return " ".join(["hf download", self.repository, *self.files, "--local-dir", place])


class Published(NamedTuple):
    """A published model: a row of the table in docs/models.md, and a name in the loader's list.

    name: of its folder or file in ``models/ar_image``. downloads: all that it needs. pixels: per side of its images.
    memory: with weights in bfloat16 / int8. drafter: that was trained for it. libraries: packages it needs besides.
    """

    name: str
    downloads: tuple[Download, ...]
    pixels: str
    memory: str
    drafter: Download | None = None
    libraries: str = ""

    def how_to_get(self, home: Path = PLACE) -> str:
        """What to run, how large it is, and under which licence, as an order that ends a sentence."""
        steps = [f"`{one.command(home)}` ({one.size}; licence: {one.licence})" for one in self.downloads]
        steps += [f"`{pip_install(self.libraries)}`"] if self.libraries else []
        return f"run {', then '.join(steps)}"


ANOLE = Download("leloy/Anole-7b-v0.1-hf", "about 14 GB", _CHAMELEON, "Anole-7b-v0.1-hf")
CHAMELEON_CODEC = Download("leloy/Anole-7b-v0.1-vqvae-hf", "0.3 GB", _CHAMELEON, "Anole-7b-v0.1-vqvae-hf")
ANOLE_DRAFTER = Download("jadohu/anole_drafter", "about 1 GB in half precision", _CHAMELEON, "anole_drafter")


def lumina(version: str) -> Download:
    """Lumina-mGPT of 7B. version: "768", "768-Omni" and so on."""
    name = f"Lumina-mGPT-7B-{version}"
    return Download(f"Alpha-VLLM/{name}", "14 GB", "not stated; it builds on Chameleon, which is for research", name)


def lumina_tokenizer(folder: str) -> Download:
    """The tokenizer of all Lumina-mGPT. Only one of the repositories has it."""
    return lumina("768")._replace(size="6 MB", folder=folder, files=("tokenizer.json",))


LUMINA_DRAFTER = Download(
    "sihwanpark/LANTERN-Lumina-mGPT-7B-768",
    "about 1 GB in half precision",
    "Apache 2.0",
    "LANTERN-Lumina-mGPT-7B-768",
)
LLAMAGEN_CODEC = Download("peizesun/llamagen_t2i", "about 0.3 GB", "MIT", "", ("vq_ds16_t2i.pt",))
FLAN_T5_XL = Download(
    "google/flan-t5-xl",
    "about 11 GB",
    "Apache 2.0",
    "flan-t5-xl",
    (
        "config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ),
)
LLAMAGEN_DRAFTERS = tuple(
    Download(f"jadohu/{name}", "about 0.1 GB", _CHAMELEON, name) for name in ("llamagen_drafter", "llamagen2_drafter")
)


def llamagen(name: str) -> Download:
    """The transformer of LlamaGen: the authors' file, or the folder that LANTERN made of it."""
    if name.endswith(".pt"):
        return LLAMAGEN_CODEC._replace(size="about 3 GB", files=(name,))
    return Download(f"jadohu/{name}", "about 3 GB", "MIT", name)


def janus(size: str) -> Download:
    """Janus-Pro in transformers' layout. size: "1B" or "7B"."""
    name, size = f"Janus-Pro-{size}", {"1B": "about 4 GB", "7B": "about 15 GB"}[size]
    return Download(f"deepseek-community/{name}", size, "DeepSeek's model licence", name)


EMU3 = Download("BAAI/Emu3-Gen-hf", "about 18 GB, or 35 in float32", "Apache 2.0", "Emu3-Gen-hf")
