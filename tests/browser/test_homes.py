"""Tests that a map is shown only on its node, and not on copies of the node or in other open workflows.

A map is the widget that shows how an image was decoded.
"""

import copy
import uuid

import pytest
from map_reading import done, idle, run_again

WORKFLOWS = "app.extensionManager.workflow"
OPEN = "(app.rootGraph ?? app.graph).id"
SEED = "find((w) => w.name === 'seed').value = {}"


def command(tab, name: str) -> str:
    """Run a command of ComfyUI that opens another workflow. Return the id of this workflow."""
    before = tab.page.evaluate(f"{WORKFLOWS}.activeWorkflow.path")
    tab.page.evaluate("(name) => app.extensionManager.command.execute(name)", name)
    tab.page.wait_for_function(f"(before) => {WORKFLOWS}.activeWorkflow.path !== before", arg=before)
    tab.settle()
    return tab.page.evaluate(OPEN)


def go_to(tab, workflow: str) -> None:
    for _ in range(40):
        if command(tab, "Workspace.PreviousOpenedWorkflow") == workflow:
            return
    raise LookupError(workflow)


@pytest.fixture
def small(workflow):
    """Return a new workflow. It has an id, like a saved workflow."""
    workflow.data["id"] = str(uuid.uuid4())
    return workflow


def test_duplicate_has_its_own_runs(tab, small):
    sampler = done(tab, small)
    first = tab.page.evaluate(OPEN)
    own = tab.map(sampler, "run.id")
    twin = command(tab, "Comfy.DuplicateWorkflow")
    copied = run_again(tab, sampler, SEED.format(77))
    go_to(tab, first)
    tab.finished(sampler)
    assert tab.map(sampler, "run.id") == own
    go_to(tab, twin)
    tab.finished(sampler)
    assert tab.map(sampler, "run.id") == copied


def test_workflow_without_a_run_has_no_map(tab, small):
    tab.load(small.data)
    first = tab.page.evaluate(OPEN)
    twin = command(tab, "Comfy.DuplicateWorkflow")
    copied = run_again(tab, small.sampler, SEED.format(78))
    for workflow, shown in ((first, None), (twin, copied), (first, None)):
        go_to(tab, workflow)
        assert tab.map(small.sampler, "run?.id ?? null") == shown


def test_run_that_ends_in_the_background_is_shown_later(tab, small):
    sampler = small.batch(48).sampler
    tab.load(small.data)
    own = tab.page.evaluate(OPEN)
    tab.run()
    tab.wait(sampler, "run")
    shown = tab.map(sampler, "run.id")
    command(tab, "Comfy.DuplicateWorkflow")
    tab.page.wait_for_function(
        "(id) => id in JSON.parse(sessionStorage['adt_tree.maps'] ?? '{}').maps", arg=shown, timeout=90_000
    )
    assert tab.map(sampler, "run?.id") != shown, "the copy has nodes with the same ids"
    go_to(tab, own)
    tab.finished(sampler)
    assert tab.map(sampler, "run.id") == shown


def test_cached_results_go_to_the_queued_workflow(tab, comfy, small):
    """The sampler of the second prompt is cached, and another workflow is opened before that prompt starts."""
    sampler = small.batch(4).sampler
    tab.load(small.data)
    own = tab.page.evaluate(OPEN)
    tab.run()
    tab.wait(sampler, "run")
    tab.page.evaluate("app.queuePrompt(0)")
    twin = copy.deepcopy(small.data) | {"id": "another"}
    tab.load(twin)
    assert idle(comfy)
    tab.settle()
    assert tab.map(sampler, "run") is None
    go_to(tab, own)
    tab.finished(sampler)


def test_sampler_shows_the_runs_of_its_copies_in_a_loop(tab, small):
    small.add("ProbeLoop", (900, 900), [4242], samples=(small.sampler, 0))
    tab.load(small.data)
    tab.run()
    tab.wait(small.sampler, "run?.state === 'done' && run.seed === '4242'")


def test_run_adds_no_undo_step(tab, small):
    tracker = f"{WORKFLOWS}.activeWorkflow.changeTracker"
    tab.load(small.data)
    tab.page.evaluate(f"{tracker}.captureCanvasState()")
    steps = tab.page.evaluate(f"{tracker}.undoQueue.length")
    tab.run()
    tab.finished(small.sampler)
    tab.settle()
    tab.page.evaluate(f"{tracker}.captureCanvasState()")
    assert tab.page.evaluate(f"{tracker}.undoQueue.length") == steps
    width = "map.node.size[0]"
    before = tab.map(small.sampler, width)
    tab.map(small.sampler, "map.node.setSize([700, map.node.size[1]])")
    tab.settle()
    tab.page.evaluate(f"{tracker}.captureCanvasState()")
    for step, expected in (("undo", before), ("redo", 700)):
        tab.page.evaluate(f"{tracker}.{step}()")
        tab.wait(small.sampler, f"{width} === {expected}")


def test_copied_and_removed_nodes_have_no_map(tab, small):
    known = "import('/extensions/ADT-Tree/node_map.js').then(({ maps }) => maps.size)"
    sampler = done(tab, small)
    count = tab.page.evaluate(known)
    tab.map(sampler, "(map.node.clone(), 0)")  # Ctrl+C clones the node in this way
    assert tab.page.evaluate(known) == count == 1
    assert tab.map(sampler, "map.choices()") == []
    group = f"app.graph.convertToSubgraph(new Set([app.graph.getNodeById({sampler})]))"
    tab.page.evaluate(f"({group}, 0)")
    data = tab.saved()
    for _ in range(2):
        tab.load(data)
    tab.settle()
    assert tab.page.evaluate(known) == 1


def test_error_of_a_refused_prompt_does_not_mention_our_files(tab, small):
    """If the pack's files were in the error, users would think that the pack caused errors of stock nodes."""
    tab.load(small.data)
    stack = tab.page.evaluate(
        "app.api.queuePrompt(0, { output: {}, workflow: {} }).then(() => '', ({ stack }) => stack)"
    )
    assert "queuePrompt" in stack and "ADT-Tree" not in stack
