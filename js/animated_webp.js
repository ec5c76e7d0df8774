/** Container of animated WebP files (RIFF), for frames that the browser has encoded. */

const ANIMATION = 2; // flag of the header
const UNBLENDED = 2; // flag of a frame: it replaces the pixels below it

/** A number in little-endian bytes. */
function bytesOf(number, count) {
  return Uint8Array.from({ length: count }, (_, i) => Math.floor(number / 256 ** i) % 256);
}

function join(parts) {
  const all = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

/** A chunk: its name, its length, and its content, padded to an even length. */
function chunk(name, ...parts) {
  const content = join(parts);
  const padding = new Uint8Array(content.length % 2);
  return join([new TextEncoder().encode(name), bytesOf(content.length, 4), content, padding]);
}

/** The chunks with the pixels of a still WebP file. */
function pixelsOf(file) {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const parts = [];
  for (let at = 12; at + 8 <= file.length; ) {
    const name = String.fromCharCode(...file.subarray(at, at + 4));
    const length = view.getUint32(at + 4, true);
    const end = at + 8 + length + (length % 2);
    if (["ALPH", "VP8 ", "VP8L"].includes(name)) parts.push(file.subarray(at, end));
    at = end;
  }
  return join(parts);
}

/**
 * An animated WebP file, which repeats for ever.
 *
 * @param {{bytes: Uint8Array, duration: number}[]} frames still WebP files, and the milliseconds for which each is shown
 * @param {number} width
 * @param {number} height
 */
export function animatedWebp(frames, width, height) {
  const size = [bytesOf(width - 1, 3), bytesOf(height - 1, 3)];
  const images = frames.map(({ bytes, duration }) =>
    chunk(
      "ANMF",
      bytesOf(0, 6), // position
      ...size,
      bytesOf(Math.round(duration), 3),
      bytesOf(UNBLENDED, 1),
      pixelsOf(bytes),
    ),
  );
  return chunk(
    "RIFF",
    new TextEncoder().encode("WEBP"),
    chunk("VP8X", bytesOf(ANIMATION, 4), ...size),
    chunk("ANIM", bytesOf(0xff16181d, 4), bytesOf(0, 2)), // background, and number of repetitions
    ...images,
  );
}
