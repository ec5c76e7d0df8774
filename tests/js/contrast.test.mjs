// Contrast of the texts that acceptance_map.css colours, on the backgrounds of nodes in ComfyUI's dark and light theme.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

const CSS = readFileSync(new URL("../../js/acceptance_map.css", import.meta.url), "utf8");
const THEMES = {
  dark: { text: "#dddddd", under: ["#353535", "#222222"] },
  light: { text: "#222222", under: ["#f5f5f5", "#c9c9c9"] },
};
const rgb = (hex) => [1, 3, 5].map((i) => Number.parseInt(hex.slice(i, i + 2), 16));

/** Relative luminance (WCAG). */
function luminance(colour) {
  const [r, g, b] = colour.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

const mixes = [...CSS.matchAll(/ color: color-mix\(in srgb, (#\w{6}) (\d+)%, var\(--input-text/g)];

test("messages and links have a contrast of at least 4.5 in both themes", () => {
  assert.equal(mixes.length, 2);
  for (const [, tint, share] of mixes)
    for (const [name, { text, under }] of Object.entries(THEMES)) {
      const mixed = rgb(tint).map((c, i) => (c * share + rgb(text)[i] * (100 - share)) / 100);
      for (const ground of under) assert.ok(contrast(mixed, rgb(ground)) >= 4.5, `${tint} on ${ground} (${name})`);
    }
  assert.doesNotMatch(CSS, /^ {2}color: #(e8c268|6fc0de)/m);
});
