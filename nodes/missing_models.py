"""Downloads of published models by nodes, with progress on the node.

If other machines can reach this ComfyUI, downloads are refused unless the owner of the server allows them.
"""

import ipaddress
import logging
import math
from pathlib import Path

import comfy.model_management as mm
from comfy.cli_args import args

from ..adt_core import AdtError
from ..adt_core.app import (
    DownloadPart,
    DownloadProgress,
    download_parts,
    download_terms,
    find_parts,
    is_complete,
    kept_message,
)
from ..adt_core.environment import variable
from ..adt_core.messages import join, message
from ..adt_core.models import STAGE, Published, find_published, home_of, published_at
from . import folders
from .comfy_runtime import Progress, check_cancelled, send, tell, telling_what_is_kept

EXPLAIN, DOWNLOAD = "explain", "download"
IF_MISSING = [EXPLAIN, DOWNLOAD]
"""Values of the input `if_missing`. `EXPLAIN`: raise an error with instructions. `DOWNLOAD`: download the model."""
ALLOWED = "ADT_TREE_ALLOW_DOWNLOAD"
"""Environment variable that allows downloads on a server that other machines can reach."""
_EVENT = "adt_tree.models"
_FITS = ("", "int8", "int4")
_TOO_LARGE = "no"
_TITLES = {"t2i_XL_stage1_256.pt": "LlamaGen XL", "t2i_XL_stage2_512.pt": "LlamaGen XL"}
"""Readable names of models whose own names are names of files."""


def download_missing(name: str, node_id: str) -> None:
    """Download the missing files of a published model. Do nothing for other models.

    Raises:
        AdtError: If downloads are not allowed here, or the download fails.
        InterruptProcessingException: If the user has cancelled the run.
    """
    path = folders.installed(name)
    row = find_published(name) if path is None else published_at(path)
    if row is None:
        return
    is_whole = path is not None and is_complete(path)
    # An incomplete folder of another pack stays as it is: the model is downloaded to a folder of this pack.
    is_here = path is not None and (is_whole or folders.is_own(path))
    home = Path(home_of(Path(path))) if path is not None and is_here else folders.home()
    parts = find_parts(row.name, home, folders.drafters_home())
    if path is not None and is_whole:
        parts = [part for part in parts if not part.is_complete and _is_wanted(part, row, path)]
    if parts:
        fetch(parts, node_id)


def _is_wanted(part: DownloadPart, row: Published, path: str) -> bool:
    """Return whether to complete a part although the target itself is complete.

    This is the case for the published drafter, unless it is in another folder, and for GLM-Image's second stage, unless
    none of it is there: single files may replace the second stage.
    """
    if part.download == row.drafter:
        return folders.drafter_for(path) in (*folders.WITHOUT_FILES, str(part.folder))
    return any((part.folder / name).is_dir() for name in part.download.weights if name not in ("", STAGE))


def fetch(parts: list[DownloadPart], node_id: str) -> None:
    """Download parts of a published model. It raises what `download_missing` raises."""
    _refuse_shared_server(parts)
    bar: list[Progress] = []
    licence = download_terms(parts)

    def on_progress(progress: DownloadProgress) -> None:
        total = progress.total or 1
        text = join([progress.message, licence], "; ")
        if not bar or bar[0].total != total:
            bar[:] = [Progress(total, node_id, None)]
        if progress.total:
            bar[0].update(progress.done, text)
        else:
            bar[0].say(text)

    with telling_what_is_kept(lambda: kept_message(parts)):
        download_parts(parts, on_progress, check_cancelled)
    tell(message("download.done", model=parts[0].download.name), logging.INFO, is_lasting=False)
    send(_EVENT, offered_downloads(), None)


def about_models() -> dict[str, dict[str, str]]:
    """Return the data for the labels of the Model Loader's list of models, by name in the list.

    Returns:
        Name -> {"title": ..., "licence": ..., "memory": ..., "fits": ...}. `memory` is the number of GB that the model
        needs. `fits` is "yes" if that fits into the memory of the device, "int8" or "int4" if the model fits with such
        weights, "no" if it does not fit, and "" if the memory of the device is not known.
    """
    room = _room()
    about = {}
    for name in folders.offered():
        row = published_at(name)
        if row is None:
            continue
        fits = next((fits for fits, needed in zip(("yes", *_FITS[1:]), row.memory) if needed <= room), _TOO_LARGE)
        licence = row.downloads[0].licence.split(";")[0] if row.downloads else ""
        known = "" if math.isinf(room) else fits
        about[name] = {"title": _title(row), "licence": licence, "memory": f"{row.memory[0]:.0f}", "fits": known}
    return about


def _title(row: Published) -> str:
    """Return a readable name of a model, with the side of its images."""
    title = _TITLES.get(row.name) or row.name.removesuffix("-hf").removesuffix("-v0.1").replace("_", " ")
    return f"{title}, {row.pixels.split(',')[0]} px"


def _room() -> float:
    """Return the memory of the device in GiB; infinity if it is not known."""
    device = mm.get_torch_device()
    is_known = device.type != "cpu" and not mm.is_directml_enabled()
    return mm.get_total_memory(device) / 2**30 if is_known else math.inf


def offered_downloads() -> dict[str, dict[str, str]]:
    """Return the data for the labels that the page appends to the names of models that are not installed.

    Returns:
        Name -> {"size": ..., "fits": ...}. `size` is a text such as "15 GB". `fits` is "" if the model fits into the
        memory of the device, "int8" or "int4" if it fits only with such weights, and "no" if it does not fit.
    """
    room = _room()
    offered = {}
    for row in folders.downloadable():
        fits = next((fits for fits, needed in zip(_FITS, row.memory) if needed <= room), _TOO_LARGE)
        offered[row.name] = {"size": row.size, "fits": fits}
    return offered


def _refuse_shared_server(parts: list[DownloadPart]) -> None:
    """Raise AdtError if other machines can reach this ComfyUI and its owner has not allowed downloads."""
    shared = [address for address in args.listen.split(",") if not _is_loopback(address.strip())]
    if shared and variable(ALLOWED) != "1":
        raise AdtError(
            "if_missing.off",
            address=shared[0],
            variable=ALLOWED,
            command=parts[0].download.command(parts[0].home),
            terms=download_terms(parts),
        )


def _is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an address that ComfyUI listens on."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
