/**
 * Images under the acceptance maps, as bitmaps that a canvas can draw. During a run (the decoding of a batch of
 * images), the live previews are shown. After the run, the image files of the server are shown. If there are no files,
 * the thumbnails in the saved map are shown.
 */

import { imageAddress } from "./comfy.js";

// Run -> bitmaps of the run by key. The key of a preview is the image's index, and of a file or thumbnail its address.
const bitmaps = new WeakMap();

function bitmapsOf(run) {
  if (!bitmaps.has(run)) bitmaps.set(run, new Map());
  return bitmaps.get(run);
}

/** The bitmap for an image of a run, or null. `redraw` is called when a bitmap that must be fetched has arrived. */
export function bitmapOf(run, image, redraw) {
  const file = run.files[image];
  const saved = file && fetched(run, imageAddress(file), redraw);
  if (saved) return saved;
  return bitmapsOf(run).get(image) ?? (run.thumbnails[image] ? fetched(run, run.thumbnails[image], redraw) : null);
}

/** The image at an address, or null if it has not arrived yet or does not exist. */
function fetched(run, address, redraw) {
  const known = bitmapsOf(run);
  if (!known.has(address)) {
    const created = new Image();
    known.set(address, created);
    created.src = address;
  }
  const element = known.get(address);
  if (element.complete) return element.naturalWidth ? element : null;
  element.addEventListener("load", redraw, { once: true });
  return null;
}

/**
 * Store a live preview from the server: a sheet with the images of all runs, see `Previews` in previews.py.
 *
 * @param {import("./map_model.js").Run[]} runs the runs that have begun, in the order of the sheet
 * @param {number} abreast number of runs in the sheet
 */
export async function showPreviews(runs, abreast, blob, redraw) {
  const sheet = await createImageBitmap(blob);
  const count = abreast * runs[0].count;
  const columns = Math.ceil(Math.sqrt(count));
  const width = sheet.width / columns;
  const height = sheet.height / Math.ceil(count / columns);
  const tile = (position) => {
    const [x, y] = [(position % columns) * width, Math.floor(position / columns) * height];
    return createImageBitmap(sheet, Math.round(x), Math.round(y), Math.round(width), Math.round(height));
  };
  const places = runs.flatMap((run) => Array.from({ length: run.count }, (_, image) => ({ run, image })));
  await Promise.all(places.map(async ({ run, image }, position) => bitmapsOf(run).set(image, await tile(position))));
  redraw();
}

/** Copy previews of a live run to the finished run, which shows each of them until the file of its image has arrived. */
export function inheritPreviews(run, live) {
  run.files.forEach((_, image) => {
    const preview = live && bitmapsOf(live).get(image);
    if (preview) bitmapsOf(run).set(image, preview);
  });
}
