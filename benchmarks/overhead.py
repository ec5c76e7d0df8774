"""What the live map and the previews cost: prompts that a page watches against prompts that nobody watches.

    python -m benchmarks.overhead [--prompts 8]

Runs the shipped workflow in a real ComfyUI (the one of tests/workflow, downloaded on first use), each prompt once watched (increments,
previews, and the picture kept at the end) and once not, in an order drawn anew each time. Compared are the seconds of the
prompt up to its sampler, everything before that being cached. Watching may cost 5 %.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "workflow"))

from comfy_server import NEWEST, PACKS, Comfy  # noqa: E402
from convert import Graph, to_prompt  # noqa: E402


def sampler_seconds(comfy: Comfy, graph: Graph, watched: bool) -> float:
    """Run the prompt up to its sampler and return how long that took; what comes before the sampler is in ComfyUI's cache."""
    sampler = graph.id("ADTTreeSampler")
    prompt = {key: graph.prompt[key] for key in _upstream(graph.prompt, sampler)}
    prompt["begin"] = {"class_type": "PreviewAny", "inputs": {"source": [sampler, 0]}}
    with comfy.socket() as page:
        started = time.perf_counter()
        comfy.run(prompt, client=page.id if watched else None, preview_method="auto" if watched else "none")
        return time.perf_counter() - started


def _upstream(prompt: dict, key: str) -> set[str]:
    links = [value[0] for value in prompt[key]["inputs"].values() if isinstance(value, list)]
    return {key}.union(*(_upstream(prompt, link) for link in links))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    count = parser.parse_args().prompts
    rng = np.random.default_rng(0)
    workflow = json.loads((ROOT / "workflows" / "text_to_image.json").read_text(encoding="utf-8"))
    ratios = []
    with tempfile.TemporaryDirectory() as base, Comfy(NEWEST, Path(base), PACKS, ("--preview-method", "auto")) as comfy:
        info = comfy.get("/object_info")
        for number in range(count + 1):
            seconds = {}
            for watched in rng.permutation([True, False]).tolist():
                graph = Graph(to_prompt(workflow, info)).set("ADTTreeSampler", seed=2 * number + watched)
                seconds[watched] = sampler_seconds(comfy, graph, watched)
            if number:  # the first loads the model
                ratios.append(seconds[True] / seconds[False])
                print(
                    f"watched {seconds[True]:.2f} s, not watched {seconds[False]:.2f} s: {100 * (ratios[-1] - 1):+.1f} %",
                    flush=True,
                )
    print(
        f"Watching costs {100 * (np.median(ratios) - 1):+.1f} % (median of {count} pairs; mean {100 * (np.mean(ratios) - 1):+.1f} %)."
    )


if __name__ == "__main__":
    main()
