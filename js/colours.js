/**
 * Colour scale of acceptance maps, as in nodes/colours.py: a curve from dark blue over green to light yellow in OKLab
 * (B. Ottosson, 2020), in steps of equal length. Lightness increases along the scale. Colour-blind users, and readers
 * of greyscale prints, can distinguish low and high values.
 */

const CURVE = [
  [0.3, 0.02, -0.13],
  [0.6, -0.16, -0.02],
  [0.93, -0.03, 0.15],
]; // control points of a quadratic Bezier curve, each [L, a, b]
const FINE = 2048; // number of short segments with which the length of the curve is measured
const SIZE = 256; // number of colours of the scale

/** The point [L, a, b] of the curve at a parameter, 0..1. */
function onCurve(t) {
  const [p, q, r] = CURVE;
  return p.map((_, i) => (1 - t) ** 2 * p[i] + 2 * t * (1 - t) * q[i] + t ** 2 * r[i]);
}

/** OKLab -> [red, green, blue] of sRGB, 0..255. @param {number[]} colour */
function toSrgb([lightness, a, b]) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((x) => {
    const c = Math.min(Math.max(x, 0), 1);
    return Math.floor(255 * (c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055) + 0.5);
  });
}

function makeScale() {
  const curve = Array.from({ length: FINE + 1 }, (_, i) => onCurve(i / FINE));
  const length = [0];
  for (let i = 1; i <= FINE; i++)
    length.push(length[i - 1] + Math.hypot(...curve[i].map((x, k) => x - curve[i - 1][k])));
  const colours = [];
  for (let i = 0, at = 0; i < SIZE; i++) {
    const wanted = (length[FINE] * i) / (SIZE - 1);
    while (at < FINE - 1 && length[at + 1] < wanted) at++;
    const share = (wanted - length[at]) / (length[at + 1] - length[at]);
    colours.push(toSrgb(curve[at].map((x, k) => x + share * (curve[at + 1][k] - x))));
  }
  return colours;
}

/** 256 colours [red, green, blue], dark to light. */
export const SCALE = makeScale();

/** The colour at a position of the scale, 0..1. A position outside this range has the colour of the nearer end. */
export function colourOf(share) {
  return SCALE[Math.round(Math.min(Math.max(share, 0), 1) * (SIZE - 1))];
}

/** The CSS colour at a position of the scale, 0..1. */
export function cssColour(share) {
  return `rgb(${colourOf(share).join(" ")})`;
}
