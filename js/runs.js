/** Finished runs: those seen on this page, and the way back to older ones through ComfyUI's history. */

import { api } from "../../scripts/api.js";
import { Run } from "./map_model.js";

const KEPT = 32;
const LOOKED_THROUGH = 8; // entries of the history, when a node doesn't say where its run is
const known = new Map(); // reference -> run, oldest first

const key = ({ prompt, node, part = 0 }) => `${prompt} ${node} ${part}`;

/** Keep a run with a `reference`, { prompt, node, part }, for copies of its node and for other tabs of the workflow. */
export function remember(run) {
  known.delete(key(run.reference));
  known.set(key(run.reference), run);
  if (known.size > KEPT) known.delete(known.keys().next().value);
}

/**
 * The runs that a saved node refers to, newest first. If it refers to none that is left, the last run of the same workflow and node.
 * @param {{prompt: string, node: string, part?: number}[]} references
 * @param {(id: string) => boolean} isNode whether an execution id means the node
 * @param {{id: string}} workflow
 */
export async function recall(references, isNode, workflow) {
  const found = (await Promise.all(references.map(fromHistory))).filter(Boolean);
  return found.length ? found : lastOf(isNode, workflow);
}

async function fromHistory(reference) {
  const run = known.get(key(reference));
  if (run) return run;
  const entry = (await history(`/history/${encodeURIComponent(reference.prompt)}`))[reference.prompt];
  return stored(entry?.outputs?.[reference.node], reference);
}

async function lastOf(isNode, workflow) {
  const entries = Object.entries(await history(`/history?max_items=${LOOKED_THROUGH}`)).reverse();
  for (const [prompt, { prompt: queued, outputs }] of entries) {
    if (queued?.[3]?.extra_pnginfo?.workflow?.id !== workflow?.id) continue;
    const node = Object.keys(outputs ?? {}).find((id) => outputs[id].adt_tree_map && isNode(id));
    if (node) return parts(outputs[node]).map((_, part) => stored(outputs[node], { prompt, node, part }));
  }
  return [];
}

async function history(path) {
  const answer = await api.fetchApi(path);
  return answer.ok ? answer.json() : {};
}

/** The maps of a node's output, by part. A node that ran over a list has several of each: the last is what it shows. */
export function parts(output) {
  const found = [];
  for (const map of output?.adt_tree_map ?? []) found[map.part ?? 0] = map;
  return found;
}

function stored(output, reference) {
  const map = parts(output)[reference.part ?? 0];
  if (!map) return null;
  const run = Run.stored(map);
  run.reference = { part: 0, ...reference };
  remember(run);
  return run;
}
