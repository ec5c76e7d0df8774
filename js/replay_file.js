/** Video file of a replay: an image and its acceptance map side by side, with a title below. */

import { animatedWebp } from "./animated_webp.js";
import { layout } from "./map_view.js";
import { download, fillBackground } from "./save_image.js";

const SIDE = 384; // pixels of the longer side of a grid
const LINE = 26; // height in pixels of the title
const EDGE = 8; // pixels beside the title
const SECONDS = 7; // of the replay
const LAST = 1; // seconds for which the finished image is shown
const RATE = 12; // frames per second
const QUALITY = 0.72;
const BITS = 1_600_000; // per second, of a WebM file: 8 s have 1.6 MB

const ENCODERS = { webp: encodeWebp, webm: encodeWebm };

/** Kinds of files. */
export const KINDS = Object.keys(ENCODERS);

/** Whether the browser can encode a kind of file. */
export function canEncode(kind) {
  return kind === "webp" || typeof MediaRecorder !== "undefined";
}

/**
 * Download a replay as a file.
 *
 * @param {string} name name of the file, without its ending
 * @param {string} kind one of `KINDS`
 * @param {{rows: number, columns: number}} grid number of rows and columns of tokens
 * @param {(context: CanvasRenderingContext2D, size: object, boxes: any, share: number) => void} draw function that
 *   draws the image and the map at a share of the run's duration, 0..1, into two boxes
 * @param {string} title
 */
export async function saveReplay(name, kind, { rows, columns }, draw, title) {
  const side = SIDE / Math.max(rows, columns);
  const size = { width: 2 * Math.round(columns * side) + EDGE, height: even(Math.round(rows * side) + LINE) };
  const canvas = Object.assign(document.createElement("canvas"), size);
  const context = canvas.getContext("2d");
  const placed = layout(size.width, size.height - LINE, rows, columns, 2);
  const boxes = placed.map((box) => ({ ...box, y: 0, clip: { ...box, y: 0 } })); // of the image and the map
  const paint = (share) => {
    draw(context, size, boxes, share);
    fillBackground(context, size);
    context.font = "14px sans-serif";
    context.fillText(title, EDGE, size.height - LINE / 2, size.width - 2 * EDGE);
  };
  const shares = Array.from({ length: SECONDS * RATE }, (_, i) => i / (SECONDS * RATE));
  download(`${name}.${kind}`, await ENCODERS[kind](canvas, paint, shares));
}

function even(number) {
  return number + (number % 2); // video encoders need even sizes
}

async function encodeWebp(canvas, paint, shares) {
  const frames = [];
  for (const share of [...shares, 1]) {
    paint(share);
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/webp", QUALITY));
    frames.push({ bytes: new Uint8Array(await blob.arrayBuffer()), duration: share === 1 ? 1000 * LAST : 1000 / RATE });
  }
  return new Blob([animatedWebp(frames, canvas.width, canvas.height)], { type: "image/webp" });
}

/** The browser encodes in real time. On a slow machine, the video has fewer frames, but the same duration. */
async function encodeWebm(canvas, paint) {
  paint(0);
  const stream = canvas.captureStream(RATE);
  const recorder = new MediaRecorder(stream, { mimeType: "video/webm", videoBitsPerSecond: BITS });
  const parts = [];
  recorder.ondataavailable = ({ data }) => parts.push(data);
  const ended = new Promise((resolve) => {
    recorder.onstop = resolve;
  });
  recorder.start();
  const began = performance.now();
  for (let seconds = 0; seconds < SECONDS + LAST; seconds = (performance.now() - began) / 1000) {
    paint(Math.min(1, seconds / SECONDS));
    await new Promise((resolve) => setTimeout(resolve, 1000 / RATE));
  }
  recorder.stop();
  await ended;
  for (const track of stream.getTracks()) track.stop();
  return new Blob(parts, { type: "video/webm" });
}
