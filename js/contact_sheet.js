/** Layout of a contact sheet: all images of a batch side by side and below each other. */

import { layout } from "./map_view.js";

const GAP = 4; // pixels between two images

/** The number of images in a row with which they are as large as possible in a box. */
export function imagesAcross(width, height, rows, columns, count) {
  const side = (/** @type {number} */ across) => {
    const down = Math.ceil(count / across);
    return Math.min((width - GAP * (across - 1)) / (across * columns), (height - GAP * (down - 1)) / (down * rows));
  };
  const all = Array.from({ length: count }, (_, i) => i + 1);
  return all.reduce((best, across) => (side(across) > side(best) ? across : best), 1);
}

/**
 * The boxes of the images in a box, row by row.
 *
 * @param {number} across number of images in a row
 * @returns {import("./map_view.js").Box[]}
 */
export function sheetBoxes(width, height, rows, columns, count, across) {
  const down = Math.ceil(count / across);
  const w = (width - GAP * (across - 1)) / across;
  const h = (height - GAP * (down - 1)) / down;
  return Array.from({ length: count }, (_, i) => {
    const [box] = layout(w, h, rows, columns, 1);
    return { ...box, x: box.x + (i % across) * (w + GAP), y: box.y + Math.floor(i / across) * (h + GAP) };
  });
}
