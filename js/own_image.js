/**
 * Which image of a batch a file is. All files of a batch carry the same workflow and map, so only the picture tells. A map has a mark of each
 * image, see nodes/marks.py; where it has none, as in older files, its small pictures serve.
 */

const SIDE = 8; // regions along each side of a picture
const NEAR = 8; // levels of 255 by which the picture of a file may differ from an image's mark, as after it was enlarged
const CLEARLY = 2; // how many times as far the second nearest has to be
const LARGEST = 2048; // pixels of the longer side that are looked at
const [THUMBNAIL, QUALITY] = [192, 0.6]; // pixels of the longer side of a small picture, and its JPEG's quality

/**
 * The number of the image that a file shows, or null if that can't be known. The map then also has a small picture of it.
 *
 * @param {Blob | null} file @param {object} saved a sound saved map
 */
export async function ownImage(file, saved) {
  if (!file || saved.images < 2) return null;
  try {
    const picture = await createImageBitmap(file, { colorSpaceConversion: "none" });
    const marks = await Promise.all(Array.from({ length: saved.images }, (_, image) => markOf(saved, image)));
    const image = nearest(marks, mark(pixels(picture, LARGEST).data));
    if (image !== null && !saved.thumbnails[image]) {
      for (let i = 0; i < image; i++) saved.thumbnails[i] ??= "";
      saved.thumbnails[image] = pixels(picture, THUMBNAIL).canvas.toDataURL("image/jpeg", QUALITY);
    }
    return image;
  } catch {
    return null; // no picture that this browser reads
  }
}

async function markOf({ marks, thumbnails }, image) {
  if (marks[image]) return Array.from(atob(marks[image]), (letter) => letter.charCodeAt(0));
  if (!thumbnails[image]) return null;
  const small = await (await fetch(thumbnails[image])).blob();
  return mark(pixels(await createImageBitmap(small), LARGEST).data);
}

function pixels(picture, largest) {
  const scale = Math.min(1, largest / Math.max(picture.width, picture.height));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [picture.width, picture.height].map((side) => Math.max(1, Math.round(side * scale)));
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return { canvas, data: context.getImageData(0, 0, canvas.width, canvas.height) };
}

/** The mean colours of the regions of a picture, row by row, three numbers to each. @param {ImageData} picture */
export function mark({ data, width, height }) {
  const found = [];
  for (let row = 0; row < SIDE; row++) {
    for (let column = 0; column < SIDE; column++) found.push(...mean(data, width, span(row, height), span(column, width)));
  }
  return found;
}

/** First pixel of a region, and the one behind its last. */
function span(place, side) {
  return [Math.floor((place * side) / SIDE), Math.ceil(((place + 1) * side) / SIDE)];
}

function mean(data, width, [top, bottom], [left, right]) {
  const sums = [0, 0, 0];
  for (let y = top; y < bottom; y++) {
    for (let x = left; x < right; x++) for (let colour = 0; colour < 3; colour++) sums[colour] += data[4 * (y * width + x) + colour];
  }
  return sums.map((sum) => sum / ((bottom - top) * (right - left)));
}

/** The place of the mark that is nearest to `own`, or null if none is near, or another is about as near. @param {(number[] | null)[]} marks */
export function nearest(marks, own) {
  const far = marks.map((one) => (one?.length === own.length ? one.reduce((sum, value, i) => sum + Math.abs(value - own[i]), 0) / own.length : Infinity));
  const [first, second = Infinity] = [...far].sort((a, b) => a - b);
  return first <= NEAR && CLEARLY * first <= second ? far.indexOf(first) : null;
}
