/**
 * Reader of saved acceptance maps, which nodes/saved_map.py packs. Saved maps are in ComfyUI's history and in the
 * workflow of image files. An image file may be from anybody, so all values are checked before they are used.
 *
 * A round is one pass of the model. A record is the part of one image in a round.
 */

import { checkStretches } from "./kept_tokens.js";

/** Number of columns of a record besides its image and position, and the indices of two of these columns. */
const NUMBERS = 7;
const ACCEPTED = 5;
const DEPTH = 2;

const TEXTS = ["id", "node", "method", "seed", "comparable"]; // fields of a map

// Limits:
const CELLS = 2 ** 20; // tokens of all images of a run
const IMAGES = 2 ** 12; // images of a run
const LARGEST = 2 ** 40; // value of a number in a map
const LETTERS = 2 ** 10; // characters of a text, and entries of an object
const PROMPT = 2 ** 14; // characters of a prompt's text
const REFERENCES = 8; // references of a node to runs
const THUMBNAIL = 2 ** 16; // characters of a thumbnail's data URL
const OWN_BYTES = 2 ** 25; // bytes of the unpacked numbers of a map from this server
const FILE_BYTES = 2 ** 21; // bytes of the unpacked numbers of all maps of a file

/**
 * @typedef {{data: string, images: number, grid: number[], ends?: number, small?: number[] | null, start?: number,
 *   given?: number[][] | null, thumbnails?: string[]} & Record<string, any>} SavedMap
 */

/** Memory in bytes that the maps of a file may still use. */
export class Budget {
  constructor(left = FILE_BYTES) {
    this.left = left;
  }

  take(count) {
    if (count > this.left) throw new RangeError("invalid saved map: too many numbers");
    this.left -= count;
  }
}

/**
 * Check a saved map of a file. The result has only the fields that the page reads, with limited sizes. All thumbnails
 * are data URLs, so that nothing is fetched from the network. Throws if the value is not a map.
 *
 * @param {any} saved value from the file
 * @param {Budget} budget memory that all maps of the file may use together
 * @returns {SavedMap}
 */
export function checkMap(saved, budget) {
  const { grid, images, thumbnails, inputs, texts, ends, small, start, given, prefill, part, parts } = saved;
  const [rows, columns] = grid.map((side) => count(side, 1, CELLS));
  const before = small ? small.slice(0, 2).map((side) => count(side, 1, CELLS)) : null;
  budget.take(count((rows * columns + tokensBefore(before)) * count(images, 1, IMAGES), 1, CELLS));
  const longest = tokensBefore(before) + rows * (columns + 1);
  return {
    ...Object.fromEntries(TEXTS.map((name) => [name, text(saved[name])])),
    data: String(saved.data),
    grid: [rows, columns],
    images,
    ends: ends ? 1 : 0,
    small: before,
    start: count(start ?? 0, 0, longest - 1),
    given: checkStretches(given, images, tokensBefore(before) + rows * (columns + (ends ? 1 : 0))),
    speedup: Math.min(Math.max(Number(saved.speedup) || 0, 0), LARGEST),
    prefill: Math.min(Math.max(Number(prefill) || 0, 0), LARGEST),
    part: count(part ?? 0, 0, 1),
    parts: count(parts ?? 1, 1, 2),
    relaxed: saved.relaxed === true,
    inputs: Object.fromEntries(entries(inputs).map(([name, value]) => [text(name), text(value)])),
    texts: Object.fromEntries(entries(texts).map(([node, values]) => [text(node), completeTexts(values)])),
    thumbnails: list(thumbnails).map(String).filter(isThumbnail).slice(0, images),
  };
}

/** Number of tokens of the smaller image that precedes the image, see `Run` in map_model.js. */
function tokensBefore(small) {
  return small ? small[0] * small[1] : 0;
}

function count(value, least, most) {
  if (!Number.isInteger(value) || value < least || value > most) throw new RangeError(`invalid saved map: ${value}`);
  return value;
}

function text(value) {
  return String(value).slice(0, LETTERS);
}

/** The texts within the limit. Longer texts are left out: a truncated text would differ from the text in its node. */
function completeTexts(values) {
  return Object.fromEntries(entries(values).filter(([, value]) => typeof value === "string" && value.length <= PROMPT));
}

function entries(values) {
  return Object.entries(values ?? {}).slice(0, LETTERS);
}

