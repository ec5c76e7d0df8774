"""Compare two methods on the same images, in turns: python -m programs.compare_methods [MODEL].

With exact acceptance, both methods give the same tokens.
"""

import sys
from time import perf_counter

from adt_core import Pipeline

PROMPTS = ["a red house", "a boat on a lake", "a lamp on a table"]
METHODS = ["no-drafting", "auto"]

model = sys.argv[1] if len(sys.argv) > 1 else "bundled"
pipe = Pipeline.load(model)
seconds = dict.fromkeys(METHODS, 0.0)
tokens = {}
for prompt in PROMPTS:
    for method in METHODS:
        start = perf_counter()
        tokens[prompt, method] = pipe.generate(prompt, seed=1, method=method).tokens
        seconds[method] += perf_counter() - start
plain, drafted = (seconds[method] for method in METHODS)
equal = all(tokens[prompt, METHODS[0]].equal(tokens[prompt, METHODS[1]]) for prompt in PROMPTS)
print(f"{METHODS[1]} is {plain / drafted:.2f} times as fast as no drafting; equal tokens: {equal}")
