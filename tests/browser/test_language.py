"""Tests of the page in Chinese. Templates, progress messages and maps must be translated."""

import itertools
import json
import re

import pytest
from comfy_server import ROOT
from map_reading import done
from test_templates import RUN, RUNNABLE, SMALL, STAYS, out_of_place

SEEDS = itertools.count(9050)
"""Seeds that no other batch uses. Otherwise, images could exist already."""


@pytest.fixture(scope="module")
def chinese(tab):
    """Page in Chinese. It is loaded once for these tests."""
    tab.set_language("zh")
    yield tab
    tab.set_language("en")


def test_template_is_translated(chinese):
    """The saved workflow must have only Chinese texts."""
    chinese.open_template("ADT-Tree compared with no drafting")
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
"""Returns the texts that the canvas draws."""


@pytest.fixture
def other_mode(chinese):
    """Return a function that switches the page between canvas mode and Nodes 2.0, without a reload.

    The mode is restored after the test.
    """
    own = chinese.vue
    yield lambda: chinese.show(not own)
    chinese.show(own)


def test_choices_are_translated(chinese, other_mode):
    """Both modes must show translations. Saved values must be the same in every language."""
    chinese.open_template("ADT-Tree text to image (start here)")
    for turn in (lambda: None, other_mode):
        turn()
        for label in ("自动", "模型默认", "引导强度（由预设决定）"):
            if chinese.vue:
                chinese.page.locator("[data-node-id]").get_by_text(label, exact=True).first.wait_for()
            else:
                assert label in chinese.page.evaluate(DRAWN)
    saved = chinese.page.evaluate("app.graph.serialize().nodes.find((node) => node.type === 'ADTTreeSampler')")
    assert {"Auto", "model default"} <= {value for value in saved["widgets_values"] if isinstance(value, str)}


EMPTY = """app.graph.nodes.find(({ type }) => type === 'ADTTreeBatchSampler')
  .widgets.find(({ name }) => name === 'negative').element.placeholder"""
"""Returns the name in the empty text box of the negative prompt."""


def test_names_in_empty_text_boxes_are_translated(chinese):
    chinese.open_template("ADT-Tree batch of prompts with report")
    assert chinese.page.evaluate(EMPTY) == "负面提示词"


READ = """([seed, count]) => {
  const find = (name) => app.graph.nodes.flatMap((node) => node.widgets ?? []).find((widget) => widget.name === name);
  for (const [name, value] of Object.entries({ seed, count })) find(name).value = value;
  adtTest.lines = [];
  const batch = app.graph.nodes.find(({ type }) => type === 'ADTTreeBatchSampler');
  adtTest.read = () => adtTest.lines.push(adtTest.line(batch));
  app.api.addEventListener('progress_text', adtTest.read); // after the pack, which has written its line
}"""
"""Prepares a batch, and records the text that users see under nodes."""


def test_progress_is_translated(chinese):
    chinese.open_template("ADT-Tree batch of prompts with report")
    chinese.page.evaluate(READ, [next(SEEDS), 2])
    assert chinese.page.evaluate(RUN)["end"] == ["execution_success", None]
    lines = [line for line in chinese.page.evaluate("adtTest.lines") if line]
    assert "2 张图像，位于 output/adt_tree_batches/" in lines[-1]
    assert lines[0].startswith("2 张图像") and not any(" of " in line for line in lines)


ASK = """(values) => values.forEach((value, i) => {
  app.graph.nodes.flatMap((node) => node.widgets ?? []).find(({ name }) => name === ['text', 'seed'][i]).value = value;
})"""
"""Sets the prompt and the seed."""


HEAR_ALL = """() => {
  adtTest.text = [];
  app.api.addEventListener('progress_text', ({ detail }) => adtTest.text.push(detail.text));
}"""
"""Starts to record every line of text under a node."""