function list(values) {
  return Array.isArray(values) ? values : [];
}

function isThumbnail(address) {
  return address.startsWith("data:image/jpeg;base64,") && address.length <= THUMBNAIL;
}

/**
 * The rounds of a saved map, in the format of the live messages. Throws if the data is damaged or does not match the
 * number and size of the images.
 *
 * @param {SavedMap} saved
 */
export async function unpack(saved, budget = new Budget(OWN_BYTES)) {
  const column = reader(JSON.parse(await inflate(saved.data, budget)));
  const times = column();
  const [drafting, sizes] = [column(times.length), column(times.length)];
  const images = column(sum(sizes));
  const jumps = column(images.length, -LARGEST);
  const numbers = Array.from({ length: NUMBERS }, () => column(images.length));
  const levels = column(sum(numbers[DEPTH])).values(); // drafts on each level of each tree
  const certainties = column(sum(numbers[ACCEPTED]) + images.length).values(); // of each token
  const take = (values, length) => Array.from({ length }, () => values.next().value);
  const shareOf = positions(saved);
  const records = images.map((image, i) => {
    const own = numbers.map((values) => values[i]);
    return [
      ...shareOf(image, jumps[i], own[ACCEPTED]),
      ...own,
      take(certainties, own[ACCEPTED] + 1),
      take(levels, own[DEPTH]),
    ];
  });
  let end = 0;
  return sizes.map((size, i) => {
    end += size;
    return [times[i] / 100, drafting[i] / 100, ...records.slice(end - size, end)];
  });
}

function sum(numbers) {
  return numbers.reduce((total, number) => total + number, 0);
}

/**
 * A function that decodes the position of each record. It throws if tokens are outside the image.
 *
 * @param {SavedMap} saved
 */
function positions({ images, grid, ends, small, start }) {
  const tokens = tokensBefore(small) + grid[0] * (grid[1] + (ends ? 1 : 0));
  const known = new Map(); // image -> { expected: start of its next record, emitted: tokens so far }
  return (image, jump, accepted) => {
    count(image, 0, images - 1);
    const { expected, emitted } = known.get(image) ?? { expected: 0, emitted: 0 };
    const position = count(expected + jump, start ?? 0, tokens - 1);
    known.set(image, { expected: position + accepted + 1, emitted: count(emitted + accepted + 1, 1, tokens) });
    return [image, position];
  };
}

async function inflate(data, budget) {
  const packed = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const chunks = [];
  const reader = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate")).getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    budget.take(read.value.length);
    chunks.push(read.value);
  }
  return new Blob(chunks).text();
}

/** A function that returns the next column (see nodes/saved_map.py). It throws if the column is not as it should be. */
function reader(columns) {
  const left = list(columns).values();
  return (length = undefined, least = 0) => {
    const column = left.next().value;
    if (!Array.isArray(column) || column.length !== (length ?? column.length))
      throw new RangeError("invalid saved map: length of a column");
    return column.map((number) => count(number, least, LARGEST));
  };
}

/**
 * Check the property of a node that stores settings and runs of its map. The workflow may be from anybody.
 *
 * @returns {{settings: object, tag: string | undefined, runs: object[]}} settings of the types in `usual`, the tag of the
 *   node, and references to runs
 */
export function checkProperty(property, usual, figures) {
  const given = Object(property);
  const alike = Object.keys(usual).filter(
    (name) => Object.hasOwn(given, name) && typeof given[name] === typeof usual[name],
  );
  const settings = Object.fromEntries(alike.map((name) => [name, given[name]]));
  if (!Object.hasOwn(figures, settings.figure)) delete settings.figure;
  const tag = typeof given.tag === "string" ? text(given.tag) : undefined;
  return { settings, tag, runs: list(given.runs).flatMap(reference).slice(0, REFERENCES) };
}

/** A list with the valid parts of a reference to a run, or an empty list if the reference has no valid id. */
function reference(given) {
  const { id, prompt, node, part } = Object(given);
  if (typeof id !== "string") return [];
  const number = part === 1 ? 1 : 0;
  const isFound = typeof prompt === "string" && prompt.isWellFormed() && ["string", "number"].includes(typeof node);
  return [{ id: text(id), part: number, ...(isFound ? { prompt, node: String(node) } : {}) }];
}
