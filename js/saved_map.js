/** Reads saved maps, as nodes/saved_map.py packs them: in ComfyUI's history, and in workflows that came out of an image. */

/** What a share says beside its image and position, in the order of the columns. */
const NUMBERS = 7;
const LARGEST = 2 ** 20; // cells of all images of a run
const MOST_BYTES = 2 ** 25; // of its numbers

/**
 * A saved map that came with a file, which anybody may have written: only what the page reads of one, with sensible sizes, and pictures that
 * are in it rather than somewhere in the network. Throws if it is no map.
 */
export function sound(saved) {
  const { grid, images, thumbnails, inputs, ends, start, prefill, part, parts } = saved;
  const count = (value, least) => {
    if (!Number.isInteger(value) || value < least || value > LARGEST) throw new RangeError(`no saved map: ${value}`);
    return value;
  };
  const [rows, columns] = grid.map((side) => count(side, 1));
  count(rows * columns * count(images, 1), 1);
  return {
    ...Object.fromEntries(["id", "node", "method", "seed", "comparable", "data"].map((name) => [name, String(saved[name])])),
    ...{ grid: [rows, columns], images, ends: ends ? 1 : 0, start: count(start, 0), prefill: Number(prefill) || 0 },
    ...{ part: count(part, 0), parts: count(parts, 1) },
    inputs: Object.fromEntries(Object.entries(inputs ?? {}).map(([name, value]) => [name, String(value)])),
    thumbnails: (thumbnails ?? []).filter((address) => String(address).startsWith("data:image/jpeg;base64,")),
  };
}

/** The rounds of a saved map, in the form of the live messages. Throws if they are damaged. @param {{data: string}} saved */
export async function unpack(saved) {
  const bytes = await inflate(saved.data);
  const next = varints(bytes);
  const column = (length) => {
    if (!(length <= bytes.length)) throw new RangeError("no saved map: its numbers end too early");
    return Array.from({ length }, next);
  };
  const [count] = column(1);
  const [times, drafting, sizes] = [column(count), column(count), column(count)];
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const [images, jumps] = [column(total), column(total)];
  const numbers = Array.from({ length: NUMBERS }, () => column(total));
  const expected = new Map(); // image -> where its next share starts
  const shares = images.map((image, i) => {
    const jump = jumps[i] & 1 ? -(jumps[i] + 1) / 2 : jumps[i] / 2;
    const position = (expected.get(image) ?? 0) + jump;
    const own = numbers.map((values) => values[i]);
    expected.set(image, position + own[5] + 1);
    return [image, position, ...own];
  });
  for (const share of shares) share.push(column(share[4])); // drafts on each level
  let at = 0;
  return sizes.map((size, i) => [times[i] / 100, drafting[i] / 100, ...shares.slice(at, (at += size))]);
}

async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const chunks = [];
  let size = 0;
  const reader = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate")).getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    chunks.push(read.value);
    size += read.value.length;
    if (size > MOST_BYTES) throw new RangeError("no saved map: too many numbers");
  }
  return new Uint8Array(await new Blob(chunks).arrayBuffer());
}

/** A function that gives one number after the other. */
function varints(bytes) {
  let at = 0;
  return () => {
    let [number, factor] = [0, 1];
    while (bytes[at] > 127) {
      number += (bytes[at++] & 127) * factor;
      factor *= 128;
    }
    return number + bytes[at++] * factor;
  };
}
