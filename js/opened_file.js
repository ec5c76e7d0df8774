/** The file that a workflow is being opened from. ComfyUI tells its extensions the workflow alone. */

const SOON = 10_000; // milliseconds within which a file that was dropped or chosen has become a workflow

let latest = null; // { file, at }: a Blob, or an address where one lies

/** The file that was dropped or chosen a moment ago, or null. It is given once. @returns {Promise<Blob | null>} */
export async function openedFile() {
  const found = latest;
  latest = null;
  if (!found || performance.now() - found.at > SOON) return null;
  if (found.file instanceof Blob) return found.file;
  try {
    return await (await fetch(found.file)).blob();
  } catch {
    return null;
  }
}

/** An image of this page that is dragged onto it comes as an address. Others are left alone: ComfyUI itself asks them. */
function dragged(transfer) {
  const [address] = (transfer?.getData("text/uri-list") ?? "").split(/\r?\n/);
  return address && URL.canParse(address) && new URL(address).origin === location.origin ? address : null;
}

function note(file) {
  latest = file ? { file, at: performance.now() } : null;
}

window.addEventListener("drop", ({ dataTransfer }) => note(dataTransfer?.files[0] ?? dragged(dataTransfer)), true);
window.addEventListener("change", ({ target }) => target?.type === "file" && note(target.files[0]), true);
