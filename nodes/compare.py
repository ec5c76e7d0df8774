"""The compare node: one prompt and seed, two ways to draft, side by side."""

from contextlib import ExitStack, closing
from itertools import islice

from comfy_api.v0_0_2 import io
from PIL import Image

from .. import adt_core
from ..adt_core.app.generation import WARM_UP
from .live_map import LiveMap
from .loaders import CATEGORY
from .runtime import Progress, check_cancelled, load, refusal
from .sampler import preview, read_rows
from .sampling import choose_drafting, patchers, sampling_inputs
from .sockets import DrafterSocket, LanternSocket, LoadedDrafter, LoadedModel, ModelSocket, SettingsSocket
from .stock import ImageTokenizer, to_picture

PLAIN = adt_core.Drafting(method="autoregressive")


class ADTTreeCompare(io.ComfyNode):
    HAS_INTERMEDIATE_OUTPUT = True  # as the sampler's

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ADTTreeCompare",
            display_name="ADT-Tree Compare",
            category=CATEGORY,
            description="Makes the image of a seed in two ways, A and B, and says how long each took and whether they differ. Both take turns, "
            "after a short warm-up, so that neither gets the quieter moments of the machine. Without LANTERN the difference is black.",
            search_aliases=["compare speed", "side by side", "a/b test", "difference"],
            inputs=[
                ModelSocket.Input("model", tooltip="The model that makes both images."),
                io.Conditioning.Input(
                    "positive", tooltip="What to draw: a CLIP Text Encode node fed by this model's CLIP."
                ),
                io.Conditioning.Input(
                    "negative",
                    optional=True,
                    tooltip="What guidance leads away from; usually left empty, as at the ADT-Tree Sampler.",
                ),
                DrafterSocket.Input(
                    "drafter",
                    optional=True,
                    tooltip="What guesses ahead, for both. Not needed where both are 'autoregressive'.",
                ),
                SettingsSocket.Input(
                    "settings_a", optional=True, tooltip="How A drafts; without it, the drafter's defaults."
                ),
                SettingsSocket.Input(
                    "settings_b",
                    optional=True,
                    tooltip="How B drafts; without it, not at all: plain decoding, one token per pass of the model.",
                ),
                LanternSocket.Input(
                    "lantern",
                    optional=True,
                    tooltip="Relaxed acceptance for A alone, whose image then differs from B's.",
                ),
                *sampling_inputs("Decides the noise of both images."),
            ],
            outputs=[
                io.Image.Output(display_name="image_a", tooltip="The image as A makes it."),
                io.Image.Output(display_name="image_b", tooltip="The image as B makes it."),
                io.Image.Output(
                    display_name="difference",
                    tooltip="How far each colour of A is from that of B; black where they are the same.",
                ),
                io.String.Output(
                    display_name="report",
                    tooltip="Seconds, tokens per pass and speed-up of A over B, for a Preview as Text node.",
                ),
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.extra_pnginfo],
        )

    @classmethod
    def validate_inputs(cls, guidance: float = None, temperature: float = None, top_p: float = None) -> bool | str:
        return refusal(adt_core.Sampling, guidance=guidance, temperature=temperature, top_p=top_p)

    @classmethod
    def execute(
        cls,
        model: LoadedModel,
        positive: list,
        seed: int,
        guidance: float,
        temperature: float,
        top_k: int,
        top_p: float,
        negative: list | None = None,
        drafter: LoadedDrafter | None = None,
        settings_a: "adt_core.Drafting | None" = None,
        settings_b: "adt_core.Drafting | None" = None,
        lantern: "adt_core.Lantern | None" = None,
    ) -> io.NodeOutput:
        row, opposite = read_rows(model, positive, negative)
        sampling = adt_core.Sampling(seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, guidance=guidance)
        methods = [
            (choose_drafting(settings_a, drafter, model), lantern),
            (choose_drafting(settings_b or PLAIN, drafter, model), None),
        ]

        def start() -> list[adt_core.Decoding]:
            return [
                adt_core.Decoding(
                    model.target,
                    [row],
                    negatives=[opposite] if opposite else None,
                    sampling=sampling,
                    drafting=drafting,
                    drafter=drafter.drafter if drafter is not None else None,
                    lantern=relaxed,
                    check=check_cancelled,
                )
                for drafting, relaxed in methods
            ]

        both = start()
        load(patchers(model, drafter), memory_required=sum(decoding.memory_required() for decoding in both))
        for decoding in start():
            list(islice(decoding, WARM_UP))
        progress = Progress(
            sum(decoding.total_tokens for decoding in both), cls.hidden.unique_id, lambda: _side_by_side(model, both)
        )
        maps = [
            LiveMap(decoding.trace, model.target.name, cls.hidden, part, len(both))
            for part, decoding in enumerate(both)
        ]
        _take_turns(both, progress, maps)
        report = _report(*both)
        progress.say(report.splitlines()[-1])
        vae = ImageTokenizer(model.codec, model.target.downsample)
        a, b = (vae.decode(model.target.codec.lookup(decoding.grid_codes())) for decoding in both)
        wholes = [live_map.whole(lambda _, image=image: to_picture(image[0])) for live_map, image in zip(maps, (a, b))]
        return io.NodeOutput(a, b, (a - b).abs(), report, ui={"adt_tree_map": wholes})


def _take_turns(both: "list[adt_core.Decoding]", progress: Progress, maps: list[LiveMap]) -> None:
    """Decode both to the end; the next round is that of the one which is behind, so that both see the same moments of the machine."""
    with ExitStack() as stack:
        rounds = [stack.enter_context(closing(iter(decoding))) for decoding in both]
        while any(decoding.done_tokens < decoding.total_tokens for decoding in both):
            behind = min((0, 1), key=lambda i: both[i].done_tokens)
            next(rounds[behind], None)
            maps[behind].update()
            done = [decoding.done_tokens for decoding in both]
            progress.update(sum(done), f"A {done[0]}, B {done[1]} of {both[0].total_tokens} tokens")


def _report(a: "adt_core.Decoding", b: "adt_core.Decoding") -> str:
    """One line for each, and one that compares them."""
    lines, reports = [], [decoding.trace.report() for decoding in (a, b)]
    for name, decoding, report in zip("AB", (a, b), reports):
        speed = f"{report['tokens_per_second']:.0f} tokens a second, {report['tau']:.2f} per pass of the model"
        replaced = f", {report['substitution_rate']:.1%} replaced by LANTERN" if decoding.lantern is not None else ""
        lines.append(f"{name}: {report['method']}, {report['seconds']:.2f} s, {speed}{replaced}")
    differ = int((a.codes != b.codes).sum())
    found = f"{differ} of {a.total_tokens} tokens differ" if differ else "every token is the same"
    lines.append(f"A is {reports[1]['seconds'] / reports[0]['seconds']:.2f} times as fast as B; {found}")
    return "\n".join(lines)


def _side_by_side(model: LoadedModel, both: "list[adt_core.Decoding]") -> Image.Image:
    """Both images as far as they are decided."""
    a, b = (preview(model.target, decoding) for decoding in both)
    together = Image.new("RGB", (a.width + b.width, a.height))
    together.paste(a)
    together.paste(b, (a.width, 0))
    return together
