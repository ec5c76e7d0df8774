/** The pictures under the maps: live previews, then what the server kept of the finished images, or the small ones that came with a map. */

import { api } from "../../scripts/api.js";

const shown = new WeakMap(); // run -> image of the batch or address -> what can be drawn

function of(run) {
  if (!shown.has(run)) shown.set(run, new Map());
  return shown.get(run);
}

/** What can be drawn under an image's map, or null; `redraw` is called when a picture that has to be fetched is there. */
export function picture(run, image, redraw) {
  const file = run.pictures[image];
  const kept = file && fetched(run, api.apiURL(`/view?${new URLSearchParams(file)}`), redraw);
  if (kept) return kept;
  return of(run).get(image) ?? (run.thumbnails[image] ? fetched(run, run.thumbnails[image], redraw) : null);
}

/** The picture at an address once it is there; null before, and if it is gone. */
function fetched(run, address, redraw) {
  const pictures = of(run);
  if (!pictures.has(address)) {
    const element = new Image();
    pictures.set(address, element);
    element.src = address;
  }
  const element = pictures.get(address);
  if (element.complete) return element.naturalWidth ? element : null;
  element.addEventListener("load", redraw, { once: true });
  return null;
}

/** A live preview: the first image of the batch of each of `abreast` runs, side by side; not all `runs` need be known yet. */
export async function showPreviews(runs, abreast, blob, redraw) {
  const whole = await createImageBitmap(blob);
  const width = Math.round(whole.width / abreast);
  await Promise.all(runs.map(async (run, i) => of(run).set(0, await createImageBitmap(whole, i * width, 0, width, whole.height))));
  redraw();
}

/** Keep showing a run's previews until the pictures of its finished form are there. */
export function inherit(run, from) {
  if (from && shown.has(from)) shown.set(run, new Map(shown.get(from)));
}
