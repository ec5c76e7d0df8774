/**
 * Drawing of acceptance maps on a canvas: the image, the token grid over it, and the cursor.
 *
 * A pane is the drawing of one run. A cell is the place of a token in the grid.
 */

import { SCALE } from "./colours.js";
import { drawMask } from "./kept_tokens.js";

// In CSS pixels:
const GAP = 8; // between two grids
const SHEET_GAP = 4; // between two images of a contact sheet
const LABEL = 16; // height of a label above a grid
const MIN_GRID_CELL = 5; // minimum width of a cell for grid lines; on smaller cells, they would hide the colours
const MIN_NUMBER_CELL = 13; // minimum width of a cell for a number

const LINE = 0.75; // width of a grid line

const BACKGROUND = "#16181d";
const ACCEPTED = "#2fbf71";
const REJECTED = "#ff8a3d";

/**
 * Position and size of a grid in CSS pixels. `clip` is the visible part of a zoomed grid. `label` is the position of
 * the run's name; without it, the name is above the left edge. `enlarged` is true for a zoomed grid.
 *
 * @typedef {{x: number, y: number, width: number, height: number, clip?: Box, enlarged?: boolean,
 *   label?: {x: number, align: string}}} Box
 */

/**
 * The boxes of `count` grids, as large as possible and centred.
 *
 * @param {boolean} over true to put all grids at the same place, false to put them side by side
 * @returns {Box[]}
 */
export function layout(width, height, rows, columns, count, over = false) {
  const top = count > 1 ? LABEL : 0;
  const places = over ? 1 : count;
  const side = Math.max(0, Math.min((width - GAP * (places - 1)) / (places * columns), (height - top) / rows));
  const w = side * columns;
  const h = side * rows;
  const left = (width - places * w - (places - 1) * GAP) / 2;
  return Array.from({ length: count }, (_, i) => ({
    x: left + (over ? 0 : i) * (w + GAP),
    y: top + (height - top - h) / 2,
    width: w,
    height: h,
  }));
}

/** The number of images in a row with which they are as large as possible in a box. */
export function imagesAcross(width, height, rows, columns, count) {
  const side = (/** @type {number} */ across) => {
    const down = Math.ceil(count / across);
    return Math.min(
      (width - SHEET_GAP * (across - 1)) / (across * columns),
      (height - SHEET_GAP * (down - 1)) / (down * rows),
    );
  };
  const all = Array.from({ length: count }, (_, i) => i + 1);
  return all.reduce((best, across) => (side(across) > side(best) ? across : best), 1);
}

/**
 * The boxes of the images in a box, row by row.
 *
 * @param {number} across number of images in a row
 * @returns {Box[]}
 */
export function sheetBoxes(width, height, rows, columns, count, across) {
  const down = Math.ceil(count / across);
  const w = (width - SHEET_GAP * (across - 1)) / across;
  const h = (height - SHEET_GAP * (down - 1)) / down;
  return Array.from({ length: count }, (_, i) => {
    const [box] = layout(w, h, rows, columns, 1);
    return { ...box, x: box.x + (i % across) * (w + SHEET_GAP), y: box.y + Math.floor(i / across) * (h + SHEET_GAP) };
  });
}

/**
 * The box of the complete zoomed grid, which is larger than the box through which the user sees a part of it.
 *
 * @param {Box} box box through which the grid is seen
 * @param {{scale: number, x: number, y: number}} view zoom factor, and the point of the grid (0..1) in the box's centre
 * @returns {Box}
 */
export function zoomed(box, view) {
  const { scale } = view;
  const [width, height] = [scale * box.width, scale * box.height];
  const x = box.x + box.width / 2 - view.x * width;
  const y = box.y + box.height / 2 - view.y * height;
  return { x, y, width, height, enlarged: scale > 1 };
}

