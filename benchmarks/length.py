"""Measure whether decoding slows down towards the end of a very long image, beyond the cost of attention.

    python -m benchmarks.length [--whole] [--prompts 3] [--threads 1] [--layers 2] [--width 128]

At later positions, attention reads more keys, so a forward takes longer. The rest of a round should take the same time
at all positions.

The model has random weights. ``--layers`` and ``--width`` set the size of its layers. The codebook size, grid, row
ends, guidance and top-k are taken from Lumina-mGPT 2.0, whose images have 9,312 tokens. The benchmark decodes two parts
of an image with each method: the first tenth, and the last tenth after a given prefix.

*Forward alone* is the time of the layers and the head without the rest of a round. It is measured in the middle of both
parts, for one token and for 24 tokens.

With ``--whole``, the benchmark decodes one complete image with plain decoding, and prints the time of each tenth. All
times are CPU times in milliseconds.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product

import torch

from adt_core import Decoding, Target
from adt_core.app.pipeline import Pipeline
from adt_core.models.cache import KVCache
from adt_core.models.families import lumina2
from adt_core.models.rotary import rope_tables
from adt_core.models.rows import BatchRows, Roots
from adt_core.policies import PLAIN

from .gpu.models import ADT_TREE, SHAPES, TITLES, WINDOW, pipeline_of, random_network, random_target
from .interleaving import format_median, header, interleave, row

ENDS = {"first": 0, "last": 9}
"""Measured tenths of the image by name: index of the tenth, from 0."""
TREE = 24  # number of tokens in the larger forward
REPEATS = 20  # number of timed calls of each forward
PUBLISHED = lumina2.FAMILY.sampling


def target_of(layers: int, width: int) -> Target:
    """Return a target like Lumina-mGPT 2.0 with random weights.

    Args:
        layers: Number of layers.
        width: Hidden size.
    """
    shape = SHAPES["Lumina-mGPT-7B"]
    config = replace(
        shape.config,
        vocab_size=16385,
        hidden_size=width,
        intermediate_size=3 * width,
        num_layers=layers,
        num_heads=width // 32,
        num_kv_heads=width // 32,
        max_positions=10240,
    )
    target = random_target("long", shape._replace(config=config, codes=16384, grid=(96, 96)), torch.float32)
    target.guidance_of = lumina2.guidance
    return target


def timed_rounds(decoding: Decoding, tokens: int) -> tuple[float, int]:
    """Decode some tokens and measure the time.

    The first round is not timed, because it also reads the prompt.

    Args:
        decoding: Decoding that has not begun.
        tokens: Number of tokens to decode in timed rounds.

    Returns:
        CPU time in milliseconds, and number of timed rounds.
    """
    running = iter(decoding)
    next(running)
    end = min(decoding.done_tokens + tokens, decoding.total_tokens)
    started = time.process_time()
    count = 0
    while decoding.done_tokens < end:
        next(running)
        count += 1
    milliseconds = 1000 * (time.process_time() - started)
    running.close()
    return milliseconds, count


@torch.inference_mode()
def forward_time(target: Target, position: int, size: int) -> float:
    """Return the CPU time in milliseconds of one forward through layers and head.

    Args:
        target: Target model.
        position: Position of the first token in the image.
        size: Number of tokens.
    """
    prompt = target.encode_prompt("A picture.")
    rows = BatchRows([prompt, target.unconditional(prompt)], 9600, target.decoder.embedding, images=1)
    cache = KVCache(target.decoder.config, rows.count, 9600, target.decoder.embedding)
    rope = rope_tables(target.decoder.config, target.decoder.embedding)
    ids = rows.spread(target.decoder.image_ids[:size][None])
    step = rows.causal_step(Roots.all_at(torch.zeros(1, dtype=torch.long), position), size)

    def forward() -> None:
        target.decoder.logits(target.decoder(ids, step, cache, rope), PUBLISHED.guidance)

    forward()
    started = time.process_time()
    for _ in range(REPEATS):
        forward()
    return 1000 * (time.process_time() - started) / REPEATS


def decode_tenth(pipeline: Pipeline, tenth: int, prompt: str) -> tuple[float, float]:
    """Decode one tenth of the image. Return the CPU time per round and per token in milliseconds."""
    target = pipeline.target
    prefix = torch.arange(96 * 96 * tenth // 10).expand(1, -1) % target.num_codes
    tokens = target.length // 10
    milliseconds, count = timed_rounds(pipeline.decoding([prompt], prefix=prefix), tokens)
    return milliseconds / count, milliseconds / tokens


def compare(target: Target, prompts: list[str]) -> None:
    """Print a table with the cost of the first and the last tenth of the image for every method."""
    options = {"guidance": PUBLISHED.guidance, "top_k": PUBLISHED.top_k}
    networks = {PLAIN: None, WINDOW: None, ADT_TREE: random_network(target)}
    pipelines = {name: pipeline_of(target, network, name, **options) for name, network in networks.items()}
    methods: dict[tuple[str, str], Callable] = {
        (name, end): partial(decode_tenth, pipeline, tenth)
        for name, pipeline in pipelines.items()
        for end, tenth in ENDS.items()
    }
    for size, (end, tenth) in product((1, TREE), ENDS.items()):
        position = target.length * tenth // 10 + target.length // 20
        methods[f"forward alone, {size}", end] = partial(_twice, partial(forward_time, target, position, size))
    results = list(interleave(methods, prompts))
    columns = ("ms per round, first tenth", "last tenth", "difference", "ms per token, first tenth", "last tenth")
    print(header("method", *columns))
    for name in dict.fromkeys(name for name, _ in methods):
        (first, first_token), (last, last_token) = (zip(*(result[name, end] for result in results)) for end in ENDS)
        per_round = [first, last, [b - a for a, b in zip(first, last)]]
        print(row(TITLES.get(name, name), *map(format_median, [*per_round, first_token, last_token])))


def _twice(measure: Callable[[], float], _prompt: str) -> tuple[float, float]:
    """Return a forward's time twice: a row of the table needs a time per round and a time per token."""
    value = measure()
    return value, value


def print_tenths(target: Target, prompt: str) -> None:
    """Decode an image with plain decoding. Print the time of each tenth, and the peak memory of the process."""
    decoding = pipeline_of(target, None, PLAIN, guidance=PUBLISHED.guidance, top_k=PUBLISHED.top_k).decoding([prompt])
    print(header("tenth", "ms per token", "peak MiB"))
    tenth = 1
    started = time.process_time()
    for _ in decoding:
        if decoding.done_tokens >= tenth * target.length // 10:
            milliseconds = 1000 * (time.process_time() - started) / (target.length / 10)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(row(tenth, milliseconds, f"{peak:.0f}"), flush=True)
            tenth += 1
            started = time.process_time()


def main() -> None:
    """Run the command line of this benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", action="store_true", help="decode one complete image instead of its two ends")
    for name, default in {"prompts": 3, "threads": 1, "layers": 2, "width": 128}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    target = target_of(args.layers, args.width)
    prompts = [f"picture {n}" for n in range(args.prompts)]
    if args.whole:
        print_tenths(target, prompts[0])
    else:
        compare(target, prompts)


if __name__ == "__main__":
    main()
