"""Generate a list of images in batches of two, with progress: python -m programs.batches [MODEL]."""

import sys

from adt_core import Pipeline

PROMPTS = ["a boat on a lake", "a lamp on a table", "a yellow hot air balloon"]

model = sys.argv[1] if len(sys.argv) > 1 else "bundled"
pipe = Pipeline.load(model)
for step in pipe.stream(PROMPTS, batch_size=2, seed=1):
    for index, result in step.results.items():
        result.save(f"image-{index}.png")
        print(f"{step.done} of {step.total} tokens; image-{index}.png: {result.prompt}")
