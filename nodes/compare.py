"""Compare node: generates the image of one prompt and seed in two ways, as run A and run B, and compares both runs."""

from dataclasses import replace
from functools import partial

from comfy_api.v0_0_2 import io
from PIL import Image
from torch import Tensor

from ..adt_core import Decoding, Lantern
from ..adt_core.policies import PLAIN, method_title
from ..adt_core.run import RAISE, race
from .clip_and_vae import ImageTokenizer, to_picture
from .comfy_runtime import Progress
from .drafting import AUTO, drafting_input
from .live_map import LiveMap, finished
from .run_stats import relaxed
from .sampling import invalid_prompts_input, prepare, preset_input, previews, sampling_inputs
from .schema import Tooltips, input_ids, schema
from .sockets import DrafterSocket, LanternSocket, LoadedDrafter, LoadedModel, ModelSocket, SettingsSocket, checked

_COMPARE_TOOLTIPS = Tooltips(
    inputs={
        "model": "The model that generates both images.",
        "seed": "Sets the noise of both images.",
        "negative": "Usually left empty. A text here pushes both images away from its content.",
        "drafter": "Drafts tokens for both images. If not connected, the node uses the first installed drafter that "
        "fits the model, or the Jacobi window, which needs no files.",
        "settings_a": "Options for drafting A. If not connected, drafting decides.",
        "settings_b": "Options for drafting B. If not connected, B uses no drafting: one token per model pass.",
        "lantern": "Relaxed acceptance for A only. A's image then differs from B's.",
        "drafting": "How A is drafted, as in the ADT-Tree Sampler. Auto is the fastest method on this device. The "
        "choices with + LANTERN change the image.",
    },
    outputs={
        "image_a": "The image that A generates.",
        "image_b": "The image that B generates.",
        "difference": "Absolute difference of A and B. Black pixels are identical.",
        "report": "Seconds, tokens per pass and speed-up of A over B as text, for Preview as Text.",
    },
)


class ADTTreeCompare(io.ComfyNode):
    # With this attribute, ComfyUI sends the acceptance map to the browser even if the node's result is cached.
    # Older versions of ComfyUI ignore the attribute.
    HAS_INTERMEDIATE_OUTPUT = True

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            "ADTTreeCompare",
            "ADT-Tree Compare",
            tooltips=_COMPARE_TOOLTIPS,
            description="Generates the image of one seed in two ways, A and B, and compares time and result. Without "
            "LANTERN the difference is black.",
            search_aliases=["compare speed", "side by side", "a/b test", "difference", "对比", "差异"],
            inputs=[
                ModelSocket.Input("model"),
                io.Conditioning.Input("positive"),
                io.Conditioning.Input("negative", optional=True),
                DrafterSocket.Input("drafter", optional=True),
                SettingsSocket.Input("settings_a", optional=True),
                SettingsSocket.Input("settings_b", optional=True),
                LanternSocket.Input("lantern", optional=True),
                *sampling_inputs(),
                preset_input(),
                drafting_input(),
                invalid_prompts_input(),
            ],
            outputs=[
                io.Image.Output(display_name="image_a"),
                io.Image.Output(display_name="image_b"),
                io.Image.Output(display_name="difference"),
                io.String.Output(display_name="report"),
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt, io.Hidden.extra_pnginfo],
        )

    @classmethod
    @checked
    def execute(
        cls,
        model: LoadedModel,
        positive: list,
        negative: list | None = None,
        drafter: LoadedDrafter | None = None,
        settings_a: dict | None = None,
        settings_b: dict | None = None,
        lantern: Lantern | None = None,
        preset: str | None = None,
        drafting: str = AUTO,
        invalid_prompts: str = RAISE,
        **sampling,
    ) -> io.NodeOutput:
        given = sampling | {"drafting": drafting, "preset": preset, "invalid_prompts": invalid_prompts}
        run = prepare(model, positive, negative, drafter=drafter, settings=settings_a, lantern=lantern, **given)
        other = run.drafted(drafter, settings=settings_b or {"method": PLAIN})
        both, trial = ([run.decoding(), other.decoding()] for _ in range(2))
        with replace(run, drafter=run.drafter or other.drafter).loaded(*both):
            race.warm_up(trial)
            maps = _take_turns(both, cls.hidden, input_ids(cls))
            vae = ImageTokenizer(model.codec, model.target.downsample)
            a, b = (vae.decode(model.target.codec.lookup(decoding.grid_codes())) for decoding in both)
        shown = finished(maps, cls.hidden, *(partial(_picture, image) for image in (a, b)))
        # ComfyUI's queue shows the first image of a run as its thumbnail. Without this list, the thumbnail could be the
        # image of the difference, which may be black.
        if shown is not None:
            shown["images"] = [picture for part in shown["adt_tree_map"] for picture in part["pictures"][:1]]
        run.tell_remarks(both[0])
        return io.NodeOutput(a, b, (a - b).abs(), _report(*both), ui=shown)


def _take_turns(both: list[Decoding], hidden: io.Hidden, known: list[str]) -> list[LiveMap]:
    """Run both decodings to the end in turns, show progress and a live map for each, and return the maps."""
    progress = Progress(sum(decoding.total_tokens for decoding in both), hidden.unique_id, previews(*both))
    maps = [LiveMap(decoding, hidden, known, part, 2) for part, decoding in enumerate(both)]
    for part in race.by_rounds(dict(enumerate(both))):
        maps[part].update()
        progress.update(sum(decoding.done_tokens for decoding in both))
    return maps


def _picture(images: Tensor, number: int) -> Image.Image:
    return to_picture(images[number])


def _report(a: Decoding, b: Decoding) -> str:
    """Return one line that compares both decodings, followed by one line on each decoding.

    The comparison is the first line, because a small node shows only one line.
    """
    reports = [decoding.trace.report() for decoding in (a, b)]
    differ = int((a.codes != b.codes).sum())
    difference = f"{differ} of {a.total_tokens} tokens differ" if differ else "every token is the same"
    if differ and any(report["lantern"] for report in reports):
        difference += ", because a replaced token also changes the tokens after it"
    speedup = race.ratio_of_totals(*([report["seconds"]] for report in reversed(reports)))
    lines = [f"A is {speedup:.2f} times as fast as B; {difference}"]
    for name, report in zip("AB", reports):
        speed = f"{report['tokens_per_second']:.0f} tokens per second, {report['tau']:.2f} per pass of the model"
        lines.append(f"{name}: {method_title(report['method'])}{relaxed(report)}, {report['seconds']:.2f} s, {speed}")
    return "\n".join(lines)
