/** Draws a map as a file: large, with what made it below. */

import { ends, RAMP } from "./legend.js";
import { draw, layout } from "./map_view.js";

const SIDE = 1024; // pixels of a grid's longer side
const LINE = 22; // pixels of a line of text
const LABELS = 24; // pixels of room above two grids
const EDGE = 8; // and beside a line
const BAR = 10; // pixels of the height of the scale

/**
 * @param {string} name of the file
 * @param {{rows: number, columns: number, count: number}} grids
 * @param {(boxes: object[]) => object[]} boxed what is drawn in these boxes, see map_view.js
 * @param {{figure: string, range: [number, number]}} scale what the colours mean
 * @param {string[]} lines below it
 */
export async function saveImage(name, { rows, columns, count }, boxed, { figure, range }, lines) {
  const side = SIDE / Math.max(rows, columns);
  const [width, height] = [count * columns * side + (count - 1) * LABELS, rows * side + (count > 1 ? LABELS : 0)];
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height + LINE * (lines.length + 2)];
  const context = canvas.getContext("2d");
  draw(context, canvas, boxed(layout(width, height, rows, columns, count)));
  context.globalCompositeOperation = "destination-over";
  context.fillStyle = "#16181d";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.globalCompositeOperation = "source-over";
  context.fillStyle = "#eee";
  context.font = "15px sans-serif";
  context.textBaseline = "middle";
  drawScale(context, ends(figure, range), height + LINE, width);
  lines.forEach((line, i) => context.fillText(line, EDGE, height + LINE * (i + 2), width - 2 * EDGE));
  const address = URL.createObjectURL(await new Promise((resolve) => canvas.toBlob(resolve)));
  const link = Object.assign(document.createElement("a"), { href: address, download: name });
  link.click();
  URL.revokeObjectURL(address);
}

/** A bar of the scale's colours between what its ends mean. */
function drawScale(context, [dark, light], middle, width) {
  const [left, right] = [dark, light].map((text) => context.measureText(text).width + 2 * EDGE);
  const ramp = context.createLinearGradient(left, 0, width - right, 0);
  RAMP.forEach((colour, i) => ramp.addColorStop(i / (RAMP.length - 1), colour));
  context.fillText(dark, EDGE, middle);
  context.fillText(light, width - right + EDGE, middle);
  const ink = context.fillStyle;
  context.fillStyle = ramp;
  context.fillRect(left, middle - BAR / 2, width - left - right, BAR);
  context.fillStyle = ink;
}
