"""Small random models of all families, with the names of the published models in the workflow templates."""

from pathlib import Path

from tests.tiny import write_tiny_checkpoint

from .emu3 import write_emu3
from .glm_image import CODES, write_glm_image
from .glm_pixels import write_pixels
from .janus import write_janus
from .liquid import write_liquid
from .llamagen import write_hugging_face
from .lumina import write_lumina
from .lumina2 import write_lumina2

LUMINA = "Lumina-mGPT-7B-768"


def write_published(folder: Path) -> None:
    """Write a model of each family into a folder of models such as ``models/ar_image``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tiny_checkpoint(folder / "Anole-7b-v0.1-hf")
    write_lumina(folder / LUMINA)
    write_lumina2(folder / "Lumina-mGPT-2.0")
    write_hugging_face(folder).rename(folder / "LlamaGen-T2I-2")
    write_janus(folder / "Janus-Pro-1B")
    write_emu3(folder / "Emu3-Gen-hf")
    write_liquid(folder / "Liquid_V1_7B")
    write_pixels(write_glm_image(folder / "GLM-Image"), CODES)
