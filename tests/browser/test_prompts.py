"""The Prompts node on the page: a message under it leaves its text box as it was."""

from itertools import count

NUMBERS = count()
HEIGHT = """() => {
  const node = app.graph.nodes.find((one) => one.type === 'ADTTreePrompts');
  const own = document.querySelector(`.lg-node[data-node-id="${node.id}"] textarea`); // of Nodes 2.0
  return (own ?? node.widgets.find((one) => one.name === 'text').element).getBoundingClientRect().height;
}"""
TOLD = "() => adtTest.line(app.graph.nodes.find((one) => one.type === 'ADTTreePrompts'))?.includes('blank')"
TYPE = """(number) => {
  const node = (type) => app.graph.nodes.find((one) => one.type === type);
  const widget = (type, name) => node(type).widgets.find((one) => one.name === name);
  widget('ADTTreePrompts', 'text').value = 'a red house\\n\\na blue boat ' + number;
  widget('ADTTreeModelLoader', 'model').value = 'tiny';
}"""


def test_a_blank_line_is_told_and_the_box_keeps_its_size(tab):
    """The message has a fixed height of two lines; the box was half as high with it."""
    tab.open_template("ADT-Tree batch of prompts with report")
    tab.settle()
    before = tab.page.evaluate(HEIGHT)
    tab.page.evaluate(TYPE, next(NUMBERS))  # a new list, which is not in ComfyUI's cache
    tab.run()
    tab.page.wait_for_function(TOLD)
    tab.settle()
    tab.screenshot("blank_line")
    assert before > 100 and before - tab.page.evaluate(HEIGHT) < 50