def test_unknown_words_are_listed_in_the_language_of_the_page(chinese):
    """The text must stay above the map, where it is visible on a small screen."""
    chinese.open_template("ADT-Tree text to image (start here)")
    chinese.page.evaluate(ASK, ["a cat on the moor", next(SEEDS)])
    chinese.page.evaluate(HEAR_ALL)
    assert chinese.page.evaluate(RUN)["end"] == ["execution_success", None]
    chinese.page.wait_for_function("adtTest.text.length > 0")
    message = "未画出：cat, moor。这个小模型只画房子、船、热气球、杯子等"
    begins = STAYS.replace("=== line", "?.startsWith(line)")
    chinese.page.wait_for_function(begins, arg=message)
    chinese.screenshot("unknown_chinese")
    assert out_of_place(chinese) == []


def test_map_is_translated(chinese, workflow):
    sampler = done(chinese, workflow)
    chinese.wait(sampler, "panel.line.textContent.includes('144 个 token，用时')")
    assert chinese.widget(sampler).locator("button[data-figure=depth]").text_content() == "深度"
    assert chinese.map(sampler, "map.node.title") != "ADT-Tree Sampler", "the title of the node must be translated, too"
    chinese.screenshot("chinese")


SHOWN = """() => {
  const ours = app.graph.nodes.filter((node) => node.type.startsWith('ADTTree'));
  const label = (one) => one.label ?? one.localized_name ?? one.name;
  const words = (element) => {
    const found = document.createNodeIterator(element ?? document.createTextNode(''), NodeFilter.SHOW_TEXT), texts = [];
    for (let text = found.nextNode(); text; text = found.nextNode()) texts.push(text.data);
    return texts;
  };
  const tips = (element) => [...(element?.querySelectorAll('*') ?? [])].flatMap((one) =>
    [one.title, one.ariaLabel, one.placeholder].filter(Boolean));
  const texts = (node) => [
    ...[...node.inputs, ...node.outputs].map(label),
    ...(node.widgets ?? []).flatMap((widget) => [
      /acceptance_map|measurement|preview/.test(widget.name) ? '' : (widget.label ?? widget.name),
      ...(widget.options?.values ?? []).map((value) => widget.options.getOptionLabel?.(value) ?? value),
      ...(['text', 'prompts', 'negative', 'methods'].includes(widget.name) ? [] : words(widget.element)),
      ...tips(widget.element),
    ]),
    adtTest.line(node),
  ];
  const notes = app.graph.nodes.filter(({ type }) => type === 'MarkdownNote').map(({ widgets }) => widgets[0].value);
  return [...app.graph.nodes.map(({ title }) => title), ...notes, ...ours.flatMap(texts)].filter(Boolean);
}"""
"""Returns the texts of the page that this pack determines: titles, labels, choices, maps, lines, notes, tooltips."""
NAMES = r"""
ADT-Tree LANTERN EAGLE Jacobi HPSv Inception CLIP VAE GLM-Image/\w+ GLM-Image Transformer Emu ESRGAN Janus-Pro Janus
Markdown JSON UTF CSV Python Hugging\ Face DeepSeek Chameleon Apache MIT Lumina-mGPT Parquet FID ComfyUI RGB
tokens? [Ll]atents? px GB GiB MB ms CFG id top[_-][kp] beta delta factor jacobi int8 int4 fp8 b?float\d+ WebP WebM
ftfy beautifulsoup4 diffusers torch\.\S+ \S+\.(?:json|txt|csv|safetensors|png|md) models/\w+ output/\S+
mc_sim_\w+ naive_extend_\w+ tiny small
""".split()
"""Patterns of names that are the same in every language: of methods, models, files, packages, units and formats."""


