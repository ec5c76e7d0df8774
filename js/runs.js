/**
 * Store of finished runs by id. A run is one decoding of a batch of images. The store has three levels: the memory of
 * this page, the session storage of this browser tab, and ComfyUI's history for older runs.
 *
 * This file also stores which runs each node has shown. "Undo" and a reload restore an earlier state of the workflow.
 * The nodes of this state refer to old runs, but should show their newest runs.
 *
 * The `home` of an acceptance map is the id of its workflow and the tag of its node, see node_map.js.
 */

import { fetchHistory } from "./comfy.js";
import { Run } from "./map_model.js";
import { own } from "./own.js";
import { unpack } from "./saved_map.js";

// Limits:
const IN_MEMORY = 32; // runs in memory, and homes in the session storage
const IN_STORAGE = 12; // runs in the session storage, of a few tens of kilobytes each
const PROMPTS = 64; // queued prompts whose homes are stored
const PER_NODE = 8; // groups of runs per home; a group has the runs that a node has shown at the same time

const STORAGE = "adt_tree.maps"; // key of the session storage, see `stored`

/**
 * Reference to a run, with which the run is found again. `prompt` and `node` name the output in ComfyUI's history.
 * Without them, the run is only in the session storage. `part` is 1 for run B of two runs, otherwise 0.
 *
 * @typedef {{id: string, part?: number, prompt?: string, node?: string}} Reference
 */

const known = new Map(); // id -> run, oldest first
const knownHomes = new Map(); // prompt -> homes by execution id, or null
const queuedPrompts = new Map(); // prompt -> { workflow: its id, texts: by execution id }, of this page
const absent = new Map(); // prompt -> homes of the maps that were open when it was queued, and that it leaves out
const leftOut = new Set(); // homes of the maps that the last run of their workflow left out

/** Store a run in memory, for other nodes and for the time when its workflow is opened again. */
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
 * @param {import("./saved_map.js").Budget} [budget] memory that all maps of a file may use together
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

/**
 * Store the finished maps of a home, and return their runs. The workflow of the home need not be open. `saved` has one
 * map per run. `reference` names the output in ComfyUI's history that contains the maps.
 */
export async function keep(home, saved, reference) {
  const runs = await Promise.all(saved.map((map, part) => load(withOwnTexts(map, reference), { ...reference, part })));
  const references = runs.map((run) => run.reference);
  noteShown(home, references);
  return runs;
}

/**
 * The runs of these references. Runs that do not exist any more are left out.
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
  return saved?.id === reference.id ? load(withOwnTexts(saved, reference), reference) : null;
}

/** The maps in a node's output, by part. If the node ran several times for a list, the maps of its last run. */
export function parts(output) {
  const maps = output?.adt_tree_map ?? [];
  const listed = maps.filter(({ part }) => !part).length; // runs for the items of the list
  const found = [];
  for (const map of maps) found[map.part ?? 0] = { ...map, listed };
  return found;
}

/**
 * Store the homes of the maps of a queued prompt.
 *
 * @param {{prompt: string, workflow: string, homes: Record<string, string>, texts: Record<string, object>}} message by
 *   execution id: homes, and texts of the prompts of a sampler (see `Run.texts`)
 * @param {string[]} open homes of all maps in the workflow, including those of muted and bypassed nodes
 */
export function noteQueued({ prompt, workflow, homes, texts }, open) {
  if (!prompt) return;
  knownHomes.set(prompt, homes);
  queuedPrompts.set(prompt, { workflow, texts });
  if (queuedPrompts.size > PROMPTS) queuedPrompts.delete(queuedPrompts.keys().next().value);
  const taking = new Set(Object.values(homes));
  const others = open.filter((home) => !taking.has(home));
  absent.set(prompt, others);
  if (!Object.keys(homes).length) return; // a workflow without maps
  store(({ queued }) => {
    queued[prompt] = homes;
    dropOldest(queued, PROMPTS);
  });
}

/** The homes of a prompt, or null if this tab did not queue the prompt. Cached, because every message needs them. */
export function homesOf(prompt) {
  if (!knownHomes.has(prompt)) knownHomes.set(prompt, own(stored().queued, prompt) ?? null);
  return knownHomes.get(prompt);
}

/** The id of the workflow of a prompt; undefined if this page did not queue the prompt. */
export function workflowOf(prompt) {
  return queuedPrompts.get(prompt)?.workflow;
}

/**
 * A saved map with the texts of the prompt that the reference names.
 *
 * A map from ComfyUI's cache belongs to another prompt, perhaps of another workflow. There, the nodes of the texts have
 * other ids, so these texts must not be compared with nodes of this workflow.
 */
function withOwnTexts(saved, { prompt, node }) {
  if (!prompt || saved.prompt === prompt) return saved;
  return { ...saved, texts: own(queuedPrompts.get(prompt)?.texts, node) ?? {} };
}

/** Store that a prompt has begun. */
export function noteStart(prompt) {
  for (const home of Object.values(homesOf(prompt) ?? {})) leftOut.delete(home);
}

/** Store that a prompt has ended with success. */
export function noteSuccess(prompt) {
  for (const home of absent.get(prompt) ?? []) leftOut.add(home);
  absent.delete(prompt);
}

/** Whether the last run of the workflow left out the node of a home, because it was muted or bypassed. */
export function isLeftOut(home) {
  return leftOut.has(home);
}

/** Store which runs the node of a home shows. */
export function noteShown(home, references) {
  if (!references.length) return;
  store(({ shown }) => {
    const before = (own(shown, home) ?? []).filter(([first]) => first.id !== references[0].id);
    delete shown[home]; // the next line adds it again as the newest key
    shown[home] = [...before, references].slice(-PER_NODE);
    dropOldest(shown, IN_MEMORY);
  });
}

/**
 * The references to the runs that the node of `home` should show.
 *
 * `references` is the list in the node's workflow. If the list is empty, or if the node has already shown the runs of
 * the list in this tab, the result has the runs that the node showed last, and the run before them. Otherwise the result
 * is `references`.
 */
export function latest(home, references) {
  const shown = own(stored().shown, home);
  const isEarlier = !references.length || shown?.some((group) => group.some(({ id }) => id === references[0].id));
  if (!shown || !isEarlier) return references;
  const [previous] = shown.at(-2) ?? [];
  return [...shown.at(-1), ...(previous ? [previous] : [])];
}

function dropOldest(entries, count) {
  for (const key of Object.keys(entries).slice(0, -count)) delete entries[key];
}

/**
 * The content of the session storage: `maps`, id of a run -> { saved map, reference }; `shown`, home -> groups of
 * references, the newest last; `queued`, id of a prompt -> homes by execution id.
 */
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
    sessionStorage.removeItem(STORAGE); // the storage is full; after a reload, the maps are read from ComfyUI's history
  }
}
