"""Compare two methods on the same images, in turns: python -m programs.compare_methods [MODEL].

With exact acceptance, both methods give the same tokens.
"""

import sys
from functools import partial

from adt_core import Decoding, Pipeline
from adt_core.run import race

PROMPTS = ["a red house", "a boat on a lake", "a lamp on a table"]
METHODS = ["no-drafting", "auto"]


def decode(pipe: Pipeline, prompt: str) -> Decoding:
    """Generate the tokens of an image."""
    return pipe.decoding([prompt]).run()


pipe = Pipeline.load(sys.argv[1] if len(sys.argv) > 1 else "bundled")
pipes = {method: pipe.with_options(seed=1, method=method) for method in METHODS}
race.warm_up(each.decoding(PROMPTS[:1]) for each in pipes.values())
results = list(race.by_tasks({method: partial(decode, each) for method, each in pipes.items()}, PROMPTS))
seconds = {method: [result[method].trace.report()["seconds"] for result in results] for method in METHODS}
equal = all(result["no-drafting"].codes.equal(result["auto"].codes) for result in results)
print(f"auto is {race.speedup(*seconds.values())} times as fast as no drafting; equal tokens: {equal}")
