"""Time and memory of a model of which each pass reads layers from the disk (`--memory disk`).

    mkdir /sys/fs/cgroup/memory/small
    echo 1G > /sys/fs/cgroup/memory/small/memory.limit_in_bytes
    python -m benchmarks.disk --group /sys/fs/cgroup/memory/small [--gib 2] [--rounds 8] [--folder DIR]

The program writes a model with random weights in float32, and decodes its first tokens in new processes: one with all
weights in main memory, and one in the control group (cgroup), whose limit also counts the file cache of the system. It
prints the seconds of the fastest pass, the peak of the memory and whether the tokens are equal. A pass has one token,
or the nodes of a draft tree.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from itertools import islice, pairwise
from pathlib import Path
from time import process_time

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file

from adt_core import Pipeline
from adt_core.files import parse_json
from adt_core.models.streamed import held_bytes
from adt_core.settings import DISK, RAM

from .harness import ROOT
from .tables import table

BUNDLED = ROOT / "adt_core" / "bundled" / "target"
SHAPE = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 8, "num_key_value_heads": 2}
LAYER_BYTES = 4 * 1024 * (2 * 1024 + 2 * 256 + 3 * 2816)
TREES = {"one token": {"method": "no-drafting"}, "tree of 31 drafts": {"method": "eagle2", "drafts": 31}}
"""Pass of the table -> options of the decoding. The drafts of a random model are never right."""
COLUMNS = (
    *("pass", "memory", "layers on disk", "weights in memory, GiB", "peak, GiB"),
    *("seconds a pass", "processor seconds", "same tokens"),
)


def write_model(folder: Path, gib: float) -> None:
    """Write the bundled model with larger layers of random weights."""
    from transformers import ChameleonConfig, ChameleonForConditionalGeneration  # not in the measured processes

    layers = round(gib * 2**30 / LAYER_BYTES)
    config = ChameleonConfig.from_pretrained(BUNDLED, num_hidden_layers=layers, **SHAPE)
    config.save_pretrained(folder)
    codec = {name: value for name, value in load_file(BUNDLED / "model.safetensors").items() if ".vqmodel." in name}
    weights = ChameleonForConditionalGeneration._from_config(config, dtype=torch.float32).state_dict()
    save_torch_state_dict(weights | codec, folder, max_shard_size=LAYER_BYTES)
    shutil.copy(BUNDLED / "tokenizer.json", folder)


def decode(folder: Path, memory: str, rounds: int) -> dict:
    """Decode the first rounds of an image for each entry of `TREES`, and return what was measured."""
    pipe = Pipeline.load(folder, "jacobi", device="cpu", memory=memory)
    decoder = pipe.target.decoder
    found: dict = {"streamed": len(decoder.stream) if decoder.stream is not None else 0}
    found["weights"] = held_bytes(decoder)
    for title, options in TREES.items():
        decoding = pipe.with_options(seed=1, **options).decoding(["a red house"])
        processor = []
        steps = iter(decoding)
        for _ in islice(steps, rounds):
            processor.append(process_time())
        found[title] = {
            "seconds": min(round.seconds for round in decoding.trace.rounds),
            "processor": min(after - before for before, after in pairwise(processor)),
            "tokens": decoding.codes[0].tolist(),
        }
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return found


def run(folder: Path, memory: str, rounds: int, group: Path | None = None) -> dict:
    """Call `decode` in a new process, in a control group if there is one."""

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")

    command = [sys.executable, "-m", "benchmarks.disk", "--child", memory, "--folder", folder, "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=enter)
    if done.returncode:
        raise SystemExit(done.stderr.strip().splitlines()[-1])
    return parse_json(done.stdout)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the layers in GiB")
    parser.add_argument("--group", type=Path, help="folder of the control group with the limit")
    parser.add_argument("--rounds", type=int, default=8, help="passes per row of the table")
    parser.add_argument("--folder", type=Path, help="folder of the model, which is written if it has no config.json")
    parser.add_argument("--child", choices=(RAM, DISK), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(decode(args.folder, args.child, args.rounds)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        if not (folder / "config.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_model(folder, args.gib)
        whole = run(folder, RAM, args.rounds)
        small = run(folder, DISK, args.rounds, args.group)
    rows = []
    for title in TREES:
        for memory, its in ((RAM, whole), (DISK, small)):
            sizes = (its["weights"] / 2**30, its["peak"] / 2**30)
            same = its[title]["tokens"] == whole[title]["tokens"]
            seconds = its[title]["seconds"], its[title]["processor"]
            rows.append((title, memory, its["streamed"], *sizes, *seconds, "yes" if same else "no"))
    print(table(COLUMNS, rows))


if __name__ == "__main__":
    main()
