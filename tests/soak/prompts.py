"""Conversion of requests to prompts in ComfyUI's API format, and mistakes in such prompts."""

from __future__ import annotations

from collections.abc import Callable

from convert import Graph

from adt_core.drafters import WITH_WINDOW
from adt_core.policies import options

from .mix import NETWORK, Request
from .models import BUNDLED, MIDDLE, SMALL, WITH_TEXT_ENCODER, drafter_name

LOADER = "ADTTreeModelLoader"
SETTINGS = "ADTTreeSettings"
SAMPLER = "ADTTreeSampler"
DEFAULTS = {name: option.default if option.choices else 0 for name, option in options().items()}
"""Input values of the Settings node."""
COLOURS = (0x336699, 0xC02020, 0x10A040)
SIDES = {SMALL: 32, MIDDLE: 48, WITH_TEXT_ENCODER: 64, BUNDLED: 128}  # model -> edge of its images, in pixels


def graph_of(request: Request) -> Graph:
    """Return the prompt of a request, including its mistake."""
    loader = {"class_type": LOADER, "inputs": {"model": request.model, "dtype": request.dtype}}
    graph = Graph({"1": loader})
    common = {
        "model": graph.link(LOADER),
        "settings": graph.add(SETTINGS, **DEFAULTS | request.drafting),
        **_drafter(graph, request),
        **_lantern(graph, request),
        **{name.removesuffix("_scale"): value for name, value in request.sampling.items()},
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
    rule = "delta (LANTERN)" if request.lantern.factor is None else "factor (LANTERN++)"
    given = {name: value for name, value in vars(request.lantern).items() if value is not None}
    return {"lantern": graph.add("ADTTreeLANTERN", **{"factor": 2.0} | given, rule=rule)}


def _conditioning(graph: Graph, request: Request) -> dict:
    """Add the prompt and the negative prompt."""
    texts = {"positive": request.prompts[0], "negative": request.negative}
    return {name: graph.add("CLIPTextEncode", clip=graph.link(LOADER, 1), text=text) for name, text in texts.items()}


def _images(graph: Graph, request: Request, common: dict) -> None:
    """Add the sampler. Save its images, and save its tokens as a latent."""
    vae = graph.link(LOADER, 2)
    if request.kind == "continue":
        side = SIDES[request.model]
        colour = COLOURS[request.number % len(COLOURS)]
        image = graph.add("EmptyImage", width=side, height=side, batch_size=1, color=colour)
        common = common | {"latent_image": graph.add("VAEEncode", pixels=image, vae=vae), "keep_top": request.keep}
    samples = graph.add(SAMPLER, **common, **_conditioning(graph, request), batch_size=request.batch)
    graph.add("SaveImage", images=graph.add("VAEDecode", samples=samples, vae=vae), filename_prefix="soak")
    graph.add("SaveLatent", samples=samples, filename_prefix="soak")


def _list(graph: Graph, request: Request, common: dict) -> None:
    """Add the batch sampler and its report."""
    text = {"file": "(the text below)", "text": "\n".join(request.prompts), "caption": "first", "filter": ""}
    prompts = graph.add("ADTTreePrompts", **text, start_index=0, count=10, shuffle_seed=0)
    batch = {"prompts": prompts, "ids": [prompts[0], 1], "negative": request.negative, "batch_size": request.batch}
    node, _ = graph.add("ADTTreeBatchSampler", **common, **batch)
    sheet_inputs = {"results": [node, 2], "filename": "soak", "columns": 0, "thumbnail_width": 64, "label": "id"}
    sheet = graph.add("ADTTreeBatchReport", **sheet_inputs)
    graph.add("PreviewImage", images=sheet)


def _compare(graph: Graph, request: Request, common: dict) -> None:
    """Add the compare node and its outputs."""
    common["settings_a"] = common.pop("settings")
    node, _ = graph.add("ADTTreeCompare", **common, **_conditioning(graph, request))
    for output in range(3):
        graph.add("PreviewImage", images=[node, output])
    graph.add("PreviewAny", source=[node, 3])


NODES: dict[str, Callable[[Graph, Request, dict], None]] = {"list": _list, "compare": _compare}
"""Kind of request -> function that adds its nodes. All other kinds use :func:`_images`."""


def _other_drafter(graph: Graph, request: Request) -> None:
    other = MIDDLE if request.model == SMALL else SMALL
    drafter = graph.add("ADTTreeDrafterLoader", model=graph.link(LOADER), drafter=drafter_name(other), window=False)
    graph.set(SAMPLER, drafter=drafter)


def _foreign_latent(graph: Graph, request: Request) -> None:
    graph.set(SAMPLER, latent_image=graph.add("EmptyLatentImage", width=64, height=64, batch_size=1))


MISTAKES: dict[str, tuple[str, Callable[[Graph, Request], object]]] = {
    "no text": ("prompt", lambda graph, _: graph.set("CLIPTextEncode", text=" ")),
    "a long prompt": ("shorten it", lambda graph, _: graph.set("CLIPTextEncode", text="long " * 200)),
    "the drafter of another model": ("drafter", _other_drafter),
    "a foreign latent": ("latent_image", _foreign_latent),
    "no such method": ("magic", lambda graph, _: graph.set(SETTINGS, method="magic")),
    "guidance that is no number": ("guidance", lambda graph, _: graph.set(SAMPLER, guidance=float("nan"))),
    "no such model": ("no such model", lambda graph, _: graph.set(LOADER, model="no such model")),
}
"""Mistake -> (words of the error message, function that adds the mistake to a prompt)."""
