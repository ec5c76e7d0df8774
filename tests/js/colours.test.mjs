import assert from "node:assert/strict";
import test from "node:test";
import { colourOf, SCALE } from "../../js/colours.js";

/** Relative luminance of an sRGB colour (WCAG). Colour-blind users can distinguish colours by their luminance. */
function luminance(rgb) {
  const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** OKLab coordinates [L, a, b] of an sRGB colour, 0..255. */
function oklab(rgb) {
  const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

test("lightness increases along the scale, so that colour-blind users keep the order", () => {
  const lights = SCALE.filter((_, i) => i % 8 === 0).map(luminance);
  for (let i = 1; i < lights.length; i++) assert.ok(lights[i] > lights[i - 1], `step ${i}`);
});

test("equal differences look equal", () => {
  const points = Array.from({ length: 9 }, (_, i) => oklab(colourOf(i / 8)));
  const steps = points.slice(1).map((p, i) => Math.hypot(...p.map((x, k) => x - points[i][k])));
  const mean = steps.reduce((a, b) => a + b) / steps.length;
  for (const step of steps) assert.ok(Math.abs(step / mean - 1) < 0.1, `${step} against ${mean}`);
});

test("values outside the scale have the colour of the nearer end", () => {
  assert.deepEqual(colourOf(-1), SCALE[0]);
  assert.deepEqual(colourOf(2), SCALE[255]);
});
