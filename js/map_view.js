/** Draws maps on a canvas: the image, the token grid over it, and the cursor. Everything is worked out from its arguments. */

import { SCALE } from "./colours.js";

const GAP = 8;
const LABEL = 16;
const GRID_FROM = 5; // pixels of a token's side below which lines would hide the colours
const COUNT_FROM = 13; // and below which a number would not be legible
const BACKGROUND = "#16181d";
const TRIED = { true: "#2fbf71", false: "#ff8a3d" }; // drafts that were accepted, and refused

/**
 * Where each of `count` grids goes: side by side, or all of them in the same place; as large as fits and centred.
 * @returns {{x: number, y: number, width: number, height: number}[]} in CSS pixels
 */
export function layout(width, height, rows, columns, count, over = false) {
  const top = count > 1 ? LABEL : 0;
  const places = over ? 1 : count;
  const side = Math.max(0, Math.min((width - GAP * (places - 1)) / (places * columns), (height - top) / rows));
  const [w, h] = [side * columns, side * rows];
  const left = (width - places * w - (places - 1) * GAP) / 2;
  return Array.from({ length: count }, (_, i) => ({ x: left + (over ? 0 : i) * (w + GAP), y: top + (height - top - h) / 2, width: w, height: h }));
}

/** The whole of a grid whose box shows a part of it. @param {{scale: number, x: number, y: number}} view in its middle a point of the grid, 0..1 */
export function zoomed(box, { scale, x, y }) {
  const [width, height] = [scale * box.width, scale * box.height];
  return { x: box.x + box.width / 2 - x * width, y: box.y + box.height / 2 - y * height, width, height, enlarged: scale > 1 };
}

/** The view as near to `view` as shows nothing beside the grid. */
export function within({ scale, x, y }) {
  const [low, high] = [0.5 / scale, 1 - 0.5 / scale];
  return { scale, x: Math.min(Math.max(x, low), high), y: Math.min(Math.max(y, low), high) };
}

/** The pane and the cell at a point, or null. @param {object[]} panes boxes of the grids, each with `clip`, the part that is shown */
export function hit(panes, rows, columns, x, y) {
  for (const [pane, box] of panes.entries()) {
    const { clip } = box;
    if (x < clip.x || y < clip.y || x >= clip.x + clip.width || y >= clip.y + clip.height) continue;
    const [column, row] = [Math.floor(((x - box.x) / box.width) * columns), Math.floor(((y - box.y) / box.height) * rows)];
    if (column >= 0 && column < columns && row >= 0 && row < rows) return { pane, cell: row * columns + column };
  }
  return null;
}

const PACKED = new Uint32Array(new Uint8Array(SCALE.flatMap((rgb) => [...rgb, 255])).buffer); // the scale as pixels
const cells = new OffscreenCanvas(1, 1);

/** The colours of a map as an image of one pixel per token; undecided tokens are transparent. It holds until the next call. */
export function paint(values, rows, columns, [low, high]) {
  const pixels = new Uint32Array(rows * columns);
  const last = SCALE.length - 1;
  const factor = last / (high - low);
  for (let cell = 0; cell < pixels.length; cell++) {
    const value = values[cell];
    if (value === value) pixels[cell] = PACKED[Math.min(Math.max(Math.round((value - low) * factor), 0), last)]; // NaN is undecided
  }
  [cells.width, cells.height] = [columns, rows];
  cells.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), columns, rows), 0, 0);
  return cells;
}

/** An image of one pixel per token that covers the hidden ones. It holds until the next call. */
function cover(hidden, rows, columns) {
  const [context, pixels] = [cells.getContext("2d"), new Uint32Array(rows * columns)];
  for (const cell of hidden) pixels[cell] = 0xff1d1816; // the background, as a pixel
  [cells.width, cells.height] = [columns, rows];
  context.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), columns, rows), 0, 0);
  return cells;
}

/**
 * Draw everything.
 *
 * @param {CanvasRenderingContext2D} context scaled to CSS pixels
 * @param {{width: number, height: number}} size in CSS pixels
 * @param {object[]} panes one or two of { box, rows, columns, values, range, picture, opacity, label, cursor, together, hidden, tried }:
 *   hidden, cells that are not decided at the moment that is shown, or null; tried, the drafts of a round, see replay.js
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
  if (pane.picture) drawPicture(context, pane);
  else context.fillRect(box.x, box.y, box.width, box.height);
  context.imageSmoothingEnabled = false;
  if (pane.picture && pane.hidden) context.drawImage(cover(pane.hidden, rows, columns), box.x, box.y, box.width, box.height);
  context.globalAlpha = pane.picture ? pane.opacity : 1;
  context.drawImage(paint(pane.values, rows, columns, pane.range), box.x, box.y, box.width, box.height);
  context.globalAlpha = 1;
  if (box.width / columns >= GRID_FROM && (!pane.picture || pane.opacity > 0)) drawGrid(context, pane);
  for (const one of pane.tried) drawTried(context, pane, one);
  if (pane.cursor !== null) drawCursor(context, pane);
  context.restore();
  if (pane.label) drawLabel(context, size, pane);
}

/** The name of a run above its grid. Two grids in one place are in the middle of all, so that each name has half of the width. */
function drawLabel(context, size, { label, ink, box: { clip } }) {
  context.save();
  context.fillStyle = ink;
  context.font = "11px sans-serif";
  context.textBaseline = "top";
  context.textAlign = clip.label?.align ?? "left";
  const room = clip.label ? Math.min(clip.label.x, size.width - clip.label.x) : clip.width;
  context.fillText(label, clip.label?.x ?? clip.x, clip.y - LABEL + 2, room);
  context.restore();
}

/** The picture, as large as its grid. Only an unzoomed one is kept in its size: a zoomed one would be large, and moves. */
function drawPicture(context, { picture, box }) {
  context.imageSmoothingQuality = "high";
  context.drawImage(box.enlarged ? picture : scaled(picture, box, context.getTransform().a), box.x, box.y, box.width, box.height);
}

/** A level of a tree: a frame in the colour of its fate, struck through if it was refused, and the number of its drafts. */
function drawTried(context, { box, columns, rows }, { cell, drafts, accepted }) {
  const [w, h] = [box.width / columns, box.height / rows];
  const [x, y] = [box.x + (cell % columns) * w, box.y + Math.floor(cell / columns) * h];
  const line = Math.max(1, Math.min(3, w / 8));
  context.fillStyle = "rgb(15 17 21 / 0.55)";
  context.fillRect(x, y, w, h);
  context.strokeStyle = context.fillStyle = TRIED[accepted];
  context.lineWidth = line;
  context.strokeRect(x + line / 2, y + line / 2, w - line, h - line);
  if (w >= COUNT_FROM) {
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

const enlarged = new WeakMap(); // picture -> it in the size in which it was drawn last: scaling takes longer than everything else

function scaled(picture, box, pixels) {
  const [width, height] = [Math.max(1, Math.round(box.width * pixels)), Math.max(1, Math.round(box.height * pixels))];
  const last = enlarged.get(picture);
  if (last?.width === width && last.height === height) return last;
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(picture, 0, 0, width, height);
  enlarged.set(picture, canvas);
  return canvas;
}

function drawGrid(context, { box, rows, columns }) {
  context.fillStyle = "rgb(0 0 0 / 0.28)";
  for (let column = 1; column < columns; column++) context.fillRect(box.x + (column * box.width) / columns - 0.375, box.y, 0.75, box.height);
  for (let row = 1; row < rows; row++) context.fillRect(box.x, box.y + (row * box.height) / rows - 0.375, box.width, 0.75);
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
