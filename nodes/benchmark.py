"""Benchmark node: compares drafting methods on a list of prompts, and writes a table of results."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import folder_paths
import torch
from comfy_api.v0_0_2 import io
from PIL import Image

from ..adt_core import Lantern, Pipeline, Recipe, Sampling
from ..adt_core.app import QualityArgs, non_blank, open_rgb, sample
from ..adt_core.lab import (
    Benchmark,
    BenchmarkWorker,
    QualityMetrics,
    choose_metrics,
    has_network,
    measure_missing,
    paper,
    presets,
    write_results,
)
from ..adt_core.messages import join, message
from ..adt_core.models import BUNDLED_SAMPLING
from ..adt_core.policies import PLAIN, method_title
from ..adt_core.run import digest, named_folder
from ..adt_core.settings import MAX_SEED
from . import folders
from .clip_and_vae import encode
from .comfy_runtime import Progress, check_cancelled, refusal, shown_text, tell, telling_what_is_kept
from .prompts import check, fingerprint, read
from .sampling import Run, prepare, preset_input
from .schema import Tooltips, schema, widget
from .sockets import DrafterSocket, LanternSocket, LoadedDrafter, LoadedModel, ModelSocket, checked

FOLDER = "adt_tree_benchmark"
MAIN = "main methods"
WITHOUT_NETWORK = "without a drafter network"
COMPARED = {
    MAIN: presets.COMPARED,
    "ADT-Tree and EAGLE-2": "adt-tree,eagle2",
    WITHOUT_NETWORK: presets.COMPARED_WITHOUT_NETWORK,
    "with LANTERN": "auto,auto+lantern,adt-tree,adt-tree+lantern",
    "Auto": "auto",
    "tables of the ADT-Tree paper": paper.METHODS,
}
"""Choices of the input `compare`: name in the node -> list of methods."""


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
        "lantern": "For methods that end in +lantern. If not connected, LANTERN with the model's published values.",
        "clip": "CLIP score: folder with a CLIP model in transformers' layout. Put weights for scores into "
        f"models/{folders.METRICS_KEY}; the CPU computes the scores.",
        "hps": "HPSv2: the published file, which also needs clip, or a folder in transformers' layout.",
        "aesthetic": "Aesthetic score: file of LAION's predictor for the CLIP ViT-L/14 in clip.",
        "inception": "Inception Score: file with torch-fidelity's weights of Inception.",
        "real_images": "FID: folder with real images to compare with; also needs inception.",
    },
    outputs={"table": "The results as a Markdown table, for Preview as Text."},
)


def _methods_input() -> io.Input:
    methods = ", ".join(list(presets.PRESETS)[1:])
    return io.String.Input(
        "methods",
        default="",
        advanced=True,
        tooltip=f"A list of your own, which replaces the choice of compare: names separated by commas, of "
        f"{methods}. Add +lantern to a name to relax its acceptance, and settings after a colon: "
        f"adt-tree:beta=0.5,init=vertical. {paper.METHODS}: the tables of the ADT-Tree paper.",
    )


def _compare_input() -> io.Input:
    main = ", ".join(map(method_title, presets.listed(presets.COMPARED)))
    return io.Combo.Input(
        "compare",
        options=list(COMPARED),
        default=MAIN,
        tooltip=f"Methods to compare with no drafting. Main methods: {main}. The paper's tables take "
        "longest: 9 methods at temperature 0 and 1.",
    )


class ADTTreeBenchmark(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
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
                _methods_input(),
                io.Int.Input("seed", default=0, min=0, max=MAX_SEED, control_after_generate=False),
                widget("guidance", own["guidance_scale"]._replace(default=BUNDLED_SAMPLING.guidance_scale)),
                widget("temperature", own["temperature"]._replace(default=BUNDLED_SAMPLING.temperature)),
                preset_input(),
                *(
                    io.Combo.Input(name, options=list(folders.metrics()), default=folders.NONE, advanced=True)
                    for name in QualityArgs.weights()
                ),
                _compare_input(),
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
        methods: str = "",
        drafter: LoadedDrafter | None = None,
        lantern: Lantern | None = None,
        preset: str | None = None,
        clip: str = folders.NONE,
        hps: str = folders.NONE,
        aesthetic: str = folders.NONE,
        inception: str = folders.NONE,
        real_images: str = folders.NONE,
        compare: str = MAIN,
        **sampling,
    ) -> io.NodeOutput:
        lantern = lantern or model.target.published_sampling.lantern
        weights = dict(clip=clip, hps=hps, aesthetic=aesthetic, inception=inception, real_images=real_images)
        run = prepare(model, drafter=drafter, lantern=lantern, preset=preset, **sampling)
        chosen = sample([prompt.text for prompt in non_blank(read(prompts, "prompts"))], count, seed=0)
        paths: dict[str, Any] = {name: _weights(name, choice) for name, choice in weights.items()}
        metrics = choose_metrics(**paths, count=len(chosen), device=torch.device("cpu"))
        session = _Session(run, chosen, metrics, cls.hidden.unique_id)
        # Without a drafter network, the main methods are those of the window.
        chosen_methods = COMPARED[WITHOUT_NETWORK if compare == MAIN and not session.has_network else compare]
        methods = methods.strip() or chosen_methods
        table = session.paper() if _is_paper(methods) else session.compare(presets.listed(methods))
        if note := join(run.notes):
            tell(note)
        return io.NodeOutput(table, ui=shown_text(table, FOLDER))


def _is_paper(methods: str) -> bool:
    return presets.listed(methods) == [paper.METHODS]


def _check(prompts: str = "", methods: str = "") -> None:
    """Check the inputs before a run. Large files are not read; see `prompts.check`."""
    check(prompts, "prompts")
    if not _is_paper(methods):
        Benchmark([], presets.listed(methods), Recipe())


def _weights(name: str, chosen: str) -> Path | None:
    """Return the path of the weights that an input names; None for no weights."""
    path = folders.resolve(folders.metrics(), chosen, name, folders.METRICS_KEY)
    return Path(path) if path else None


@dataclass(frozen=True)
class _Session:
    """Models, prompts and metrics of all benchmarks of a run of the node."""

    run: Run
    prompts: list[str]
    metrics: QualityMetrics
    node_id: str

    @property
    def has_network(self) -> bool:
        """Whether there is a drafter network, which most methods need."""
        return has_network(self.run.pipeline.drafter)

    def compare(self, methods: Sequence[str]) -> str:
        """Measure the prompts that have no record yet, write the results, and return the table."""
        plan = self._plan(methods)
        return self._measure(plan, self._folder(plan))

    def paper(self) -> str:
        """Measure the missing part of the paper's benchmarks, and return its tables."""
        first = paper.first(paper.TEMPERATURES[0])
        folder = self._folder(self._plan(first.methods, first.temperature))

        def measure(wanted: paper.Measurement) -> None:
            self._measure(self._plan(wanted.methods, wanted.temperature), folder / wanted.part)

        return paper.compare(measure, folder)[0]

    def _plan(self, methods: Sequence[str], temperature: float | None = None) -> Benchmark:
        """Return a benchmark. Without `temperature`, it has the temperature of the input."""
        recipe = self.run.pipeline.recipe
        if temperature is not None:
            recipe = replace(recipe, sampling=replace(recipe.sampling, temperature=temperature))
        available = presets.presets(self.run.model.patcher.load_device.type, recipe.sampling.guided)
        return Benchmark(self.prompts, list(methods), recipe, self.metrics.images, available)

    def _folder(self, plan: Benchmark) -> Path:
        """Return the folder of a benchmark, which depends on all its settings."""
        target = self.run.pipeline.target
        root = Path(folder_paths.get_output_directory()) / FOLDER
        return named_folder(root, digest(plan.settings(target)), "", target.name)

    def _measure(self, plan: Benchmark, folder: Path) -> str:
        pipelines = plan.pipelines(self.run.pipeline)
        model = self.run.model
        longest = max(plan.prompts, key=lambda prompt: len(encode(model, prompt)))
        device = model.patcher.load_device
        room = max(pipeline.decoding([longest]).memory_required(device) for pipeline in pipelines.values())
        with self.run.loaded(memory_required=room):
            records = self._records(plan, pipelines, folder)
        settings = plan.settings(self.run.pipeline.target)
        return write_results(plan, records, settings, folder, self.metrics)[0]

    def _records(self, plan: Benchmark, pipelines: dict[str, Pipeline], folder: Path) -> list[dict]:
        """Measure the prompts that have no record in a folder, and return all records."""
        records: list[dict] = []

        def newest() -> Image.Image | None:
            if not records:
                return None
            path = folder / records[-1]["runs"][PLAIN]["picture"]
            return open_rgb(path, "output", "output.unreadable")

        count = len(plan.prompts)
        methods = len(pipelines)
        progress = Progress(count * methods, self.node_id, newest)

        def before(number: int, method: str) -> None:
            done = len(records)
            title = method_title(method)
            line = message("benchmark.progress", done=done, count=count, number=number, methods=methods, method=title)
            progress.update(done * methods + number, line)

        def warming(number: int, method: str) -> None:
            progress.say(message("benchmark.warm_up", number=number, methods=methods, method=method_title(method)))

        worker = BenchmarkWorker(plan, pipelines, check_cancelled, before, warming)
        shown = folder.relative_to(folder_paths.get_output_directory())
        where = f"output/{shown.as_posix()}"
        with telling_what_is_kept(lambda: message("benchmark.kept", done=len(records), count=count, folder=where)):
            for record in measure_missing(worker, folder):
                records.append(record)  # one by one, because the progress counts them
        progress.update(progress.total)
        progress.say(message("benchmark.done", count=count, folder=where))
        return records
