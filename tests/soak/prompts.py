"""Requests as prompts in ComfyUI's API format, and what makes a prompt one that can't be had."""

from __future__ import annotations

from collections.abc import Callable

from convert import Graph

from adt_core.drafters import WITH_WINDOW
from adt_core.policies import options

from .mix import NETWORK, Request
from .models import BUNDLED, MIDDLE, SMALL, WITH_TEXT_ENCODER, drafter_name

LOADER, SETTINGS, SAMPLER = "ADTTreeModelLoader", "ADTTreeSettings", "ADTTreeSampler"
DEFAULTS = {name: option.default if option.choices else 0 for name, option in options().items()}
"""Of the Settings node."""
COLOURS = 0x336699, 0xC02020, 0x10A040
SIDES = {SMALL: 32, MIDDLE: 48, WITH_TEXT_ENCODER: 64, BUNDLED: 128}
"""Pixels of a picture's side."""


def graph_of(request: Request) -> Graph:
    """The prompt of a request, with the mistake in it."""
    loader = {"class_type": LOADER, "inputs": {"model": request.model, "dtype": request.dtype}}
    graph = Graph({"1": loader})
    common = {
        "model": graph.link(LOADER),
        "settings": graph.add(SETTINGS, **DEFAULTS | request.drafting),
        **_drafter(graph, request),
        **_lantern(graph, request),
        **request.sampling,
    }
    NODES.get(request.kind, _images)(graph, request, common)
    if request.mistake:
        MISTAKES[request.mistake][1](graph, request)
    return graph


def _drafter(graph: Graph, request: Request) -> dict:
    if request.drafter is None:
        return {}
    name = drafter_name(request.model) if request.drafter.startswith(NETWORK) else request.drafter
    window = request.drafter.endswith(WITH_WINDOW)
    return {"drafter": graph.add("ADTTreeDrafterLoader", model=graph.link(LOADER), drafter=name, window=window)}


def _lantern(graph: Graph, request: Request) -> dict:
    if request.lantern is None:
        return {}
    rule = "delta (LANTERN)" if request.lantern.factor is None else "lambda (LANTERN++)"
    return {"lantern": graph.add("ADTTreeLantern", **{"factor": 2.0} | _chosen(request.lantern), rule=rule)}


def _chosen(lantern) -> dict:
    return {name: value for name, value in vars(lantern).items() if value is not None}


def _rows(graph: Graph, request: Request) -> dict:
    """The prompt and the negative one."""
    texts = {"positive": request.prompts[0], "negative": request.negative}
    return {name: graph.add("CLIPTextEncode", clip=graph.link(LOADER, 1), text=text) for name, text in texts.items()}


def _images(graph: Graph, request: Request, common: dict) -> None:
    """The sampler; its images are saved, and its tokens as a latent."""
    vae = graph.link(LOADER, 2)
    if request.kind == "continue":
        side = SIDES[request.model]
        colour = COLOURS[request.number % len(COLOURS)]
        picture = graph.add("EmptyImage", width=side, height=side, batch_size=1, color=colour)
        common = common | {"latent_image": graph.add("VAEEncode", pixels=picture, vae=vae), "keep": request.keep}
    samples = graph.add(SAMPLER, **common, **_rows(graph, request), batch_size=request.batch)
    graph.add("SaveImage", images=graph.add("VAEDecode", samples=samples, vae=vae), filename_prefix="soak")
    graph.add("SaveLatent", samples=samples, filename_prefix="soak")


def _list(graph: Graph, request: Request, common: dict) -> None:
    """The batch sampler, and the report on what it made."""
    text = {"file": "(the text below)", "text": "\n".join(request.prompts), "caption": "first", "filter": ""}
    prompts = graph.add("ADTTreePrompts", **text, start=0, count=10, shuffle=0)
    batch = {"prompts": prompts, "ids": [prompts[0], 1], "negative": request.negative, "chunk_size": request.batch}
    node, _ = graph.add("ADTTreeBatchSampler", **common, **batch)
    sheet = graph.add("ADTTreeCollector", results=[node, 2], name="soak", columns=0, thumbnail=64, label="id")
    graph.add("PreviewImage", images=sheet)


def _compare(graph: Graph, request: Request, common: dict) -> None:
    """The compare node, and what it reports."""
    common["settings_a"] = common.pop("settings")
    node, _ = graph.add("ADTTreeCompare", **common, **_rows(graph, request))
    for output in range(3):
        graph.add("PreviewImage", images=[node, output])
    graph.add("PreviewAny", source=[node, 3])


NODES: dict[str, Callable[[Graph, Request, dict], None]] = {"list": _list, "compare": _compare}
"""What is added for a kind of request; for the others it is the sampler."""


def _drafter_of_another(graph: Graph, request: Request) -> None:
    other = MIDDLE if request.model == SMALL else SMALL
    drafter = graph.add("ADTTreeDrafterLoader", model=graph.link(LOADER), drafter=drafter_name(other), window=False)
    graph.set(SAMPLER, drafter=drafter)


def _latent_of_a_stranger(graph: Graph, request: Request) -> None:
    graph.set(SAMPLER, latent_image=graph.add("EmptyLatentImage", width=64, height=64, batch_size=1))


def _no_drafter(graph: Graph, request: Request) -> None:
    graph.set(SETTINGS, method="adt-tree").inputs(SAMPLER).pop("drafter", None)


MISTAKES: dict[str, tuple[str, Callable[[Graph, Request], object]]] = {
    "no text": ("prompt", lambda graph, _: graph.set("CLIPTextEncode", text=" ")),
    "a long prompt": ("shorten it", lambda graph, _: graph.set("CLIPTextEncode", text="long " * 200)),
    "no drafter": ("needs one", _no_drafter),
    "the drafter of another model": ("drafter", _drafter_of_another),
    "the latent of a stranger": ("latent_image", _latent_of_a_stranger),
    "no such method": ("magic", lambda graph, _: graph.set(SETTINGS, method="magic")),
    "guidance that is no number": ("guidance", lambda graph, _: graph.set(SAMPLER, guidance=float("nan"))),
    "no such model": ("no such model", lambda graph, _: graph.set(LOADER, model="no such model")),
}
"""What is wrong -> words of the sentence that says so, and a function that makes a prompt wrong."""
