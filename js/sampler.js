/**
 * Additions to the sampler nodes. The inputs keep_top and keep_left are visible only while an image is linked. Two
 * entries of the context menu add nodes: a comparison with plain decoding, or a batch with the same settings.
 */

import {
  addNode,
  callAfter,
  connect,
  copyLink,
  findWidget,
  fitNode,
  foldAdvanced,
  freeRowBelow,
  isLinked,
  originOf,
  redrawNode,
  registerExtension,
  sendWhile,
  setHidden,
  showNodes,
  shrinkNode,
  widgetsOf,
} from "./comfy.js";
import { preference } from "./preferences.js";
import { disableOverridden, OVERRIDDEN } from "./preset.js";
import { texts } from "./texts.js";

const SAMPLER = "ADTTreeSampler";
const SAMPLERS = new Set([SAMPLER, "ADTTreeBatchSampler", "ADTTreeCompare"]);
const SHARES = ["keep_top", "keep_left"]; // inputs for the kept share of an image
const COPIED = ["seed", "preset", "drafting", "noise", ...OVERRIDDEN]; // inputs of all samplers; Compare has no noise
const LINKED = ["model", "drafter", "settings", "lantern"];
const GAP = 60; // pixels between nodes
const ROW = 1200; // pixels that the three nodes of a batch take side by side

const sharesOf = (node) => widgetsOf(node).filter(({ name }) => SHARES.includes(name));
const countsShare = (node, name) => isLinked(node, name) || isLinked(node, "latent_image");

/** Show the inputs for the kept share if an image to continue is linked, and hide them otherwise. */
function updateShares(node) {
  for (const widget of sharesOf(node)) setHidden(widget, !countsShare(node, widget.name));
  fitNode(node);
  redrawNode(node);
}

// ---- context menu --------------------------------------------------------------------------

/** Copy values and links of one sampler to another. */
function copyInputs(from, node) {
  for (const name of COPIED) {
    const own = findWidget(node, name);
    const other = findWidget(from, name);
    if (own && other) own.value = other.value;
  }
  for (const name of [...COPIED, ...LINKED]) copyLink(from, name, node);
  findWidget(node, "control_after_generate").value = "fixed";
  disableOverridden(node);
}

function compareWithPlain(sampler) {
  const top = freeRowBelow(sampler, ROW) + GAP;
  const compare = addNode("ADTTreeCompare", sampler, [0, top]);
  copyInputs(sampler, compare);
  for (const name of ["positive", "negative"]) copyLink(sampler, name, compare);
  copyLink(sampler, "settings", compare, "settings_a");
  const preview = addNode("PreviewImage", sampler, [compare.size[0] + GAP, top]);
  connect(compare, 0, preview, "images");
  showNodes([compare, preview]);
}

/** Copy the text of a sampler's prompt to an input of another node. If the text itself is linked, copy the link. */
function copyText(sampler, name, node, own) {
  const origin = originOf(sampler, name);
  const text = /** @type {string | undefined} */ (origin && findWidget(origin, "text")?.value);
  // The input "text" of ADT-Tree Prompts has one prompt per line.
  if (text) findWidget(node, own).value = own === "text" ? text.replace(/\s*\n\s*/g, " ") : text;
  if (origin) copyLink(origin, "text", node, own);
}

function openBatch(sampler) {
  const top = freeRowBelow(sampler, ROW) + GAP;
  const prompts = addNode("ADTTreePrompts", sampler, [0, top]);
  copyText(sampler, "positive", prompts, "text");
  const batch = addNode("ADTTreeBatchSampler", sampler, [prompts.size[0] + GAP, top]);
  copyInputs(sampler, batch);
  copyText(sampler, "negative", batch, "negative");
  const collector = addNode("ADTTreeBatchReport", sampler, [prompts.size[0] + batch.size[0] + 2 * GAP, top]);
  connect(prompts, 0, batch, "prompts");
  connect(prompts, 1, batch, "ids");
  connect(batch, 2, collector, "results");
  showNodes([prompts, batch, collector]);
}

registerExtension({
  name: "adttree.sampler",

  nodeCreated(node) {
    if (!SAMPLERS.has(node.comfyClass)) return;
    for (const widget of sharesOf(node)) sendWhile(widget, () => countsShare(node, widget.name));
    foldAdvanced(node);
    const drafting = findWidget(node, "drafting");
    if (drafting) drafting.value = preference("drafting");
    callAfter(node, "onConfigure", () => updateShares(node));
    callAfter(node, "onConnectionsChange", () => updateShares(node));
    updateShares(node);
    shrinkNode(node); // ComfyUI has made the node large enough for all inputs, but some are hidden
  },

  getNodeMenuItems(node) {
    if (node.comfyClass !== SAMPLER) return [];
    return [
      null,
      { content: texts.compareWithPlain, callback: () => compareWithPlain(node) },
      { content: texts.openBatch, callback: () => openBatch(node) },
    ];
  },
});
