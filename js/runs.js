/**
 * Store of finished runs by id: in memory for this page, in the session storage for this browser tab, and for older runs
 * in ComfyUI's history. Also stores which runs each node has shown, because "undo" and a reload restore
 * earlier states of a workflow, which name runs that newer ones have replaced.
 *
 * The `home` of a map is the id of its workflow and the tag of its node, see node_map.js.
 */

import { fetchHistory } from "./comfy.js";
import { Run } from "./map_model.js";
import { unpack } from "./saved_map.js";

const IN_MEMORY = 32; // runs, and homes
const IN_STORAGE = 12; // runs, of a few tens of kilobytes each
const PROMPTS = 64; // queued prompts whose homes are stored
const PER_NODE = 8; // groups of runs that a node has shown
const STORAGE = "adt_tree.maps"; // key of the session storage, see `stored`

/**
 * Where a run is found again: output of a node in a prompt of the history, or without a prompt only in the storage.
 * `part` is 1 for B of two runs; `image`, the image of the batch that is shown first.
 *
 * @typedef {{id: string, part?: number, prompt?: string, node?: string, image?: number}} Reference
 */

const known = new Map(); // id -> run, oldest first
const knownHomes = new Map(); // prompt -> homes by execution id, or null

/** Keep a run in memory, for other nodes and for a workflow that is opened again. */
export function remember(run) {
  known.delete(run.id);
  known.set(run.id, run);
  if (known.size > IN_MEMORY) known.delete(known.keys().next().value);
}

/** The run of this id in memory, or null. */
export function seen(id) {
  return known.get(id) ?? null;
}

/**
 * Read the run of a saved map, and store it.
 *
 * @param {import("./saved_map.js").SavedMap} saved
 * @param {Omit<Reference, "id">} reference
 * @param {import("./saved_map.js").Budget} [budget] for all maps of a file
 */
export async function load(saved, reference, budget) {
  const run = Run.stored(saved, await unpack(saved, budget));
  run.reference = { ...reference, id: run.id };
  remember(run);
  store(({ maps }) => {
    delete maps[run.id];
    maps[run.id] = { saved, reference: run.reference };
    dropOldest(maps, IN_STORAGE);
  });
  return run;
}

/** Store the finished maps that the node of a home shows, even if its workflow is not open, and return their runs. */
export async function keep(home, saved, reference) {
  const runs = await Promise.all(saved.map((map, part) => load(map, { ...reference, part })));
  noteShown(
    home,
    runs.map((run) => run.reference),
  );
  return runs;
}

/**
 * The runs of these references, without those that no longer exist.
 *
 * @param {Reference[]} references
 */
export async function recall(references) {
  return (await Promise.all(references.map(find))).filter(Boolean);
}

async function find(reference) {
  const run = seen(reference.id);
  if (run) return run;
  const { maps } = stored();
  if (Object.hasOwn(maps, reference.id)) return load(maps[reference.id].saved, maps[reference.id].reference);
  if (!reference.prompt) return null;
  const entry = await fetchHistory(reference.prompt);
  const saved = parts(entry?.outputs?.[reference.node])[reference.part ?? 0];
  return saved?.id === reference.id ? load(saved, reference) : null;
}

/** The maps in a node's output, by part. A node that ran over a list has several of each, of which it shows the last. */
export function parts(output) {
  const found = [];
  for (const map of output?.adt_tree_map ?? []) found[map.part ?? 0] = map;
  return found;
}

/** Store the homes of the maps of a queued prompt. @param {Record<string, string>} homes by execution id */
export function noteHomes(prompt, homes) {
  if (!prompt) return;
  knownHomes.set(prompt, homes);
  if (!Object.keys(homes).length) return; // a workflow without maps
  store(({ queued }) => {
    queued[prompt] = homes;
    dropOldest(queued, PROMPTS);
  });
}

/** The homes of a prompt; null if this tab did not queue it. Cached, because every message needs them. */
export function homesOf(prompt) {
  if (!knownHomes.has(prompt)) knownHomes.set(prompt, stored().queued[prompt] ?? null);
  return knownHomes.get(prompt);
}

/** Store the runs that the node of a home shows now. */
export function noteShown(home, references) {
  if (!references.length) return;
  store(({ shown }) => {
    const before = (shown[home] ?? []).filter(([first]) => first.id !== references[0].id);
    delete shown[home]; // so that it becomes the newest
    shown[home] = [...before, references].slice(-PER_NODE);
    dropOldest(shown, IN_MEMORY);
  });
}

/**
 * The runs that a node should show, given the ones that its workflow names: the last runs that it showed in this tab and
 * the run before, or the named runs if this tab does not know them.
 */
export function latest(home, references) {
  const shown = stored().shown[home];
  const isEarlier = !references.length || shown?.some((group) => group.some(({ id }) => id === references[0].id));
  if (!shown || !isEarlier) return references;
  const [previous] = shown.at(-2) ?? [];
  return [...shown.at(-1), ...(previous ? [previous] : [])];
}

function dropOldest(entries, count) {
  for (const key of Object.keys(entries).slice(0, -count)) delete entries[key];
}

/** maps: id -> { saved, reference }. shown: home -> [references, ...]. queued: prompt -> homes by execution id. */
function stored() {
  const none = { maps: {}, shown: {}, queued: {} };
  try {
    return { ...none, ...JSON.parse(sessionStorage.getItem(STORAGE)) };
  } catch {
    return none;
  }
}

function store(change) {
  const all = stored();
  change(all);
  try {
    sessionStorage.setItem(STORAGE, JSON.stringify(all));
  } catch {
    sessionStorage.removeItem(STORAGE); // it is full; after a reload, the maps are read from ComfyUI's history
  }
}
