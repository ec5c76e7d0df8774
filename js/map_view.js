/** Draws maps on a canvas: the image, the token grid over it, and the cursor. Everything is worked out from its arguments. */

import { colourOf } from "./colours.js";

const GAP = 8;
const LABEL = 16;
const GRID_FROM = 5; // pixels of a token's side below which lines would hide the colours

/**
 * Where each of `count` grids goes: side by side, as large as fits and centred.
 * @returns {{x: number, y: number, width: number, height: number}[]} in CSS pixels
 */
export function layout(width, height, rows, columns, count) {
  const top = count > 1 ? LABEL : 0;
  const side = Math.max(0, Math.min((width - GAP * (count - 1)) / (count * columns), (height - top) / rows));
  const [w, h] = [side * columns, side * rows];
  const left = (width - count * w - (count - 1) * GAP) / 2;
  return Array.from({ length: count }, (_, i) => ({ x: left + i * (w + GAP), y: top + (height - top - h) / 2, width: w, height: h }));
}

/** The pane and the cell at a point, or null. */
export function hit(panes, rows, columns, x, y) {
  for (const [pane, box] of panes.entries()) {
    const [column, row] = [Math.floor(((x - box.x) / box.width) * columns), Math.floor(((y - box.y) / box.height) * rows)];
    if (column >= 0 && column < columns && row >= 0 && row < rows) return { pane, cell: row * columns + column };
  }
  return null;
}

/** The colours of a map as an image of one pixel per token; undecided tokens are transparent. */
export function paint(values, rows, columns, [low, high]) {
  const image = new ImageData(columns, rows);
  values.forEach((value, cell) => {
    if (Number.isNaN(value)) return;
    const [red, green, blue] = colourOf((value - low) / (high - low));
    image.data.set([red, green, blue, 255], 4 * cell);
  });
  const canvas = new OffscreenCanvas(columns, rows);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/**
 * Draw everything.
 *
 * @param {CanvasRenderingContext2D} context scaled to CSS pixels
 * @param {{width: number, height: number}} size in CSS pixels
 * @param {object[]} panes one or two of { box, rows, columns, values, range, picture, opacity, label, cursor, together, live }
 */
export function draw(context, size, panes) {
  context.clearRect(0, 0, size.width, size.height);
  for (const pane of panes) drawPane(context, pane);
}

function drawPane(context, pane) {
  const { box, rows, columns } = pane;
  if (!box.width) return;
  context.fillStyle = "#16181d";
  context.fillRect(box.x, box.y, box.width, box.height);
  if (pane.picture) {
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    context.drawImage(pane.picture, box.x, box.y, box.width, box.height);
  }
  context.globalAlpha = pane.picture ? pane.opacity : 1;
  context.imageSmoothingEnabled = false;
  context.drawImage(paint(pane.values, rows, columns, pane.range), box.x, box.y, box.width, box.height);
  context.globalAlpha = 1;
  if (box.width / columns >= GRID_FROM && (!pane.picture || pane.opacity > 0)) drawGrid(context, pane);
  if (pane.cursor !== null) drawCursor(context, pane);
  if (pane.label) {
    context.fillStyle = pane.ink;
    context.font = "11px sans-serif";
    context.textBaseline = "top";
    context.fillText(pane.label, box.x, box.y - LABEL + 2, box.width);
  }
}

function drawGrid(context, { box, rows, columns }) {
  context.beginPath();
  for (let column = 1; column < columns; column++) {
    const x = box.x + (column * box.width) / columns;
    context.moveTo(x, box.y);
    context.lineTo(x, box.y + box.height);
  }
  for (let row = 1; row < rows; row++) {
    const y = box.y + (row * box.height) / rows;
    context.moveTo(box.x, y);
    context.lineTo(box.x + box.width, y);
  }
  context.strokeStyle = "rgb(0 0 0 / 0.28)";
  context.lineWidth = 0.75;
  context.stroke();
}

/** A frame around the token, and a thinner one around each that came in the same round. */
function drawCursor(context, { box, columns, rows, cursor, together }) {
  const [w, h] = [box.width / columns, box.height / rows];
  const frame = (cell, style, width) => {
    context.strokeStyle = style;
    context.lineWidth = width;
    context.strokeRect(box.x + (cell % columns) * w + 0.5, box.y + Math.floor(cell / columns) * h + 0.5, w - 1, h - 1);
  };
  if (together) for (let cell = together[0]; cell <= together[1]; cell++) frame(cell, "rgb(255 255 255 / 0.75)", 1.5);
  frame(cursor, "#000", 4);
  frame(cursor, "#fff", 2);
}