/** The view `{ scale, x, y }`, moved as little as possible so that nothing outside the grid is visible. */
export function within({ scale, x, y }) {
  const low = 0.5 / scale;
  const high = 1 - low;
  return { scale, x: Math.min(Math.max(x, low), high), y: Math.min(Math.max(y, low), high) };
}

/** The index of the pane and the cell at a point, or null. @param {Box[]} panes boxes of the zoomed grids */
export function hit(panes, rows, columns, x, y) {
  for (const [pane, box] of panes.entries()) {
    const { clip } = box;
    if (x < clip.x || y < clip.y || x >= clip.x + clip.width || y >= clip.y + clip.height) continue;
    const column = Math.floor(((x - box.x) / box.width) * columns);
    const row = Math.floor(((y - box.y) / box.height) * rows);
    if (column >= 0 && column < columns && row >= 0 && row < rows) return { pane, cell: row * columns + column };
  }
  return null;
}

const PIXELS = new Uint32Array(new Uint8Array(SCALE.flatMap((rgb) => [...rgb, 255])).buffer); // the scale as RGBA
const COVER = 0xff1d1816; // the background as RGBA
const cells = new OffscreenCanvas(1, 1);

/**
 * A map as an image with one pixel per token. Missing tokens are transparent. All calls of this function and `cover`
 * return the same canvas, so draw the image before the next call.
 */
export function paint(values, rows, columns, [low, high]) {
  const pixels = new Uint32Array(rows * columns);
  const last = SCALE.length - 1;
  const factor = last / (high - low);
  for (let cell = 0; cell < pixels.length; cell++) {
    const value = values[cell];
    if (!Number.isNaN(value)) pixels[cell] = PIXELS[Math.min(Math.max(Math.round((value - low) * factor), 0), last)];
  }
  return toImage(pixels, rows, columns);
}

/** An image with one pixel per token: hidden tokens have the colour of the background, the others are transparent. */
function cover(hidden, rows, columns) {
  const pixels = new Uint32Array(rows * columns);
  for (const cell of hidden) pixels[cell] = COVER;
  return toImage(pixels, rows, columns);
}

function toImage(pixels, rows, columns) {
  cells.width = columns;
  cells.height = rows;
  cells.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), columns, rows), 0, 0);
  return cells;
}

/**
 * Draw one or two runs.
 *
 * @param {CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D} context scaled to CSS pixels
 * @param {{width: number, height: number}} size in CSS pixels
 * @param {object[]} panes one per run:
 *   { box, rows, columns, values, range, ink, bitmap, opacity, label, cursor, together, hidden, kept, tree }.
 *   `values` has the figure of each cell, and `range` the ends of the colour scale. `bitmap` is the image or null.
 *   `cursor` is a cell or null, and `together` the first and last cell of its round. `hidden` lists the cells that are
 *   not generated yet, or is null. `kept` is as for `drawMask`. For `tree`, see `draftTree` in replay.js.
 */
export function draw(context, size, panes) {
  context.clearRect(0, 0, size.width, size.height);
  for (const pane of panes) drawPane(context, size, pane);
}

function drawPane(context, size, pane) {
  const { box, rows, columns } = pane;
  const { clip } = box;
  if (!box.width) return;
  context.save();
  context.beginPath();
  context.rect(clip.x, clip.y, clip.width, clip.height);
  context.clip();
  context.fillStyle = BACKGROUND;
  if (pane.bitmap) drawBitmap(context, pane);
  else context.fillRect(box.x, box.y, box.width, box.height);
  context.imageSmoothingEnabled = false;
  if (pane.bitmap && pane.hidden)
    context.drawImage(cover(pane.hidden, rows, columns), box.x, box.y, box.width, box.height);
  context.globalAlpha = pane.bitmap ? pane.opacity : 1;
  context.drawImage(paint(pane.values, rows, columns, pane.range), box.x, box.y, box.width, box.height);
  context.globalAlpha = 1;
  if (box.width / columns >= MIN_GRID_CELL && (!pane.bitmap || pane.opacity > 0)) drawGrid(context, pane);
  drawMask(context, pane);
  for (const level of pane.tree) drawLevel(context, pane, level);
  if (pane.cursor !== null) drawCursor(context, pane);
  context.restore();
  if (pane.label) drawLabel(context, size, pane);
}

