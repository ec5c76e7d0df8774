/** Text chunks of a PNG file. */

const SIGNATURE = [137, 80, 78, 71, 13, 10, 26, 10];
const LONGEST = 2 ** 22; // bytes of a chunk that is read

/**
 * The uncompressed texts of a PNG, by keyword. {} for other files and damaged ones.
 *
 * @param {ArrayBuffer} buffer
 * @returns {Record<string, string>}
 */
export function textsOf(buffer) {
  const bytes = new Uint8Array(buffer);
  const view = new DataView(buffer);
  if (!SIGNATURE.every((byte, i) => bytes[i] === byte)) return {};
  const texts = Object.create(null);
  for (let at = SIGNATURE.length; at + 12 <= bytes.length; ) {
    const length = view.getUint32(at);
    const kind = String.fromCharCode(...bytes.subarray(at + 4, at + 8));
    const content = bytes.subarray(at + 8, at + 8 + length);
    if (length <= LONGEST && (kind === "tEXt" || kind === "iTXt")) read(texts, content, kind === "iTXt");
    at += length + 12; // with the fields length, kind and checksum
  }
  return texts;
}

/** After the keyword and its zero byte, an iTXt chunk has two bytes on compression and two more texts. */
function read(texts, content, isInternational) {
  const end = content.indexOf(0);
  if (end < 1) return;
  const keyword = new TextDecoder("latin1").decode(content.subarray(0, end));
  if (!isInternational) {
    texts[keyword] = new TextDecoder("latin1").decode(content.subarray(end + 1));
    return;
  }
  const translated = content.indexOf(0, content.indexOf(0, end + 3) + 1);
  if (content[end + 1] === 0) texts[keyword] = new TextDecoder().decode(content.subarray(translated + 1));
}
