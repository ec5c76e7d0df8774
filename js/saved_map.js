/** Reads saved maps, as nodes/saved_map.py packs them: in ComfyUI's history, and in workflows that came out of an image. */

/** What a share says beside its image and position, in the order of the columns. */
const NUMBERS = 7;

/** The rounds of a saved map, in the form of the live messages. @param {{data: string}} saved */
export async function unpack(saved) {
  const next = varints(await inflate(saved.data));
  const column = (length) => Array.from({ length }, next);
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
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer());
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
