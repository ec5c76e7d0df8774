"""Tests of the contrast of the pack's coloured texts, in ComfyUI's dark and light themes."""

import pytest

CONTRASTS = """async (theme) => {
  await app.extensionManager.setting.set('Comfy.ColorPalette', theme);
  const [node] = app.graph.nodes.filter(({ type }) => type === 'ADTTreeSampler');
  const parent = node.widgets.find(({ name }) => name === 'acceptance_map').map.panel.element;
  const context = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const pixel = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const backgroundOf = (one) => {
    for (; one?.closest('.lg-node'); one = one.parentElement) {
      const colour = pixel(getComputedStyle(one).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return pixel(node.bgcolor ?? LiteGraph.NODE_DEFAULT_BGCOLOR);
  };
  const linear = (value) => (value > 10 ? ((value / 255 + 0.055) / 1.055) ** 2.4 : value / 255 / 12.92);
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  return ['info', 'warning', 'error', 'adt-link', 'adt-map-caption'].map((name) => {
    const className = name.startsWith('adt') ? name : 'adt-line';
    const text = Object.assign(document.createElement('button'), { className });
    text.dataset.level = name;
    if (className !== 'adt-link') text.style.background = 'none';
    parent.append(text);
    const lights = [pixel(getComputedStyle(text).color), backgroundOf(parent)].map(luminance).sort((a, b) => b - a);
    text.remove();
    return (lights[0] + 0.05) / (lights[1] + 0.05);
  });
}"""
"""Switches to a theme. Returns the contrast (WCAG) of lines of each level, of "Restore seed", and of other text."""


@pytest.mark.every_frontend
def test_texts_have_enough_contrast_in_every_theme(tab, workflow, prefer):
    prefer("Comfy.ColorPalette", "dark")
    tab.load(workflow.data)
    for theme in ("dark", "light"):
        contrasts = tab.page.evaluate(CONTRASTS, theme)
        tab.screenshot(f"contrast_{theme}")
        assert min(contrasts) >= 4.5, (theme, contrasts)
