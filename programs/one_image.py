"""Generate one image: python -m programs.one_image [MODEL]."""

import sys

from adt_core import Pipeline

model = sys.argv[1] if len(sys.argv) > 1 else "bundled"
result = Pipeline.load(model).generate("a red house", seed=1)
result.save("house.png")  # the PNG contains the settings, so that Pipeline.from_png("house.png") repeats the image
print(f"{result.trace.report()['tau']:.1f} tokens per target pass")
