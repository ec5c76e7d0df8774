/** Nodes that a command adds below a sampler: a comparison with decoding without drafts, or a batch. */

import * as comfy from "./comfy.js";
import { disableOverridden, OVERRIDDEN } from "./preset.js";

const COPIED = ["seed", "preset", "drafting", "noise", ...OVERRIDDEN]; // inputs of all samplers; Compare has no noise
const LINKED = ["model", "drafter", "settings", "lantern"];
const GAP = 60; // pixels between nodes
// Space in pixels that the added nodes need, with the results of their runs:
const COMPARED = [800, 950];
const BATCH = [1200, 700];

/** Copy values and links of one sampler to another. */
function copyInputs(from, node) {
  for (const name of COPIED) {
    const own = comfy.findWidget(node, name);
    const other = comfy.findWidget(from, name);
    if (own && other) own.value = other.value;
  }
  for (const name of [...COPIED, ...LINKED]) comfy.copyLink(from, name, node);
  comfy.findWidget(node, "control_after_generate").value = "fixed";
  disableOverridden(node);
}

const MEASURES = "adt_tree_measures"; // property of a comparison: the tag of the sampler that it measures

/** The nodes of the comparison that was added for a sampler before, or null if it has been changed or removed. */
function addedBefore(sampler, tag) {
  const compare = comfy.nodesOf(sampler.graph).find(({ properties }) => properties[MEASURES] === tag);
  const preview = compare && comfy.targetsOf(compare, 0).find(({ type }) => type === "PreviewImage");
  return preview ? [compare, preview] : null;
}

/**
 * Compare a sampler with decoding without drafts, and return the nodes of the comparison. They are added at first.
 *
 * @param {string} tag random text that identifies the sampler, see node_map.js
 */
export function measured(sampler, tag) {
  const known = addedBefore(sampler, tag);
  if (known) copyInputs(sampler, known[0]);
  const [compare, preview] = known ?? compareWithPlain(sampler);
  compare.properties[MEASURES] = tag;
  comfy.countRun(compare); // otherwise ComfyUI would show the numbers of the last time
  return [compare, preview];
}

/** Add a comparison of a sampler with decoding without drafts, and return its nodes. */
export function compareWithPlain(sampler) {
  const at = comfy.freePlace(sampler, COMPARED, GAP);
  const compare = comfy.addNode("ADTTreeCompare", sampler, at);
  copyInputs(sampler, compare);
  for (const name of ["positive", "negative"]) comfy.copyLink(sampler, name, compare);
  comfy.copyLink(sampler, "settings", compare, "settings_a");
  const preview = comfy.addNode("PreviewImage", sampler, [at[0] + compare.size[0] + GAP, at[1]]);
  comfy.linkNodes(compare, 0, preview, "images");
  comfy.showNodes([compare, preview], [...at, ...COMPARED]);
  return [compare, preview];
}

/** Copy the text of a sampler's prompt to an input of another node. If the text itself is linked, copy the link. */
function copyText(sampler, name, node, own) {
  const origin = comfy.originOf(sampler, name);
  const text = /** @type {string | undefined} */ (origin && comfy.findWidget(origin, "text")?.value);
  // The input "text" of ADT-Tree Prompts has one prompt per line.
  if (text) comfy.findWidget(node, own).value = own === "text" ? text.replace(/\s*\n\s*/g, " ") : text;
  if (origin) comfy.copyLink(origin, "text", node, own);
}

/** Add a batch with the settings of a sampler. */
export function openBatch(sampler) {
  const [left, top] = comfy.freePlace(sampler, BATCH, GAP);
  const prompts = comfy.addNode("ADTTreePrompts", sampler, [left, top]);
  copyText(sampler, "positive", prompts, "text");
  const batch = comfy.addNode("ADTTreeBatchSampler", sampler, [left + prompts.size[0] + GAP, top]);
  copyInputs(sampler, batch);
  copyText(sampler, "negative", batch, "negative");
  const collector = comfy.addNode("ADTTreeBatchReport", sampler, [
    left + prompts.size[0] + batch.size[0] + 2 * GAP,
    top,
  ]);
  comfy.linkNodes(prompts, 0, batch, "prompts");
  comfy.linkNodes(prompts, 1, batch, "ids");
  comfy.linkNodes(batch, 2, collector, "results");
  comfy.showNodes([prompts, batch, collector], [left, top, ...BATCH]);
}
