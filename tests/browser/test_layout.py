"""Tests of the space that nodes take: natural sizes, and no overlaps in any template."""

import pytest
from test_templates import RUNNABLE

NOTE = """() => {
  const node = app.graph.nodes.find((node) => node.type === 'MarkdownNote');
  const limited = (one) => /auto|scroll/.test(getComputedStyle(one).overflowY);
  const scrolls = (one) => limited(one) && one.scrollHeight > one.clientHeight + 1;
  const element = document.querySelector(`.lg-node[data-node-id="${node.id}"]`) ?? document;
  return [...element.querySelectorAll('.ProseMirror, .ProseMirror *, .comfy-markdown-content, .lg-node-content *')]
    .filter(scrolls)
    .map((one) => [one.className, one.scrollHeight, one.clientHeight]);
}"""
"""Returns the elements of the template's note that must be scrolled."""


@pytest.mark.parametrize("language", ["en", "zh"])
def test_first_note_is_visible_without_scrolling(tab, language):
    tab.set_language(language)
    try:
        tab.open_template(RUNNABLE[0])
        tab.settle()
        tab.screenshot(f"note_{language}")
        assert tab.page.evaluate(NOTE) == []
    finally:
        tab.set_language("en")
