/** Where two pictures differ. */

import { words } from "./words.js";

const made = new WeakMap(); // picture A -> { b, canvas, identical }: only the last B of each

/** |A - B|, in the size of A, and whether nothing differs; null while one of them is missing. */
export function difference(a, b) {
  if (!a || !b) return null;
  const last = made.get(a);
  if (last?.b === b) return last;
  const canvas = new OffscreenCanvas(a.naturalWidth ?? a.width, a.naturalHeight ?? a.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(a, 0, 0, canvas.width, canvas.height);
  context.globalCompositeOperation = "difference";
  context.drawImage(b, 0, 0, canvas.width, canvas.height);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  const identical = data.every((level, i) => level === 0 || i % 4 === 3);
  made.set(a, { b, canvas, identical });
  return made.get(a);
}

/** One pane in place of two, see `draw` in map_view.js: the difference of their pictures, without a map. */
export function subtracted([a, b]) {
  const found = difference(a.picture, b.picture);
  const label = found ? (found.identical ? words.identical : words.differs) : "";
  return { ...a, picture: found?.canvas ?? null, values: a.values.map(() => NaN), opacity: 0, label, hidden: null, tried: [] };
}
