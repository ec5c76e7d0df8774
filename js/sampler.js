/**
 * Additions to the sampler nodes. The inputs keep_top and keep_left are visible only while an image without a mask
 * is linked. Two entries of the context menu add nodes, see added_nodes.js.
 */

import { compareWithPlain, openBatch } from "./added_nodes.js";
import {
  callAfter,
  findWidget,
  fitNode,
  foldAdvanced,
  isLinked,
  originOf,
  redrawNode,
  registerExtension,
  sendWhile,
  setHidden,
  shrinkNode,
  widgetsOf,
} from "./comfy.js";
import { preference } from "./preferences.js";
import { texts } from "./texts.js";

const SAMPLER = "ADTTreeSampler";
const SAMPLERS = new Set([SAMPLER, "ADTTreeBatchSampler", "ADTTreeCompare"]);
const AUTO = "Auto"; // value of drafting with which a linked Settings node decides, as in nodes/drafting.py
const SHARES = ["keep_top", "keep_left"]; // inputs for the kept share of an image

const sharesOf = (node) => widgetsOf(node).filter(({ name }) => SHARES.includes(name));
const countsShare = (node, name) => isLinked(node, name) || isLinked(node, "latent_image");

/** ComfyUI's nodes that attach a mask to a latent. */
const MASKING = new Set(["SetLatentNoiseMask", "VAEEncodeForInpaint", "InpaintModelConditioning"]);

/** Whether the image has a mask, which then sets what is kept. The shares are sent all the same: it may be bypassed. */
const hasMask = (node) => MASKING.has(originOf(node, "latent_image")?.comfyClass);

/** Dim drafting while a linked Settings node decides, and say so in its label. */
function updateDrafting(node) {
  const drafting = findWidget(node, "drafting");
  if (!drafting) return;
  const { setBySettings } = texts;
  const isSet = drafting.value === AUTO && isLinked(node, "settings");
  const name = (drafting.label ?? drafting.name).replace(setBySettings, "");
  drafting.disabled = isSet;
  drafting.label = isSet ? name + setBySettings : name;
  redrawNode(node);
}

/** Show the inputs for the kept share if an image without a mask is linked, and hide them otherwise. */
function updateShares(node) {
  for (const widget of sharesOf(node)) {
    const isUsed = isLinked(node, widget.name) || !hasMask(node);
    setHidden(widget, !(isUsed && countsShare(node, widget.name)));
  }
  fitNode(node);
  redrawNode(node);
}

registerExtension({
  name: "adttree.sampler",

  nodeCreated(node) {
    if (!SAMPLERS.has(node.comfyClass)) return;
    for (const widget of sharesOf(node)) sendWhile(widget, () => countsShare(node, widget.name));
    foldAdvanced(node);
    const drafting = findWidget(node, "drafting");
    if (drafting) drafting.value = preference("drafting");
    const update = () => {
      updateShares(node);
      updateDrafting(node);
    };
    callAfter(node, "onConfigure", update);
    callAfter(node, "onConnectionsChange", update);
    update();
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
