/**
 * Finished runs, each by the id that its run was given: those seen on this page, those of this browser tab before a reload, and older ones
 * in ComfyUI's history. Also which runs a node has shown: an earlier state of a workflow, as "undo" and a reload bring it, names runs that
 * others have followed.
 */

import { api } from "../../scripts/api.js";
import { Run } from "./map_model.js";
import { unpack } from "./saved_map.js";

const KEPT = 32; // runs in memory
const STORED = 12; // runs in the tab's storage, a few tens of kilobytes each
const QUEUED = 64; // prompts of which it is known where their maps belong
const STORAGE = "adt_tree.maps"; // what `stored` describes, oldest first
const SHOWN = 8; // of each node

const known = new Map(); // id -> run, oldest first
const homesKnown = new Map(); // prompt -> homes by execution id, or null

/** Keep a run that is going on or finished, for other nodes and for a workflow that is loaded again. */
export function remember(run) {
  known.delete(run.id);
  known.set(run.id, run);
  if (known.size > KEPT) known.delete(known.keys().next().value);
}

/** The run of this id, if it was seen on this page. */
export function seen(id) {
  return known.get(id) ?? null;
}

/**
 * The finished run of a saved map. `reference` says where it is found again: { id, prompt, node, part }; without a prompt only here. `room`
 * is for the maps of a file.
 */
export async function load(saved, reference, room) {
  const run = Run.stored(saved, await unpack(saved, room));
  run.reference = { ...reference, id: run.id };
  remember(run);
  store(({ maps }) => {
    delete maps[run.id];
    maps[run.id] = { saved, reference: run.reference };
    for (const id of Object.keys(maps).slice(0, -STORED)) delete maps[id];
  });
  return run;
}

/** Note that a node of this home shows these finished maps, whether its workflow is open or not. Returns their runs. */
export async function keep(home, saved, reference) {
  const runs = await Promise.all(saved.map((map, part) => load(map, { ...reference, part })));
  noteShown(home, runs.map((run) => run.reference));
  return runs;
}

/** The runs that are meant, as far as they can still be found; never another. @param {{id: string, prompt?: string, node?: string, part?: number}[]} references */
export async function recall(references) {
  return (await Promise.all(references.map(find))).filter(Boolean);
}

async function find(reference) {
  const run = seen(reference.id);
  if (run) return run;
  const { maps } = stored();
  if (Object.hasOwn(maps, reference.id)) return load(maps[reference.id].saved, maps[reference.id].reference);
  if (!reference.prompt) return null;
  const answer = await api.fetchApi(`/history/${encodeURIComponent(reference.prompt)}`);
  const entry = answer.ok ? (await answer.json())[reference.prompt] : null;
  const saved = parts(entry?.outputs?.[reference.node])[reference.part ?? 0];
  return saved?.id === reference.id ? load(saved, reference) : null;
}

/** The maps of a node's output, by part. A node that ran over a list has several of each: the last is what it shows. */
export function parts(output) {
  const found = [];
  for (const map of output?.adt_tree_map ?? []) found[map.part ?? 0] = map;
  return found;
}

/** Note with a prompt that was queued where the maps of its nodes belong. @param {Record<string, string>} homes by execution id */
export function noteHomes(prompt, homes) {
  if (!prompt) return;
  homesKnown.set(prompt, homes);
  if (!Object.keys(homes).length) return; // of a workflow without maps
  store(({ queued }) => {
    queued[prompt] = homes;
    for (const old of Object.keys(queued).slice(0, -QUEUED)) delete queued[old];
  });
}

/** What was noted with a prompt; null if this tab did not queue it. Asked with every message, so the storage is read once. */
export function homesOf(prompt) {
  if (!homesKnown.has(prompt)) homesKnown.set(prompt, stored().queued[prompt] ?? null);
  return homesKnown.get(prompt);
}

/** Note what the node of this home shows now. */
export function noteShown(home, references) {
  if (!references.length) return;
  store(({ shown }) => {
    const before = (shown[home] ?? []).filter(([first]) => first.id !== references[0].id);
    delete shown[home]; // so that it becomes the newest
    shown[home] = [...before, references].slice(-SHOWN);
    for (const old of Object.keys(shown).slice(0, -KEPT)) delete shown[old];
  });
}

/** What the node of this home showed last in this tab, and the run before that, if `references` are no later than that; else `references`. */
export function latest(home, references) {
  const shown = stored().shown[home];
  const earlier = !references.length || shown?.some((one) => one.some(({ id }) => id === references[0].id));
  if (!shown || !earlier) return references;
  const [previous] = shown.at(-2) ?? [];
  return [...shown.at(-1), ...(previous ? [previous] : [])];
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
    sessionStorage.removeItem(STORAGE); // full: a reload then finds its maps in ComfyUI's history
  }
}
