/**
 * Images under the maps, as bitmaps that a canvas can draw: live previews, then the server's files of the finished
 * images, or the thumbnails in a map.
 */

import { imageAddress } from "./comfy.js";

const bitmaps = new WeakMap(); // run -> Map: number of an image (its preview) or address -> bitmap

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

/** The image at an address; null until it is complete, and if it no longer exists. */
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
 * Use a live preview, which shows the first image of each run's batch.
 *
 * @param {object[]} runs runs of the preview from the left, as far as they have begun
 * @param {number} count number of runs in the preview
 */
export async function showPreviews(runs, count, blob, redraw) {
  const preview = await createImageBitmap(blob);
  const { height } = preview;
  const width = Math.round(preview.width / count);
  const show = async (run, i) => bitmapsOf(run).set(0, await createImageBitmap(preview, i * width, 0, width, height));
  await Promise.all(runs.map(show));
  redraw();
}

/** Show the previews of a live run for its finished run, too, until the files have arrived. */
export function inheritPreviews(run, live) {
  if (live && bitmaps.has(live)) bitmaps.set(run, new Map(bitmaps.get(live)));
}
