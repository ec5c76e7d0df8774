"""Tests of the Prompts node on the page. A message under the node must not resize its text box."""

from itertools import count

from test_templates import nodes_of

PROMPTS = next(node for node in nodes_of("ADT-Tree batch of prompts with report") if node["type"] == "ADTTreePrompts")
NUMBERS = count()
NODE = "app.graph.nodes.find((one) => one.type === 'ADTTreePrompts')"
FILE = f"{NODE}.widgets.find((one) => one.name === 'file')"
TEXT = (  # the text box, which Nodes 2.0 makes itself
    f'(document.querySelector(`.lg-node[data-node-id="${{{NODE}.id}}"] textarea`)'
    f" ?? {NODE}.widgets.find((one) => one.name === 'text').element)"
)
HEIGHT = f"{TEXT}.getBoundingClientRect().height"
LINE = f"adtTest.line({NODE})"
CHOOSE = """([file, text]) => {
  const node = (type) => app.graph.nodes.find((one) => one.type === type);
  const widget = (type, name) => node(type).widgets.find((one) => one.name === name);
  widget('ADTTreePrompts', 'file').value = file;
  widget('ADTTreePrompts', 'text').value = text;
  widget('ADTTreeModelLoader', 'model').value = 'tiny';
  adtTest.end = new Promise((resolve) => app.api.addEventListener('execution_success', resolve, { once: true }));
}"""


def run(tab, file: str, text: str) -> None:
    """Run the template with prompts from a file, or from a text, until the end."""
    tab.page.evaluate(CHOOSE, [file, text])
    tab.run()
    tab.page.evaluate("async () => { await adtTest.end }")
    tab.settle()


def test_only_blank_cells_of_a_table_cause_a_message_which_does_not_resize_the_box(tab, comfy):
    """Blank lines in a text only separate prompts. The message must have a fixed height of two lines."""
    tab.open_template("ADT-Tree batch of prompts with report")
    tab.settle()
    before = tab.page.evaluate(HEIGHT)
    number = next(NUMBERS)  # a new list isn't in ComfyUI's cache
    run(tab, "(the text below)", f"a red house\n\na blue boat {number}\n")
    assert tab.page.evaluate(LINE) == "" and tab.page.evaluate(HEIGHT) == before
    name = f"blank-{number}-{tab.vue}.csv"
    (comfy.base / "input").mkdir(exist_ok=True)
    (comfy.base / "input" / name).write_text("prompt,note\na red house,\n,2\n", encoding="utf-8")
    run(tab, name, "")
    assert "1 of 2 prompts are blank and were left out: '2'." in tab.page.evaluate(LINE)
    tab.screenshot("blank_prompt")
    assert before > 100 and before - tab.page.evaluate(HEIGHT) < 50


DROP = f"""async ([name, text]) => {{
  const node = {NODE}, dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([text], name));
  const event = new DragEvent('drop', {{ dataTransfer }});
  return node.onDragOver(event) && node.onDragDrop(event);
}}"""


def test_a_dropped_list_is_stored_and_used(tab, comfy):
    """Files with other contents leave the choice as it is, so that ComfyUI opens them."""
    tab.open_template("ADT-Tree batch of prompts with report")
    number = next(NUMBERS)
    assert tab.page.evaluate(DROP, ["picture.png", "x"]) is False
    assert tab.page.evaluate(DROP, [f"dropped-{number}-{tab.vue}.csv", "prompt\na red house\na blue boat\n"])
    tab.page.wait_for_function(f"{FILE}.value === 'dropped-{number}-{tab.vue}.csv'")
    assert (comfy.base / "input" / f"dropped-{number}-{tab.vue}.csv").read_text(encoding="utf-8").startswith("prompt\n")
    run(tab, f"dropped-{number}-{tab.vue}.csv", "")
    assert tab.page.evaluate(LINE) == "All 2 prompts."
    tab.screenshot("dropped_prompts")


PRESS = f"{NODE}.widgets.find((one) => one.type === 'button').callback()"
VALUES = "app.graph.serialize().nodes.find((one) => one.type === 'ADTTreePrompts').widgets_values.length"


def test_a_list_is_uploaded_with_a_button(tab, comfy, tmp_path):
    """A saved workflow must have no value for the button, because its values are stored by position."""
    tab.open_template("ADT-Tree batch of prompts with report")
    tab.settle()
    assert tab.page.evaluate(VALUES) == len(PROMPTS["widgets_values"])
    listed = tmp_path / f"uploaded-{next(NUMBERS)}-{tab.vue}.csv"
    listed.write_text("prompt\na red house\n", encoding="utf-8")
    with tab.page.expect_file_chooser() as chooser:
        tab.page.evaluate(PRESS)
    chooser.value.set_files(listed)
    tab.page.wait_for_function(f"{FILE}.value === '{listed.name}'")
    assert (comfy.base / "input" / listed.name).read_bytes() == listed.read_bytes()
    tab.screenshot("uploaded_prompts")


PICK = f"(file) => {{ {FILE}.value = file; {FILE}.callback(file, app.canvas, {NODE}); }}"
BOX = f"((box) => [Number(getComputedStyle(box).opacity) < 0.6, box.readOnly || box.disabled])({TEXT})"


def test_the_text_is_dimmed_while_a_file_is_chosen(tab):
    """Also after the workflow is opened with a file."""
    tab.open_template("ADT-Tree batch of prompts with report")
    tab.settle()
    assert tab.page.evaluate(BOX) == [False, False]
    tab.page.evaluate(PICK, "(example captions)")
    tab.settle()
    assert tab.page.evaluate(BOX) == [True, True]
    tab.screenshot("ignored_text")
    tab.load(tab.saved())
    tab.settle()
    assert tab.page.evaluate(BOX) == [True, True]
    tab.page.evaluate(PICK, "(the text below)")
    tab.settle()
    assert tab.page.evaluate(BOX) == [False, False]


def test_prompts_that_are_too_long_are_counted_below_their_list(tab, comfy):
    """The batch fails at the first of them, and the line says how many there are."""
    tab.open_template("ADT-Tree batch of prompts with report")
    name = f"long-{next(NUMBERS)}-{tab.vue}.txt"
    long = "a red house " * 500
    (comfy.base / "input").mkdir(exist_ok=True)
    (comfy.base / "input" / name).write_text(f"a fox\n{long}\na hen\n{long}\na cow\n", encoding="utf-8")
    tab.page.evaluate(CHOOSE.replace("execution_success", "execution_error"), [name, ""])
    tab.run()
    tab.page.evaluate("async () => { await adtTest.end }")
    tab.settle()
    assert tab.page.evaluate(LINE) == "5 prompts found, 2 too long for tiny."
    tab.screenshot("long_prompts")
