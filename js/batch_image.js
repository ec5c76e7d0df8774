/**
 * Which image of a batch a file shows. All files of a batch have the same workflow and map, so the colours of the image
 * are compared with the mark that the map has of each image, see nodes/marks.py. Older maps have no marks but
 * thumbnails, from which the marks are computed here.
 */

const SIDE = 8; // regions along each side of an image
const MAX_DISTANCE = 8; // mean difference of colours, of 255, as an image may have after it was enlarged
const MARGIN = 2; // minimum ratio between the distances of the second nearest mark and of the nearest one
const MAX_PIXELS = 2048; // length of the longer side at which an image is read
const THUMBNAIL = { side: 192, quality: 0.6 };

/**
 * The number of the image that a file shows, or null if it is not certain. Its thumbnail is added to the map.
 *
 * @param {Blob | null} file
 * @param {import("./saved_map.js").SavedMap} saved checked saved map
 */
export async function imageInFile(file, saved) {
  if (!file || saved.images < 2) return null;
  try {
    const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none" });
    const marks = await Promise.all(Array.from({ length: saved.images }, (_, image) => markOf(saved, image)));
    const image = nearest(marks, mark(pixels(bitmap, MAX_PIXELS).data));
    if (image !== null && !saved.thumbnails[image]) addThumbnail(saved.thumbnails, image, bitmap);
    return image;
  } catch {
    return null; // the browser cannot read this file
  }
}

function addThumbnail(thumbnails, image, bitmap) {
  for (let i = 0; i < image; i++) thumbnails[i] ??= "";
  thumbnails[image] = pixels(bitmap, THUMBNAIL.side).canvas.toDataURL("image/jpeg", THUMBNAIL.quality);
}

/** @param {import("./saved_map.js").SavedMap} saved */
async function markOf({ marks, thumbnails }, image) {
  if (marks[image]) return Array.from(atob(marks[image]), (letter) => letter.charCodeAt(0));
  if (!thumbnails[image]) return null;
  const thumbnail = await (await fetch(thumbnails[image])).blob();
  return mark(pixels(await createImageBitmap(thumbnail), MAX_PIXELS).data);
}

function pixels(bitmap, largest) {
  const scale = Math.min(1, largest / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return { canvas, data: context.getImageData(0, 0, canvas.width, canvas.height) };
}

/** Mean colours of the regions of an image, row by row, three numbers each. @param {ImageData} image */
export function mark({ data, width, height }) {
  const found = [];
  for (let row = 0; row < SIDE; row++) {
    for (let column = 0; column < SIDE; column++) {
      found.push(...mean(data, width, span(row, height), span(column, width)));
    }
  }
  return found;
}

/** First pixel of a region, and the one after its last. @returns {[number, number]} */
function span(place, side) {
  return [Math.floor((place * side) / SIDE), Math.ceil(((place + 1) * side) / SIDE)];
}

function mean(data, width, [top, bottom], [left, right]) {
  const sums = [0, 0, 0];
  for (let y = top; y < bottom; y++) {
    for (let x = left; x < right; x++) {
      for (let colour = 0; colour < 3; colour++) sums[colour] += data[4 * (y * width + x) + colour];
    }
  }
  return sums.map((sum) => sum / ((bottom - top) * (right - left)));
}

/**
 * The number of the mark nearest to another one; null if none is near, or the second nearest is about as near.
 *
 * @param {(number[] | null)[]} marks
 * @param {number[]} wanted
 */
export function nearest(marks, wanted) {
  const distances = marks.map((one) => distance(one, wanted));
  const [first, second = Infinity] = [...distances].sort((a, b) => a - b);
  return first <= MAX_DISTANCE && MARGIN * first <= second ? distances.indexOf(first) : null;
}

function distance(mark, wanted) {
  if (mark?.length !== wanted.length) return Infinity;
  return mark.reduce((sum, value, i) => sum + Math.abs(value - wanted[i]), 0) / wanted.length;
}
