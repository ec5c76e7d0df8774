"""A page in Chinese: templates, lines of progress and maps speak it."""

import itertools
import json

import pytest
from map_reading import done
from test_templates import RUN, STAYS, out_of_place

SEEDS = itertools.count(9050)
"""That no other batch has, so that none of its images was made before."""


@pytest.fixture(scope="module")
def chinese(tab):
    """The page in Chinese, loaded once for these tests."""
    tab.speak("zh")
    yield tab
    tab.speak("en")


def test_a_template_is_in_the_language_of_the_page(chinese):
    """What is saved of it is in that language alone."""
    chinese.open_template("ADT-Tree compared with plain decoding")
    assert "提示词" in chinese.page.evaluate("app.graph.nodes.map((node) => node.title)")
    note = chinese.page.evaluate("app.graph.nodes.find((node) => node.type === 'MarkdownNote').widgets[0].value")
    assert note.startswith("## 点击“运行”")
    chinese.screenshot("template_chinese")
    saved = json.dumps(chinese.saved(), ensure_ascii=False)
    assert "Press Run" not in saved and '"zh"' not in saved


DRAWN = """() => {
  const said = [], of = CanvasRenderingContext2D.prototype, { fillText } = of;
  of.fillText = function (text, ...rest) { said.push(text); return fillText.call(this, text, ...rest); };
  app.canvas.draw(true, true);
  of.fillText = fillText;
  return said;
}"""
"""The texts that the canvas draws."""


@pytest.fixture
def other_mode(chinese):
    """A function: the page goes on in the other mode until the end of the test. It is not loaded again."""
    own = chinese.vue
    yield lambda: chinese.show(not own)
    chinese.show(own)


def test_choices_are_in_the_language_of_the_page(chinese, other_mode):
    """In both modes. That is what is shown of them; what is saved is the value that every language has."""
    chinese.open_template("ADT-Tree text to image (start here)")
    for turn in (lambda: None, other_mode):
        turn()
        for label in ("自动", "模型默认"):
            if chinese.vue:
                chinese.page.locator("[data-node-id]").get_by_text(label, exact=True).first.wait_for()
            else:
                assert label in chinese.page.evaluate(DRAWN)
    saved = chinese.page.evaluate("app.graph.serialize().nodes.find((node) => node.type === 'ADTTreeSampler')")
    assert {"Auto", "model default"} <= {value for value in saved["widgets_values"] if isinstance(value, str)}


READ = """([seed, count]) => {
  const find = (name) => app.graph.nodes.flatMap((node) => node.widgets ?? []).find((widget) => widget.name === name);
  for (const [name, value] of Object.entries({ seed, count })) find(name).value = value;
  adtTest.lines = [];
  adtTest.read = () => adtTest.lines.push(app.graph.nodes.map((node) => adtTest.line(node)).find(Boolean) ?? '');
  app.api.addEventListener('progress_text', () => setTimeout(adtTest.read));
}"""
"""Sets a batch, and notes the lines of text as people see them."""


def test_progress_is_in_the_language_of_the_page(chinese):
    chinese.open_template("ADT-Tree batch of prompts with report")
    chinese.page.evaluate(READ, [next(SEEDS), 2])
    assert chinese.page.evaluate(RUN)["end"] == ["execution_success", None]
    last = "2 张图像，其中 0 张是之前生成的；位于 output/adt_tree_batches/"
    chinese.page.wait_for_function(  # a busy page shows the last one late
        "(last) => { adtTest.read(); return adtTest.lines.some((line) => line.includes(last)); }", arg=last
    )
    said = [line for line in chinese.page.evaluate("adtTest.lines") if line]
    assert said[0].startswith("2 张图像") and not any(" of " in line for line in said)


ASK = """(values) => values.forEach((value, i) => {
  app.graph.nodes.flatMap((node) => node.widgets ?? []).find(({ name }) => name === ['text', 'seed'][i]).value = value;
})"""
"""Sets prompt and seed."""


HEAR_ALL = """() => {
  adtTest.text = [];
  app.api.addEventListener('progress_text', ({ detail }) => adtTest.text.push(detail.text));
}"""
"""Notes every line that is shown under a node from now on."""


def test_a_prompt_of_unknown_words_is_told_in_the_language_of_the_page(chinese):
    """Above the map, where it is seen on a small screen, and it stays there."""
    chinese.open_template("ADT-Tree text to image (start here)")
    chinese.page.evaluate(ASK, ["a cat on the moor", next(SEEDS)])
    chinese.page.evaluate(HEAR_ALL)
    assert chinese.page.evaluate(RUN)["end"] == ["execution_success", None]
    chinese.page.wait_for_function("adtTest.text.length > 0")
    said = "这个小模型只认识房子、船、热气球、杯子等的英文词，没有画 'a cat on the moor'，画了别的。"
    begins = STAYS.replace("=== line", "?.startsWith(line)")  # the unknown words follow
    chinese.page.wait_for_function(begins, arg=said)
    chinese.screenshot("unknown_chinese")
    assert out_of_place(chinese) == []


def test_the_map_speaks_the_language_of_the_page(chinese, workflow):
    sampler = done(chinese, workflow)
    chinese.wait(sampler, "panel.line.textContent.includes('144 个 token，用时')")
    assert chinese.widget(sampler).locator("button[data-figure=depth]").text_content() == "深度"
    assert chinese.map(sampler, "map.node.title") != "ADT-Tree Sampler", "the node as well"
    chinese.screenshot("chinese")
