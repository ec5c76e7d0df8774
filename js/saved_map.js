/**
 * Reads saved maps, as nodes/saved_map.py packs them: in ComfyUI's history, and in workflows that came out of an image. Anybody may have
 * written such a workflow, so all of it is checked before anything is made of it.
 */

/** What a share says beside its image and position, in the order of the columns. */
const NUMBERS = 7;
const [ACCEPTED, DEPTH] = [5, 2]; // places among them
const CELLS = 2 ** 20; // of all images of a run
const IMAGES = 2 ** 12; // of a run
const LARGEST = 2 ** 40; // number of a map
const LETTERS = 2 ** 10; // of a text
const PROMPT = 2 ** 14; // and of one that a prompt is made of
const REFERENCES = 8; // to runs, of a node
const THUMBNAIL = 2 ** 16; // letters of a picture
const [OWN, FILE] = [2 ** 25, 2 ** 21]; // bytes that numbers take: of a map that this server made, and of all maps of a file

/** What may still be taken of so much. */
export class Room {
  constructor(left = FILE) {
    this.left = left;
  }

  take(count) {
    if (count > this.left) throw new RangeError("no saved map: too many numbers");
    this.left -= count;
  }
}

/**
 * A saved map that came with a file, which anybody may have written: only what the page reads of one, with sensible sizes, and pictures that
 * are in it rather than somewhere in the network. Throws if it is no map. @param {Room} room for all maps of the file
 */
export function sound(saved, room) {
  const { grid, images, thumbnails, marks, inputs, texts, ends, small, start, prefill, part, parts } = saved;
  const [rows, columns] = grid.map((side) => count(side, 1, CELLS));
  const before = small ? small.slice(0, 2).map((side) => count(side, 1, CELLS)) : null;
  room.take(count((rows * columns + lead(before)) * count(images, 1, IMAGES), 1, CELLS));
  const begins = { small: before, start: count(start ?? 0, 0, lead(before) + rows * (columns + 1) - 1), prefill: Math.min(Math.max(Number(prefill) || 0, 0), LARGEST) };
  return {
    ...Object.fromEntries(["id", "node", "method", "seed", "comparable"].map((name) => [name, text(saved[name])])),
    ...{ data: String(saved.data), grid: [rows, columns], images, ends: ends ? 1 : 0, ...begins, part: count(part ?? 0, 0, 1), parts: count(parts ?? 1, 1, 2) },
    relaxed: saved.relaxed === true,
    inputs: Object.fromEntries(entries(inputs).map(([name, value]) => [text(name), text(value)])),
    texts: Object.fromEntries(entries(texts).map(([node, values]) => [text(node), whole(values)])),
    thumbnails: (Array.isArray(thumbnails) ? thumbnails : []).map(String).filter(isPicture).slice(0, images),
    marks: (Array.isArray(marks) ? marks : []).slice(0, images).map((mark) => (typeof mark === "string" ? text(mark) : null)),
  };
}

/** Tokens of the smaller picture before an image. */
function lead(small) {
  return small ? small[0] * small[1] : 0;
}

function count(value, least, most) {
  if (!Number.isInteger(value) || value < least || value > most) throw new RangeError(`no saved map: ${value}`);
  return value;
}

function text(value) {
  return String(value).slice(0, LETTERS);
}

/** The texts that are there in full: one that was cut would never be what stands in its node. */
function whole(values) {
  return Object.fromEntries(entries(values).filter(([, value]) => typeof value === "string" && value.length <= PROMPT));
}

function entries(values) {
  return Object.entries(values ?? {}).slice(0, LETTERS);
}

function isPicture(address) {
  return address.startsWith("data:image/jpeg;base64,") && address.length <= THUMBNAIL;
}

/**
 * The rounds of a saved map, in the form of the live messages. Throws if they are damaged, or are not of this map's images.
 * @param {{data: string, images: number, grid: number[], ends?: number, small?: number[], start?: number}} saved
 */
export async function unpack(saved, room = new Room(OWN)) {
  const columns = reader(await inflate(saved.data, room));
  const [[rounds]] = columns(1, 1);
  const [times, drafting, sizes] = columns(3, rounds);
  const [images, jumps, ...numbers] = columns(2 + NUMBERS, sum(sizes));
  const levels = columns(1, sum(numbers[DEPTH]))[0].values(); // drafts on each level of each share's tree
  const shareOf = places(saved);
  const shares = Array.from(images, (image, i) => {
    const own = numbers.map((values) => values[i]);
    return [...shareOf(image, jumps[i], own[ACCEPTED]), ...own, Array.from({ length: own[DEPTH] }, () => levels.next().value)];
  });
  let at = 0;
  return Array.from(sizes, (size, i) => [times[i] / 100, drafting[i] / 100, ...shares.slice(at, (at += size))]);
}

function sum(numbers) {
  return numbers.reduce((total, number) => total + number, 0);
}

/** A function that says where each share is, and throws where it lies outside its image or an image gets more tokens than it has. */
function places({ images, grid, ends, small, start }) {
  const tokens = lead(small) + grid[0] * (grid[1] + (ends ? 1 : 0));
  const known = new Map(); // image -> { expected: where its next share starts, emitted: tokens so far }
  return (image, jump, accepted) => {
    count(image, 0, images - 1);
    const { expected, emitted } = known.get(image) ?? { expected: 0, emitted: 0 };
    const position = count(expected + (jump % 2 ? -(jump + 1) / 2 : jump / 2), start ?? 0, tokens - 1);
    known.set(image, { expected: position + accepted + 1, emitted: count(emitted + accepted + 1, 1, tokens) });
    return [image, position];
  };
}

async function inflate(data, room) {
  const packed = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const chunks = [];
  const reader = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate")).getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    room.take(read.value.length);
    chunks.push(read.value);
  }
  return new Uint8Array(await new Blob(chunks).arrayBuffer());
}

/** Reads varints: gives so many columns of so many numbers, once it is known that as many can be there. */
function reader(bytes) {
  let at = 0;
  const next = () => {
    let [number, factor] = [0, 1];
    for (; bytes[at] > 127; factor *= 128) number += (bytes[at++] & 127) * factor;
    return count(number + bytes[at++] * factor, 0, LARGEST);
  };
  return (columns, length) => {
    count(columns * length, 0, bytes.length - at);
    return Array.from({ length: columns }, () => new Float64Array(length).map(next));
  };
}

/**
 * What a node's property says of its map, as anybody may have written it: `settings` of the kinds that `usual` has, the node's `tag` or
 * undefined, and `runs`, references to runs.
 */
export function soundProperty(property, usual, figures) {
  const given = Object(property);
  const alike = Object.keys(usual).filter((name) => Object.hasOwn(given, name) && typeof given[name] === typeof usual[name]);
  const settings = Object.fromEntries(alike.map((name) => [name, given[name]]));
  if (!Object.hasOwn(figures, settings.figure)) delete settings.figure;
  const tag = typeof given.tag === "string" ? text(given.tag) : undefined;
  return { settings, tag, runs: Array.isArray(given.runs) ? given.runs.flatMap(reference).slice(0, REFERENCES) : [] };
}

/** A reference to a run in a list, or no list entry if it is none. */
function reference(given) {
  const { id, prompt, node, part } = Object(given);
  if (typeof id !== "string") return [];
  const number = part === 1 ? 1 : 0;
  const isFound = typeof prompt === "string" && prompt.isWellFormed() && ["string", "number"].includes(typeof node);
  return [{ id: text(id), part: number, ...(isFound ? { prompt, node: String(node) } : {}) }];
}
