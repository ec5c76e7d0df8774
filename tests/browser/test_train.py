"""Tests of the Train Drafter node on the page.

Text under the node must state how long the training takes, and then its result. The node must show the training curve.
"""

from itertools import count

NUMBERS = count()  # numbers of trainings. Each training needs a new number, because a finished training isn't repeated.

SHOWN = """([id, name]) => {
  const node = app.graph.getNodeById(id);
  const said = adtTest.line(node);
  return said.startsWith(`'${name}' drafts `) && [512, 640].includes(node.imgs?.[0]?.naturalWidth);
}"""
"""Returns whether the node shows the result and a curve. During the training, the curve is 512 pixels wide."""
HEAR = """() => {
  adtTest.text = [];
  app.api.addEventListener('progress_text', ({ detail }) => adtTest.text.push(detail.text));
}"""


def test_training_shows_its_needs_and_its_curve(tab, workflow):
    prompts = "\n".join(f"a {colour} {thing}" for colour in ("red", "blue") for thing in ("house", "ball", "car"))
    numbers = [0, 3.0, 1.0, 0, 1.0, "model default"]
    name = f"tiny {next(NUMBERS)}"  # test_language.py ignores this word
    values = [name, prompts, 4, 60.0, *numbers, 10, 2, 2, 2, 8.0]
    node = workflow.add("ADTTreeTrainDrafter", (40, 640), values, (420, 480), model=(1, 0))
    workflow.data["nodes"] = [one for one in workflow.data["nodes"] if one["id"] in (1, node)]
    workflow.data["links"] = [link for link in workflow.data["links"] if link[3] == node]
    for output in workflow.node("ADTTreeModelLoader")["outputs"]:
        output["links"] = [link for link, *_ in workflow.data["links"] if output["name"] == "model"]
    tab.load(workflow.data)
    tab.page.evaluate(HEAR)
    tab.run()
    tab.page.wait_for_function(SHOWN, arg=[node, name])
    tab.screenshot("train")
    begin, first, *steps = tab.page.evaluate("adtTest.text")
    assert begin == "Measuring how long the training takes"
    assert first.startswith("The training takes about ") and any(" tokens a pass; about " in line for line in steps)
