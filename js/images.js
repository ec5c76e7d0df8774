/**
 * Images under the maps, as bitmaps that a canvas can draw. During a run, they are the live previews. After the run,
 * they are the server's files of the finished images. If there are no files, they are the thumbnails in the saved map.
 */

import { imageAddress } from "./comfy.js";

const bitmaps = new WeakMap(); // run -> Map of bitmaps; the key is the image's index for a preview, else the address

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

/** The image at an address. null while it is being fetched, and if the server has no such file. */
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
 * Store a live preview of the server. The preview shows the first image of each run, from left to right.
 *
 * @param {object[]} runs the runs that have begun, in the order of the preview
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

/** Copy the previews of a live run to its finished run, which shows them until its files have been fetched. */
export function inheritPreviews(run, live) {
  if (live && bitmaps.has(live)) bitmaps.set(run, new Map(bitmaps.get(live)));
}
