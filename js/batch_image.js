/**
 * Identification of the image of a batch that an image file shows. All files of a batch contain the same workflow and
 * the same acceptance map. The map has a mark of each image: the mean colours of 8 by 8 regions, see nodes/map_marks.py.
 * This file compares the marks with the colours of the image file. For older maps, which have thumbnails instead of
 * marks, this file computes the marks from the thumbnails.
 */

const SIDE = 8; // regions along each side of an image
const MAX_DISTANCE = 8; // maximum mean difference (of 255) to the nearest mark; scaling changes the colours a little
const MARGIN = 2; // minimum ratio of the second smallest distance to the smallest distance
const MAX_PIXELS = 2048; // maximum length of the longer side; larger images are scaled down
const THUMBNAIL = { side: 192, quality: 0.6 }; // longer side in pixels, and JPEG quality

/**
 * Which image of the batch a file shows: the index of the image, or null if it is not certain. If the map has no
 * thumbnail of this image, this function adds one.
 *
 * @param {Blob | null} file image file
 * @param {import("./saved_map.js").SavedMap} saved result of `checkMap`
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

/** The mark of an image in a saved map, or null. @param {import("./saved_map.js").SavedMap} saved */
async function markOf({ marks, thumbnails }, image) {
  if (marks[image]) return Array.from(atob(marks[image]), (letter) => letter.charCodeAt(0));
  if (!thumbnails[image]) return null;
  const thumbnail = await (await fetch(thumbnails[image])).blob();
  return mark(pixels(await createImageBitmap(thumbnail), MAX_PIXELS).data);
}

/** The pixels of a bitmap. If its longer side exceeds `largest` pixels, the bitmap is scaled down first. */
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

/** The mark of an image: red, green and blue means of each region, row by row. @param {ImageData} image */
export function mark({ data, width, height }) {
  const found = [];
  for (let row = 0; row < SIDE; row++) {
    for (let column = 0; column < SIDE; column++) {
      found.push(...mean(data, width, span(row, height), span(column, width)));
    }
  }
  return found;
}

/** The first pixel of a region along a side of an image, and the pixel after it. @returns {[number, number]} */
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
 * The index of the mark that is nearest to the mark of a file. The result is null if no mark is near enough, or if the
 * second nearest mark is almost as near.
 *
 * @param {(number[] | null)[]} marks mark of each image, or null if it is unknown
 * @param {number[]} wanted mark of the file
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
