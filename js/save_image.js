/** Image file that shows an acceptance map, with the colour scale and captions below the map. */

import { ends, RAMP } from "./legend.js";
import { draw } from "./map_view.js";

// Sizes in pixels:
const SIDE = 1024; // longer side of a grid
const LINE = 22; // height of a line of text
const LABELS = 24; // space above and between two grids
const EDGE = 8; // space beside a line
const BAR = 10; // height of the scale

/**
 * Download a map as an image file.
 *
 * @param {string} name name of the file
 * @param {{rows: number, columns: number, across: number, down: number}} grids size of the grids of tokens, and their
 *   number side by side and below each other
 * @param {(width: number, height: number) => object[]} panesIn function that returns the panes to draw in a box
 * @param {{figure: string, range: number[]}} scale quantity that the colours show, and its values at the scale's ends
 * @param {string[]} lines texts below the scale
 */
export async function saveImage(name, { rows, columns, across, down }, panesIn, { figure, range }, lines) {
  const side = SIDE / Math.max(rows, columns);
  const width = across * columns * side + (across - 1) * LABELS;
  const height = down * rows * side + (across > 1 ? LABELS : 0);
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height + LINE * (lines.length + 2);
  const context = canvas.getContext("2d");
  draw(context, canvas, panesIn(width, height));
  fillBackground(context, canvas);
  context.font = "15px sans-serif";
  drawScale(context, ends(figure, range), height + LINE, width);
  lines.forEach((line, i) => {
    context.fillText(line, EDGE, height + LINE * (i + 2), width - 2 * EDGE);
  });
  download(name, await new Promise((resolve) => canvas.toBlob(resolve)));
}

/** Fill the background of what is drawn, and prepare to write on it. */
export function fillBackground(context, { width, height }) {
  context.globalCompositeOperation = "destination-over";
  context.fillStyle = "#16181d";
  context.fillRect(0, 0, width, height);
  context.globalCompositeOperation = "source-over";
  context.fillStyle = "#eee";
  context.textBaseline = "middle";
}

/** Let the browser save a file. */
export function download(name, blob) {
  const address = URL.createObjectURL(blob);
  const link = Object.assign(document.createElement("a"), { href: address, download: name });
  link.click();
  URL.revokeObjectURL(address);
}

/** Draw the scale as a bar between the labels of its ends. */
function drawScale(context, [dark, light], middle, width) {
  const [left, right] = [dark, light].map((text) => context.measureText(text).width + 2 * EDGE);
  const ramp = context.createLinearGradient(left, 0, width - right, 0);
  RAMP.forEach((colour, i) => {
    ramp.addColorStop(i / (RAMP.length - 1), colour);
  });
  context.fillText(dark, EDGE, middle);
  context.fillText(light, width - right + EDGE, middle);
  const ink = context.fillStyle;
  context.fillStyle = ramp;
  context.fillRect(left, middle - BAR / 2, width - left - right, BAR);
  context.fillStyle = ink;
}
