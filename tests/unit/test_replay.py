"""Tests of replayed images, whose tokens come from a recording of plain decoding instead of the target.

The rounds and network calls of a replayed image must be the same as in a decoding with the target.
"""

import pytest

from adt_core import Drafting, Sampling, load_drafter, load_target
from adt_core.app.pipeline import Pipeline
from adt_core.policies import PLAIN
from adt_core.recipe import Recipe
from benchmarks.replay import record, replaying

PROMPTS = ["a cat", "three small dogs", "x"]
METHODS = {
    "tree": dict(method="eagle2", depth=5, width=3, drafts=8),
    "chain": dict(method="eagle2", depth=4, width=1, drafts=4),
    "adt-tree": dict(method="adt-tree", rule="predicted", init="both"),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_replayed_rounds_equal_decoded_rounds(tiny, name, temperature):
    target = load_target(tiny / "target")
    drafter = load_drafter(tiny / "drafter", target)
    sampling = Sampling(3, temperature)

    def decoding(prompts, **options):
        return Pipeline(target, Recipe(sampling, Drafting(**options)), drafter).decoding(prompts)

    recording = record(Pipeline(target, Recipe(sampling, Drafting(PLAIN))), PROMPTS)
    replayed = decoding(PROMPTS, **METHODS[name])
    with replaying(recording) as replay:
        replayed.run()
    assert replayed.codes.equal(recording.codes)
    for number, prompt in enumerate(PROMPTS):
        alone = decoding([prompt], **METHODS[name]).run().trace
        rounds, again = ([round.images for round in trace.rounds] for trace in (alone, replayed.trace.subset([number])))
        assert rounds == again
        assert sum(round.drafter_forwards for round in alone.rounds) == replay.calls[number]
