"""Benchmark node: compares drafting methods on a list of prompts, and writes a table of results."""

from pathlib import Path

import folder_paths
from comfy_api.v0_0_2 import io, ui
from PIL import Image

from ..adt_core import Lantern, Pipeline, Recipe, Sampling
from ..adt_core.app.continuation import open_rgb
from ..adt_core.app.prompts import non_blank, sample
from ..adt_core.lab import benchmark as bench
from ..adt_core.lab import report
from ..adt_core.messages import join, message
from ..adt_core.models.load import BUNDLED_SAMPLING
from ..adt_core.policies import PLAIN
from ..adt_core.run.identity import digest
from ..adt_core.run.images import named_folder
from ..adt_core.settings import MAX_SEED
from .cancelling import telling_what_is_kept
from .clip_and_vae import encode
from .comfy_runtime import Progress, check_cancelled, refusal, tell
from .prompts import check, fingerprint, read
from .sampling import prepare, preset_input
from .schema import Tooltips, schema, widget
from .sockets import DrafterSocket, LanternSocket, LoadedDrafter, LoadedModel, ModelSocket, checked

FOLDER = "adt_tree_benchmark"


_BENCHMARK_TOOLTIPS = Tooltips(
    inputs={
        "model": "The model that generates the images.",
        "prompts": "One prompt per line, or the name of a file in ComfyUI's input folder: text, table (.csv, .tsv), "
        "MS-COCO captions (.json) or .jsonl. If empty, captions that are included in the pack.",
        "count": "Maximum number of prompts to use. From 6 prompts on, the table has confidence intervals. The "
        "selection does not depend on the seed.",
        "seed": "Sets the noise of all images.",
        "preset": "model default uses the guidance, temperature, top_k and top_p that are published with the model. "
        "custom uses the guidance and temperature that you set here.",
        "drafter": "For methods that need a drafter network; jacobi methods don't. If not connected, the first "
        "installed drafter that fits the model.",
        "lantern": "For methods that end in +lantern. If not connected, LANTERN with its default values.",
    },
    outputs={
        "table": "The results as a Markdown table, for Preview as Text.",
    },
)


class ADTTreeBenchmark(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        methods = ", ".join(list(bench.PRESETS)[1:])
        own = Sampling.options()
        return schema(
            "ADTTreeBenchmark",
            "ADT-Tree Benchmark",
            tooltips=_BENCHMARK_TOOLTIPS,
            description="Runs several drafting methods in turns on the same prompts and measures the speed-up over "
            f"no drafting. Saves table, statistics and images to output/{FOLDER}. Queue a cancelled benchmark "
            "again to continue it.",
            search_aliases=["compare speed", "speculative decoding", "测速", "基准测试"],
            inputs=[
                ModelSocket.Input("model"),
                DrafterSocket.Input("drafter", optional=True),
                LanternSocket.Input("lantern", optional=True),
                io.String.Input("prompts", default="", multiline=True),
                io.Int.Input("count", default=4, min=1, max=100000),
                io.String.Input(
                    "methods",
                    default=bench.COMPARED,
                    tooltip=f"Methods to compare with no drafting, separated by commas: {methods}. Add +lantern to "
                    "a name to relax its acceptance.",
                ),
                io.Int.Input("seed", default=0, min=0, max=MAX_SEED, control_after_generate=False),
                widget("guidance", own["guidance"]._replace(default=BUNDLED_SAMPLING.guidance)),
                widget("temperature", own["temperature"]._replace(default=BUNDLED_SAMPLING.temperature)),
                preset_input(),
            ],
            outputs=[io.String.Output(display_name="table")],
            is_output_node=True,
        )

    @classmethod
    def validate_inputs(cls, prompts: str | None = None, methods: str | None = None) -> bool | str:
        return refusal(_check, prompts=prompts, methods=methods)

    @classmethod
    def fingerprint_inputs(cls, prompts: str | None = None, **_) -> str:
        return fingerprint(prompts or "")

    @classmethod
    @checked
    def execute(
        cls,
        model: LoadedModel,
        prompts: str,
        count: int,
        methods: str,
        drafter: LoadedDrafter | None = None,
        lantern: Lantern | None = None,
        preset: str | None = None,
        **sampling,
    ) -> io.NodeOutput:
        run = prepare(model, drafter=drafter, lantern=lantern or Lantern(), preset=preset, **sampling)
        plan = _plan(prompts, methods, count, run.pipeline.recipe)
        pipelines = plan.pipelines(run.pipeline)
        longest = max(plan.prompts, key=lambda prompt: len(encode(model, prompt)))
        device = model.patcher.load_device
        room = max(pipeline.decoding([longest]).memory_required(device) for pipeline in pipelines.values())
        with run.loaded(memory_required=room):
            table = _measure(plan, pipelines, cls.hidden.unique_id)
        if note := join(run.notes):
            tell(note)
        return io.NodeOutput(table, ui=ui.PreviewText(table))


def _check(prompts: str = "", **inputs) -> None:
    """Check the inputs before a run. Large files are not read; see `prompts.check`."""
    check(prompts, "prompts")
    _plan(**inputs)


def _plan(
    prompts: str = "",
    methods: str = bench.COMPARED,
    count: int | None = None,
    recipe: Recipe | None = None,
) -> bench.Benchmark:
    """Return the benchmark that the inputs describe."""
    chosen = [prompt.text for prompt in non_blank(read(prompts, "prompts"))]
    chosen = sample(chosen, count, seed=0) if count else chosen
    names = [name.strip() for name in methods.split(",") if name.strip()]
    return bench.Benchmark(chosen, names, recipe or Recipe())


def _measure(plan: bench.Benchmark, pipelines: dict[str, Pipeline], node_id: str) -> str:
    """Measure the prompts that have no record in the benchmark's folder, write the results, and return the table."""
    target = pipelines[PLAIN].target
    settings = plan.settings(target)
    folder = named_folder(Path(folder_paths.get_output_directory()) / FOLDER, digest(settings), "", target.name)
    records: list[dict] = []

    def newest() -> Image.Image | None:
        if not records:
            return None
        return open_rgb(folder / records[-1]["runs"][PLAIN]["picture"], "output", "delete it, and start the same again")

    count = len(plan.prompts)
    methods = len(pipelines)
    progress = Progress(count * methods, node_id, newest)

    def before(number: int, method: str) -> None:
        done = len(records)
        line = message("benchmark.progress", done=done, count=count, number=number, methods=methods, method=method)
        progress.update(done * methods + number, line)

    worker = bench.BenchmarkWorker(plan, pipelines, check_cancelled, before)
    shown = f"output/{FOLDER}/{folder.name}"
    progress.say(message("benchmark.warm_up", methods=methods))
    with telling_what_is_kept(lambda: message("benchmark.kept", done=len(records), count=count, folder=shown)):
        for record in bench.measure(worker, folder):
            records.append(record)  # one by one, because the progress counts them
    progress.update(progress.total)
    table, _ = report.write(records, settings, folder)
    progress.say(message("benchmark.done", count=count, folder=shown))
    return table
