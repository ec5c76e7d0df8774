"""Does a token at the end of a very long image cost more than attention over its columns? Lumina-mGPT 2.0's has 9,312.

    python -m benchmarks.length [--whole] [--prompts 3] [--threads 1] [--layers 2] [--width 128]

Random weights with its codes, grid, row ends, guidance and top-k, in layers of any size. The first tenth of an image is
drawn, and the last tenth behind a prefix, by methods that take turns. *Forward alone* is what layers and head take at
these places: for one token, and for a tree of 24. The rest of a round is all that is not attention. ``--whole`` draws
one image plainly instead, and says what each of its tenths took. Milliseconds of the processor.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from adt_core import Decoding, Target
from adt_core.app.jobs import Job
from adt_core.models.cache import KVCache
from adt_core.models.families import lumina2
from adt_core.models.rotary import rope_tables
from adt_core.models.rows import BatchRows, Roots
from adt_core.policies import PLAIN

from .gpu.models import ADT_TREE, SHAPES, TITLES, WINDOW, job_of, random_network, random_target
from .turns import head, in_turns, interval, row

ENDS = {"first": 0, "last": 9}
"""A tenth of the image, by its number."""
TREE, TIMES = 24, 20
PUBLISHED = lumina2.FAMILY.sampling


def target_of(layers: int, width: int) -> Target:
    """A random target as Lumina-mGPT 2.0, but for the size of its layers."""
    shape, heads = SHAPES["Lumina-mGPT-7B"], width // 32
    sizes = {"vocab_size": 16385, "hidden_size": width, "intermediate_size": 3 * width, "num_layers": layers}
    config = replace(shape.config, max_positions=10240, num_heads=heads, num_kv_heads=heads, **sizes)
    target = random_target("long", shape._replace(config=config, codes=16384, grid=(96, 96)), torch.float32)
    target.guidance_of = lumina2.guidance
    return target


def rounds(decoding: Decoding, tokens: int) -> tuple[float, int]:
    """Milliseconds and number of the rounds that draw so many tokens, behind the one that reads the prompt."""
    running, count = iter(decoding), 0
    next(running)
    begun, end = time.process_time(), min(decoding.done_tokens + tokens, decoding.total_tokens)
    while decoding.done_tokens < end:
        next(running)
        count += 1
    spent = 1000 * (time.process_time() - begun)
    running.close()
    return spent, count


@torch.inference_mode()
def forward(target: Target, position: int, size: int) -> float:
    """Milliseconds of layers and head alone, for so many tokens at a position."""
    prompt = target.encode_prompt("A picture.")
    rows = BatchRows([prompt, target.unconditional(prompt)], 9600, target.decoder.embedding, images=1)
    cache = KVCache(target.decoder.config, rows.count, 9600, target.decoder.embedding)
    rope = rope_tables(target.decoder.config, target.decoder.embedding)
    ids = rows.spread(target.decoder.image_ids[:size][None])
    step = rows.causal_step(Roots.all_at(torch.zeros(1, dtype=torch.long), position), size)
    run = lambda: target.decoder.logits(target.decoder(ids, step, cache, rope), PUBLISHED.guidance)  # noqa: E731
    run()
    begun = time.process_time()
    for _ in range(TIMES):
        run()
    return 1000 * (time.process_time() - begun) / TIMES


def drawn(jobs: dict[str, Job], name: str, tenth: int, prompt: str) -> tuple[float, float]:
    """Milliseconds a round and a token of a tenth of the image."""
    target = jobs[name].target
    kept = torch.arange(96 * 96 * tenth // 10).expand(1, -1) % target.num_codes
    spent, count = rounds(jobs[name].decoding([prompt], prefix=kept), target.length // 10)
    return spent / count, spent / (target.length // 10)


def compare(target: Target, prompts: list[str]) -> None:
    """Print what both ends cost, by every method."""
    options = {"guidance": PUBLISHED.guidance, "top_k": PUBLISHED.top_k}
    networks = {PLAIN: None, WINDOW: None, ADT_TREE: random_network(target)}
    jobs = {name: job_of(target, network, name, **options) for name, network in networks.items()}
    methods: dict[tuple[str, str], Callable] = {
        (name, end): partial(drawn, jobs, name, tenth) for name in jobs for end, tenth in ENDS.items()
    }
    for size in (1, TREE):
        for end, tenth in ENDS.items():
            at = target.length * tenth // 10 + target.length // 20
            methods[f"forward alone, {size}", end] = lambda _, at=at, size=size: (forward(target, at, size),) * 2
    found = list(in_turns(methods, prompts))
    print(head("method", "ms a round, first tenth", "last tenth", "more", "ms a token, first tenth", "last tenth"))
    for name in dict.fromkeys(name for name, _ in methods):
        (first, token), (last, other) = (zip(*(one[name, end] for one in found)) for end in ENDS)
        more = interval(b - a for a, b in zip(first, last))
        print(row(TITLES.get(name, name), interval(first), interval(last), more, interval(token), interval(other)))


def whole(target: Target, prompt: str) -> None:
    """Print what each tenth of a plainly drawn image costs, and the memory."""
    decoding = job_of(target, None, PLAIN, guidance=PUBLISHED.guidance, top_k=PUBLISHED.top_k).decoding([prompt])
    tenths, running, begun = [], iter(decoding), time.process_time()
    print(head("tenth", "ms a token", "MiB at most"))
    for _ in running:
        if decoding.done_tokens >= (len(tenths) + 1) * target.length // 10:
            tenths.append(1000 * (time.process_time() - begun) / (target.length / 10))
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(row(len(tenths), tenths[-1], f"{peak:.0f}"), flush=True)
            begun = time.process_time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", action="store_true")
    for name, usual in {"prompts": 3, "threads": 1, "layers": 2, "width": 128}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    target, prompts = target_of(args.layers, args.width), [f"picture {n}" for n in range(args.prompts)]
    whole(target, prompts[0]) if args.whole else compare(target, prompts)


if __name__ == "__main__":
    main()
