"""The benchmark node: methods side by side on a list of prompts, and the table of their figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import folder_paths
from comfy_api.v0_0_2 import io, ui
from PIL import Image

from ..adt_core.app import benchmark as bench
from ..adt_core.app import report
from ..adt_core.app.images import digest
from ..adt_core.app.prompts import sample
from ..adt_core.drafters import Drafter
from ..adt_core.errors import AdtError
from ..adt_core.rules.sampling import Sampling
from ..adt_core.rules.verify import Lantern
from .prompts import fingerprint, read
from .runtime import Progress, check_cancelled, load, refusal
from .sampling import check_same_model, patchers
from .schema import schema
from .sockets import DrafterSocket, LanternSocket, LoadedDrafter, LoadedModel, ModelSocket
from .stock import encode

FOLDER = "adt_tree_benchmark"


class ADTTreeBenchmark(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        methods = ", ".join(list(bench.PRESETS)[1:])
        return schema(
            "ADTTreeBenchmark",
            "ADT-Tree Benchmark",
            description="Runs several drafting methods on the same prompts, in turns, and says how much faster than "
            "plain decoding each is and whether it gave the same images. Table, figures and images go to "
            f"output/{FOLDER}; a benchmark that was cancelled goes on where it stopped, and one that is finished is "
            "only shown again.",
            search_aliases=["compare speed", "speculative decoding"],
            inputs=[
                ModelSocket.Input("model"),
                DrafterSocket.Input("drafter", optional=True),
                LanternSocket.Input("lantern", optional=True),
                io.String.Input("prompts", default="", multiline=True),
                io.Int.Input("count", default=4, min=1, max=100000),
                io.String.Input(
                    "methods",
                    default=bench.COMPARED,
                    tooltip=f"What is set against plain decoding, with commas between: {methods}; +lantern behind a "
                    "name relaxes its acceptance.",
                ),
                io.Int.Input("seed", default=0, min=0, max=2**64 - 1, control_after_generate=False),
                io.Float.Input("guidance", default=3.0, min=0.0, max=100.0, step=0.1),
                io.Float.Input("temperature", default=1.0, min=0.0, max=10.0, step=0.05),
            ],
            outputs=[io.String.Output(display_name="table")],
            hidden=[io.Hidden.unique_id],
            is_output_node=True,
        )

    @classmethod
    def validate_inputs(
        cls,
        prompts: str | None = None,
        methods: str | None = None,
        guidance: float | None = None,
        temperature: float | None = None,
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
        drafter: LoadedDrafter | None = None,
        lantern: Lantern | None = None,
        **sampling,
    ) -> io.NodeOutput:
        plan = _plan(prompts, methods, count, drafter.path if drafter is not None else "none", lantern, **sampling)
        drafters = _drafters(plan, model, drafter)
        longest = max(plan.prompts, key=lambda prompt: len(encode(model, prompt)))
        decodings = (plan.start(name, longest, model.target, drafters) for name in plan.names)
        load(patchers(model, drafter), memory_required=max(decoding.memory_required() for decoding in decodings))
        table = _run(plan, model, drafters, cls.hidden.unique_id)
        return io.NodeOutput(table, ui=ui.PreviewText(table))


def _run(plan: bench.Benchmark, model: LoadedModel, drafters: dict[str, Drafter], node_id: str) -> str:
    """Measure what is not in the benchmark's folder yet, and write the results. Returns the table."""
    settings = plan.settings(model.target)
    name, records = digest(settings), []
    folder = Path(folder_paths.get_output_directory()) / FOLDER / name
    progress = Progress(
        len(plan.prompts), node_id, lambda: Image.open(folder / records[-1]["runs"][bench.PLAIN]["picture"])
    )
    tell = f"{{}} of {len(plan.prompts)} prompts, {len(plan.names)} methods each"
    progress.say(tell.format(0))
    for record in bench.measure(plan, settings, model.target, drafters, folder, check_cancelled):
        records.append(record)
        progress.update(len(records), tell.format(len(records)))
    table, _ = report.write(records, settings, folder)
    progress.say(f"{len(records)} prompts; the results are in output/{FOLDER}/{name}")
    return table


def _plan(
    prompts: str = "",
    methods: str = bench.COMPARED,
    count: int | None = None,
    drafter: str = "",
    lantern: Lantern | None = None,
    **sampling,
) -> bench.Benchmark:
    """What the inputs ask for. Raises AdtError, naming the input."""
    chosen = [prompt.text for prompt in read(prompts, "prompts")]
    chosen = sample(chosen, count, seed=0) if count else chosen
    names = [name.strip() for name in methods.split(",") if name.strip()]
    with _inputs_for_options():
        return bench.Benchmark(chosen, names, Sampling(**sampling), lantern or Lantern(), drafter)


def _drafters(plan: bench.Benchmark, model: LoadedModel, drafter: LoadedDrafter | None) -> dict[str, Drafter]:
    """What drafts, by source. AdtError if a method needs a network and none is connected."""
    if drafter is not None:
        check_same_model(drafter, model, "Benchmark")
    with _inputs_for_options():
        return plan.choose(drafter.drafter if drafter is not None and drafter.patcher is not None else None)


@contextmanager
def _inputs_for_options() -> Iterator[None]:
    """Errors name an input, where the command line has an option of the same name behind two hyphens."""
    try:
        yield
    except AdtError as error:
        raise AdtError(str(error).removeprefix("--")) from error