def english(texts: list[str]) -> list[str]:
    """Return the texts with words of ASCII letters that are not names.

    Names of models, quoted texts, emphasised names in notes, and the words that the bundled model knows are ignored.
    """
    left = []
    for text in texts:
        plain = re.sub(
            r"^[\w.\- ]+, \d+ px|\*+[\w.\-, ()/]+\*+|'[^']*'|“[^”]*”|（请用英文）.*|其他模型：.*|\{red\|blue\}",
            " ",
            text,
            flags=re.S,
        )
        plain = re.sub(rf"(?<![A-Za-z])(?:{'|'.join(NAMES)})(?![A-Za-z])", " ", plain)
        if words := re.findall(r"[A-Za-z]{2,}", plain):
            left.append(f"{', '.join(words)} in {text[:200]}")
    return left


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "workflows").glob("*.json")))
def test_templates_show_no_english_words(chinese, name):
    chinese.open_template(name)
    chinese.settle()
    assert english(chinese.page.evaluate(SHOWN)) == []


@pytest.mark.parametrize("name", RUNNABLE)
def test_runs_show_no_english_words(chinese, name):
    """Maps, results and lines, after a run."""
    chinese.open_template(name)
    chinese.page.evaluate(SMALL, next(SEEDS))
    assert chinese.page.evaluate(RUN)["end"] == ["execution_success", None]
    chinese.settle()
    assert english(chinese.page.evaluate(SHOWN)) == []


SET = """([type, values]) => {
  const node = app.graph.nodes.find((one) => one.type === type);
  for (const [name, value] of Object.entries(values)) node.widgets.find((one) => one.name === name).value = value;
  adtTest.sent = new Promise((resolve) => {
    const { queuePrompt } = app.api;
    app.api.queuePrompt = async (...args) => {
      app.api.queuePrompt = queuePrompt;
      const answer = queuePrompt.apply(app.api, args);
      answer.then(() => {}, resolve);
      return answer;
    };
    app.api.addEventListener('execution_error', resolve, { once: true });
  });
}"""
"""Sets values of a node. `adtTest.sent` is a promise that resolves when the next prompt is refused or fails."""
LONG = "a red house " * 500
START, BATCH, TRAIN = RUNNABLE[0], RUNNABLE[-1], "ADT-Tree train a drafter for a model"
ERRORS = [
    (START, "CLIPTextEncode", {"text": LONG}),
    (START, "CLIPTextEncode", {"text": " "}),
    (START, "ADTTreeModelLoader", {"model": "Janus-Pro-1B"}),
    (START, "ADTTreeModelLoader", {"model": "mine"}),
    (START, "ADTTreeSampler", {"batch_size": 0}),
    (BATCH, "ADTTreePrompts", {"text": LONG}),
    (BATCH, "ADTTreePrompts", {"file": "missing.txt"}),
    (BATCH, "ADTTreePrompts", {"file": "../outside.txt"}),
    (BATCH, "ADTTreePrompts", {"filter": "zebra"}),
    (BATCH, "ADTTreePrompts", {"start_index": 99}),
    (BATCH, "ADTTreePrompts", {"text": "a __colour__ house"}),
    (BATCH, "ADTTreePrompts", {"text": "# nothing"}),
    (BATCH, "ADTTreeBatchReport", {"filename": "../report"}),
    (TRAIN, "ADTTreeTrainDrafter", {"name": "jacobi"}),
    (TRAIN, "ADTTreeTrainDrafter", {"prompts": "missing.txt"}),
    ("ADT-Tree relaxed acceptance (LANTERN)", "ADTTreeSettings", {"depth_min": 9, "depth_max": 8}),
]
"""Template, node, and wrong values of its inputs."""
ERROR_LINES = """async () => {
  await Promise.race([adtTest.sent, new Promise((resolve) => setTimeout(resolve, 20_000))]);
  await new Promise((resolve) => setTimeout(resolve, 100));
  return app.graph.nodes.map((node) => adtTest.line(node)).filter(Boolean);
}"""


@pytest.mark.parametrize("template, node, values", ERRORS)
def test_errors_show_no_english_words(chinese, template, node, values):
    """ComfyUI's own dialog shows the English sentence, which is also in the log."""
    chinese.open_template(template)
    chinese.page.evaluate(SET, [node, values])
    chinese.run()
    lines = chinese.page.evaluate(ERROR_LINES)
    assert lines and english(lines) == []
