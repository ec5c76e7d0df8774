/** Difference of two images. */

import { texts } from "./texts.js";

const computed = new WeakMap(); // bitmap A -> { b, canvas, identical }: the last bitmap B, and the result

/**
 * The difference |A - B| of two bitmaps, or null if a bitmap is missing. `canvas` shows the difference in the size of
 * A. `identical` is true if the difference is 0 for all pixels.
 */
export function difference(a, b) {
  if (!a || !b) return null;
  const last = computed.get(a);
  if (last?.b === b) return last;
  const canvas = new OffscreenCanvas(a.naturalWidth ?? a.width, a.naturalHeight ?? a.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(a, 0, 0, canvas.width, canvas.height);
  context.globalCompositeOperation = "difference";
  context.drawImage(b, 0, 0, canvas.width, canvas.height);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  const identical = data.every((level, i) => level === 0 || i % 4 === 3); // every fourth value is alpha
  const result = { b, canvas, identical };
  computed.set(a, result);
  return result;
}

/** A pane that shows the difference between the images of two panes, without a map; see `draw` in map_view.js. */
export function subtracted([a, b]) {
  const found = difference(a.bitmap, b.bitmap);
  return {
    ...a,
    bitmap: found?.canvas ?? null,
    values: a.values.map(() => NaN),
    opacity: 0,
    label: found ? label(found) : "",
    hidden: null,
    tree: [],
  };
}

function label({ identical }) {
  return identical ? texts.identical : texts.differs;
}
