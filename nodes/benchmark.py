"""The benchmark node: methods side by side on a list of prompts, and the table of their figures."""

from pathlib import Path

import folder_paths
from comfy_api.v0_0_2 import io, ui
from PIL import Image

from .. import adt_core
from ..adt_core.app import benchmark as bench
from ..adt_core.app import report
from ..adt_core.app.images import digest
from ..adt_core.app.prompts import sample
from ..adt_core.errors import AdtError
from .loaders import CATEGORY
from .prompts import fingerprint, read
from .runtime import Progress, check_cancelled, load, refusal
from .sampling import patchers
from .sockets import DrafterSocket, LanternSocket, LoadedDrafter, LoadedModel, ModelSocket
from .stock import encode

FOLDER = "adt_tree_benchmark"


class ADTTreeBenchmark(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ADTTreeBenchmark",
            display_name="ADT-Tree Benchmark",
            category=CATEGORY,
            description="Runs several drafting methods on the same prompts, in turns, and says how much faster than plain decoding each is and whether it "
            f"gave the same images. Table, figures and images go to output/{FOLDER}; a benchmark that was cancelled goes on where it stopped, and "
            "one that is finished is only shown again.",
            search_aliases=["compare speed", "speculative decoding"],
            inputs=[
                ModelSocket.Input("model", tooltip="The model that makes the images."),
                DrafterSocket.Input(
                    "drafter",
                    optional=True,
                    tooltip="The network of the methods that need one; those named jacobi do without.",
                ),
                LanternSocket.Input(
                    "lantern",
                    optional=True,
                    tooltip="Of the methods that end in +lantern; without it, LANTERN with its defaults.",
                ),
                io.String.Input(
                    "prompts",
                    default="",
                    multiline=True,
                    tooltip="One prompt per line. Or the name of a file in ComfyUI's input folder, or its path: text, MS-COCO captions (.json), "
                    "PartiPrompts (.tsv) or .jsonl. Empty: the captions that come with the pack.",
                ),
                io.Int.Input(
                    "count",
                    default=4,
                    min=1,
                    max=100000,
                    tooltip="Prompts to take from them, at most; which ones does not depend on the seed.",
                ),
                io.String.Input(
                    "methods",
                    default=bench.COMPARED,
                    tooltip=f"What is set against plain decoding, with commas between: {', '.join(list(bench.PRESETS)[1:])}; +lantern behind a name "
                    "relaxes its acceptance.",
                ),
                io.Int.Input(
                    "seed",
                    default=0,
                    min=0,
                    max=2**64 - 1,
                    control_after_generate=False,
                    tooltip="Decides the noise of all images.",
                ),
                io.Float.Input(
                    "guidance",
                    default=3.0,
                    min=0.0,
                    max=100.0,
                    step=0.1,
                    tooltip="How strongly the images follow the prompts; 1 is off.",
                ),
                io.Float.Input(
                    "temperature",
                    default=1.0,
                    min=0.0,
                    max=10.0,
                    step=0.05,
                    tooltip="Variety; 0 always takes the likeliest token.",
                ),
            ],
            outputs=[
                io.String.Output(
                    display_name="table", tooltip="The figures as a Markdown table, for a Preview as Text node."
                )
            ],
            hidden=[io.Hidden.unique_id],
            is_output_node=True,
        )

    @classmethod
    def validate_inputs(
        cls, prompts: str = None, methods: str = None, guidance: float = None, temperature: float = None
    ) -> bool | str:
        return refusal(_plan, prompts=prompts, methods=methods, guidance=guidance, temperature=temperature)

    @classmethod
    def fingerprint_inputs(cls, prompts: str | None = None, **_) -> str:
        return fingerprint(prompts or "")

    @classmethod
    def execute(
        cls,
        model: LoadedModel,
        prompts: str,
        count: int,
        methods: str,
        seed: int,
        guidance: float,
        temperature: float,
        drafter: LoadedDrafter | None = None,
        lantern: "adt_core.Lantern | None" = None,
    ) -> io.NodeOutput:
        named = drafter.name if drafter is not None else "none"
        plan = _plan(prompts, methods, count, named, lantern, seed=seed, guidance=guidance, temperature=temperature)
        drafters = _drafters(plan, model, drafter)
        longest = max(plan.prompts, key=lambda prompt: len(encode(model, prompt)))
        load(
            patchers(model, drafter),
            memory_required=max(
                plan.start(name, longest, model.target, drafters).memory_required() for name in plan.names
            ),
        )
        settings = plan.settings(model.target)
        name = digest(settings)
        folder = Path(folder_paths.get_output_directory()) / FOLDER / name
        records: list[dict] = []
        progress = Progress(
            len(plan.prompts),
            cls.hidden.unique_id,
            lambda: Image.open(folder / records[-1]["runs"][bench.PLAIN]["picture"]),
        )
        progress.say(f"0 of {len(plan.prompts)} prompts, {len(plan.names)} methods each")
        for record in bench.measure(plan, settings, model.target, drafters, folder, check_cancelled):
            records.append(record)
            progress.update(
                len(records), f"{len(records)} of {len(plan.prompts)} prompts, {len(plan.names)} methods each"
            )
        table, _ = report.write(records, settings, folder)
        progress.say(f"{len(records)} prompts; the results are in output/{FOLDER}/{name}")
        return io.NodeOutput(table, ui=ui.PreviewText(table))


def _plan(
    prompts: str = "",
    methods: str = bench.COMPARED,
    count: int | None = None,
    drafter: str = "",
    lantern: "adt_core.Lantern | None" = None,
    **sampling,
) -> bench.Benchmark:
    """What the inputs ask for. Raises AdtError, naming the input."""
    chosen = [prompt.text for prompt in read(prompts, "prompts")]
    chosen = sample(chosen, count, seed=0) if count else chosen
    try:
        names = [name.strip() for name in methods.split(",") if name.strip()]
        return bench.Benchmark(chosen, names, adt_core.Sampling(**sampling), lantern or adt_core.Lantern(), drafter)
    except AdtError as error:
        raise AdtError(str(error).removeprefix("--")) from error  # the options of the command line have the same names


def _drafters(plan: bench.Benchmark, model: LoadedModel, drafter: LoadedDrafter | None) -> dict:
    """What drafts, by source. AdtError if a method needs a network and none is connected."""
    if drafter is not None and drafter.target.decoder is not model.target.decoder:
        raise AdtError(
            "drafter: it was loaded for another model; connect the same ADT-Tree Model Loader to the Drafter Loader and the Benchmark."
        )
    try:
        return plan.choose(drafter.drafter if drafter is not None and drafter.patcher is not None else None)
    except AdtError as error:
        raise AdtError(str(error).removeprefix("--")) from error
