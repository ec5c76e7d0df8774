"""A map belongs to a node of one workflow: what is open when its run ends, and copies of node or workflow, get none."""

import copy
import uuid

import pytest
from map_reading import done, idle, run_again

WORKFLOWS = "app.extensionManager.workflow"
OPEN = "(app.rootGraph ?? app.graph).id"
SEED = "find((w) => w.name === 'seed').value = {}"


def command(tab, name: str) -> str:
    """Run one of ComfyUI's commands that open another workflow; its id."""
    before = tab.page.evaluate(f"{WORKFLOWS}.activeWorkflow.path")
    tab.page.evaluate("(name) => app.extensionManager.command.execute(name)", name)
    tab.page.wait_for_function(f"(before) => {WORKFLOWS}.activeWorkflow.path !== before", arg=before)
    tab.settle()
    return tab.page.evaluate(OPEN)


def go_to(tab, workflow: str) -> None:
    """Open the tab of a workflow."""
    for _ in range(40):
        if command(tab, "Workspace.PreviousOpenedWorkflow") == workflow:
            return
    raise LookupError(workflow)


@pytest.fixture
def small(workflow):
    """A workflow of its own, with an id as every saved one has."""
    workflow.data["id"] = str(uuid.uuid4())
    return workflow


def test_a_duplicate_keeps_its_runs_to_itself(tab, small):
    sampler = done(tab, small)
    first, own = tab.page.evaluate(OPEN), tab.map(sampler, "run.id")
    twin = command(tab, "Comfy.DuplicateWorkflow")
    theirs = run_again(tab, sampler, SEED.format(77))
    go_to(tab, first)
    tab.finished(sampler)
    assert tab.map(sampler, "run.id") == own
    go_to(tab, twin)
    tab.finished(sampler)
    assert tab.map(sampler, "run.id") == theirs


def test_a_workflow_that_never_ran_stays_without_a_map(tab, small):
    tab.load(small.data)
    first = tab.page.evaluate(OPEN)
    twin = command(tab, "Comfy.DuplicateWorkflow")
    theirs = run_again(tab, small.sampler, SEED.format(78))
    for workflow, shown in ((first, None), (twin, theirs), (first, None)):
        go_to(tab, workflow)
        assert tab.map(small.sampler, "run?.id ?? null") == shown


def test_a_run_that_ends_behind_another_workflow_is_there_when_its_own_is_opened(tab, small):
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
    assert tab.map(sampler, "run?.id") != shown, "the copy has nodes of the same numbers"
    go_to(tab, own)
    tab.finished(sampler)
    assert tab.map(sampler, "run.id") == shown


def test_results_from_the_cache_go_to_the_workflow_that_was_queued(tab, comfy, small):
    """Two prompts are queued and another workflow is opened before the second begins, whose sampler is cached."""
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


def test_the_copies_that_a_loop_makes_of_a_sampler_are_shown_on_it(tab, small):
    small.add("ProbeLoop", (900, 900), [4242], samples=(small.sampler, 0))
    tab.load(small.data)
    tab.run()
    tab.wait(small.sampler, "run?.state === 'done' && run.seed === '4242'")


def test_a_run_is_nothing_to_undo(tab, small):
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


def test_nodes_that_are_copied_or_gone_have_no_map(tab, small):
    known = "import('/extensions/ADT-Tree/node_map.js').then(({ maps }) => maps.size)"
    sampler = done(tab, small)
    count = tab.page.evaluate(known)
    tab.map(sampler, "(map.node.clone(), 0)")  # as Ctrl+C does
    assert tab.page.evaluate(known) == count == 1
    assert tab.map(sampler, "map.choices()") == []
    group = f"app.graph.convertToSubgraph(new Set([app.graph.getNodeById({sampler})]))"
    tab.page.evaluate(f"({group}, 0)")
    data = tab.saved()
    for _ in range(2):
        tab.load(data)
    tab.settle()
    assert tab.page.evaluate(known) == 1


def test_a_refused_prompt_does_not_name_a_file_of_ours(tab, small):
    """Whoever reads the error of a stock node would look for its fault in this pack."""
    tab.load(small.data)
    stack = tab.page.evaluate(
        "app.api.queuePrompt(0, { output: {}, workflow: {} }).then(() => '', ({ stack }) => stack)"
    )
    assert "queuePrompt" in stack and "ADT-Tree" not in stack
