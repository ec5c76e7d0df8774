"""Tests of the Prompts node on the page. A message under the node must not resize its text box."""

from itertools import count

NUMBERS = count()
HEIGHT = """() => {
  const node = app.graph.nodes.find((one) => one.type === 'ADTTreePrompts');
  const own = document.querySelector(`.lg-node[data-node-id="${node.id}"] textarea`); // of Nodes 2.0
  return (own ?? node.widgets.find((one) => one.name === 'text').element).getBoundingClientRect().height;
}"""
MESSAGE_SHOWN = "() => adtTest.line(app.graph.nodes.find((one) => one.type === 'ADTTreePrompts'))?.includes('blank')"
TYPE = """(number) => {
  const node = (type) => app.graph.nodes.find((one) => one.type === type);
  const widget = (type, name) => node(type).widgets.find((one) => one.name === name);
  widget('ADTTreePrompts', 'text').value = 'a red house\\n\\na blue boat ' + number;
  widget('ADTTreeModelLoader', 'model').value = 'tiny';
}"""


def test_message_about_a_blank_line_does_not_resize_the_box(tab):
    """The message must have a fixed height of two lines."""
    tab.open_template("ADT-Tree batch of prompts with report")
    tab.settle()
    before = tab.page.evaluate(HEIGHT)
    tab.page.evaluate(TYPE, next(NUMBERS))  # a new list isn't in ComfyUI's cache
    tab.run()
    tab.page.wait_for_function(MESSAGE_SHOWN)
    tab.settle()
    tab.screenshot("blank_line")
    assert before > 100 and before - tab.page.evaluate(HEIGHT) < 50
