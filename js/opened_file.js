/**
 * File from which the user opens a workflow. ComfyUI passes only the workflow to extensions, not the file. Therefore
 * this module stores the last file that the user has dropped onto the page or chosen.
 */

const MAX_AGE = 10_000; // maximum milliseconds between the choice of a file and the loading of its workflow

let latest = null; // { file: Blob or address, time }

/**
 * The file that the user has just dropped or chosen, or null. A file is returned only once: a second call returns null.
 *
 * @returns {Promise<Blob | null>}
 */
export async function openedFile() {
  const found = latest;
  latest = null;
  if (!found || performance.now() - found.time > MAX_AGE) return null;
  if (found.file instanceof Blob) return found.file;
  try {
    return await (await fetch(found.file)).blob();
  } catch {
    return null;
  }
}

/** The address of an image of this site that was dragged onto the page, or null. Images of other sites are ignored. */
function draggedAddress(transfer) {
  const [address] = (transfer?.getData("text/uri-list") ?? "").split(/\r?\n/);
  return address && URL.canParse(address) && new URL(address).origin === location.origin ? address : null;
}

function note(file) {
  latest = file ? { file, time: performance.now() } : null;
}

const onDrop = ({ dataTransfer }) => note(dataTransfer?.files[0] ?? draggedAddress(dataTransfer));
const onChange = (/** @type {any} */ { target }) => target?.type === "file" && note(target.files[0]);
window.addEventListener("drop", onDrop, true);
window.addEventListener("change", onChange, true);