/** Draw the name of a run above its grid. If two grids are overlaid, each name has half of the width. */
function drawLabel(context, size, { label, ink, box: { clip } }) {
  context.save();
  context.fillStyle = ink;
  context.font = "11px sans-serif";
  context.textBaseline = "top";
  context.textAlign = clip.label?.align ?? "left";
  const available = clip.label ? Math.min(clip.label.x, size.width - clip.label.x) : clip.width;
  context.fillText(label, clip.label?.x ?? clip.x, clip.y - LABEL + 2, available);
  context.restore();
}

/** Draw the image in the box of its grid. Unless the grid is zoomed, a resized copy of the image is cached. */
function drawBitmap(context, { bitmap, box }) {
  context.imageSmoothingQuality = "high";
  const image = box.enlarged ? bitmap : scaled(bitmap, box, context.getTransform().a);
  context.drawImage(image, box.x, box.y, box.width, box.height);
}

/** Draw a level of a draft tree: a frame and the number of drafts, and a diagonal line if no draft was accepted. */
function drawLevel(context, { box, columns, rows }, { cell, drafts, accepted }) {
  const w = box.width / columns;
  const h = box.height / rows;
  const x = box.x + (cell % columns) * w;
  const y = box.y + Math.floor(cell / columns) * h;
  const colour = accepted ? ACCEPTED : REJECTED;
  const line = Math.max(1, Math.min(3, w / 8));
  context.fillStyle = "rgb(15 17 21 / 0.55)";
  context.fillRect(x, y, w, h);
  context.strokeStyle = colour;
  context.fillStyle = colour;
  context.lineWidth = line;
  context.strokeRect(x + line / 2, y + line / 2, w - line, h - line);
  if (w >= MIN_NUMBER_CELL) {
    context.font = `${Math.min(16, Math.round(w * 0.6))}px sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(String(drafts), x + w / 2, y + h / 2);
  }
  if (accepted) return;
  context.beginPath();
  context.moveTo(x, y + h);
  context.lineTo(x + w, y);
  context.stroke();
}

const resized = new WeakMap(); // image -> its last resized copy, because resizing is the slowest part of drawing

/** An image in the size of a box. @param {number} pixels device pixels per CSS pixel */
function scaled(bitmap, box, pixels) {
  const width = Math.max(1, Math.round(box.width * pixels));
  const height = Math.max(1, Math.round(box.height * pixels));
  const last = resized.get(bitmap);
  if (last?.width === width && last.height === height) return last;
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  resized.set(bitmap, canvas);
  return canvas;
}

function drawGrid(context, { box, rows, columns }) {
  context.fillStyle = "rgb(0 0 0 / 0.28)";
  for (let column = 1; column < columns; column++) {
    context.fillRect(box.x + (column * box.width) / columns - LINE / 2, box.y, LINE, box.height);
  }
  for (let row = 1; row < rows; row++) {
    context.fillRect(box.x, box.y + (row * box.height) / rows - LINE / 2, box.width, LINE);
  }
}

/** Draw a frame around the token at the cursor, and a thinner frame around each token of the same round. */
function drawCursor(context, { box, columns, rows, cursor, together }) {
  const w = box.width / columns;
  const h = box.height / rows;
  const frame = (cell, style, width) => {
    context.strokeStyle = style;
    context.lineWidth = width;
    context.strokeRect(box.x + (cell % columns) * w + 0.5, box.y + Math.floor(cell / columns) * h + 0.5, w - 1, h - 1);
  };
  if (together) for (let cell = together[0]; cell <= together[1]; cell++) frame(cell, "rgb(255 255 255 / 0.75)", 1.5);
  frame(cursor, "#000", 4);
  frame(cursor, "#fff", 2);
}
