/** Draws a map as a file: large, with what made it below. */

import { draw, layout } from "./map_view.js";

const SIDE = 1024; // pixels of a grid's longer side
const LINE = 22; // pixels of a line of text
const LABELS = 24; // pixels of room above two grids

/**
 * @param {string} name of the file
 * @param {{rows: number, columns: number, count: number}} grids
 * @param {(boxes: object[]) => object[]} boxed what is drawn in these boxes, see map_view.js
 * @param {string[]} lines below it
 */
export async function saveImage(name, { rows, columns, count }, boxed, lines) {
  const side = SIDE / Math.max(rows, columns);
  const [width, height] = [count * columns * side + (count - 1) * LABELS, rows * side + (count > 1 ? LABELS : 0)];
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height + LINE * (lines.length + 1)];
  const context = canvas.getContext("2d");
  draw(context, canvas, boxed(layout(width, height, rows, columns, count)));
  context.globalCompositeOperation = "destination-over";
  context.fillStyle = "#16181d";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.globalCompositeOperation = "source-over";
  context.fillStyle = "#eee";
  context.font = "15px sans-serif";
  context.textBaseline = "middle";
  lines.forEach((line, i) => context.fillText(line, 8, height + LINE * (i + 1), canvas.width - 16));
  const address = URL.createObjectURL(await new Promise((resolve) => canvas.toBlob(resolve)));
  const link = Object.assign(document.createElement("a"), { href: address, download: name });
  link.click();
  URL.revokeObjectURL(address);
}
