/**
 * The sampler nodes: how much of an image to keep is asked only while an image is linked. Their context menu makes the same image
 * beside plain decoding, or opens a batch of the same settings.
 */

import { app } from "../../scripts/app.js";
import { foldAdvanced } from "./advanced.js";
import { isLinked, slotOf } from "./inputs.js";
import { NUMBERS, grayOut, savedNames, widget, wrap } from "./numbers.js";
import { preference } from "./preferences.js";
import { words } from "./words.js";

const SAMPLER = "ADTTreeSampler";
const SAMPLERS = new Set([SAMPLER, "ADTTreeBatchSampler", "ADTTreeCompare"]);
const SHARES = ["keep", "keep_left"]; // of an image to start from
const SHARED = ["seed", "preset", "speed", "noise", ...NUMBERS]; // what sampler nodes have in common; Compare has no noise
const LINKED = ["model", "drafter", "settings", "lantern"];
const GAP = 60;

const linkOf = (node, name) => (isLinked(node, name) ? node.getInputLink(slotOf(node, name)) : null);
const sharesOf = (node) => node.widgets.filter(({ name }) => SHARES.includes(name));

/** Show the shares while an image to start from is linked, and hide them otherwise. */
function tidy(node) {
  for (const one of sharesOf(node)) {
    one.hidden = !counts(node, one.name); // the canvas reads this
    one.options.hidden = one.hidden; // Nodes 2.0 reads this
  }
  const [width, height] = node.computeSize();
  node.setSize([Math.max(node.size[0], width), Math.max(node.size[1], height)]);
  node.setDirtyCanvas?.(true, true);
}

const counts = (node, name) => isLinked(node, name) || isLinked(node, "latent_image");

/** What is out of sight is sent as if nobody had changed it, so that ComfyUI's cache keeps the result. */
function sendWhatCounts(node) {
  for (const one of sharesOf(node)) {
    const usual = one.value;
    one.serializeValue = () => (counts(node, one.name) ? one.value : usual);
  }
}

/** A workflow that was saved before there were speeds was drawn with "Auto". */
function keepOldSpeed(node, saved) {
  if (!Array.isArray(saved?.widgets_values)) return;
  if (savedNames(node).indexOf("speed") >= saved.widgets_values.length) widget(node, "speed").value = "Auto";
}

// ---- the context menu ---------------------------------------------------------------------

function add(type, beside, [dx, dy]) {
  const node = window.LiteGraph.createNode(type);
  node.pos = [beside.pos[0] + dx, beside.pos[1] + dy];
  beside.graph.add(node);
  return node;
}

/** Select new nodes and look at them: they stand where nobody looks. */
function show(...nodes) {
  app.canvas.deselectAll();
  app.canvas.selectItems(nodes);
  const fit = () => app.extensionManager.command.execute("Comfy.Canvas.FitView"); // to what is selected
  requestAnimationFrame(() => requestAnimationFrame(fit)); // nodes have their places once they were drawn
}

/** Give a node the values of another, and what is linked to it. */
function take(node, from) {
  for (const name of SHARED) if (widget(from, name) && widget(node, name)) widget(node, name).value = widget(from, name).value;
  for (const name of [...SHARED, ...LINKED]) join(from, name, node);
  widget(node, "control_after_generate").value = "fixed";
  grayOut(node);
}

/** Link an input of a node to what another node's input is linked to. */
function join(from, name, node, own = name) {
  const link = linkOf(from, name);
  const slot = slotOf(node, own);
  if (link && slot >= 0) from.graph.getNodeById(link.origin_id)?.connect(link.origin_slot, node, slot);
}

function compareWithPlain(sampler) {
  const compare = add("ADTTreeCompare", sampler, [0, sampler.size[1] + GAP]);
  take(compare, sampler);
  for (const name of ["positive", "negative"]) join(sampler, name, compare);
  join(sampler, "settings", compare, "settings_a");
  const preview = add("PreviewImage", sampler, [compare.size[0] + GAP, sampler.size[1] + GAP]);
  compare.connect(0, preview, 0);
  show(compare, preview);
}

/** Give a node the text of one of the sampler's prompts, where it comes from a text node: what is typed there, or linked to it. */
function takeText(sampler, name, node, own) {
  const origin = sampler.graph.getNodeById(linkOf(sampler, name)?.origin_id);
  const text = origin && widget(origin, "text")?.value;
  if (text) widget(node, own).value = own === "text" ? text.replace(/\s*\n\s*/g, " ") : text; // in a list each line is a prompt
  if (origin) join(origin, "text", node, own);
}

function openBatch(sampler) {
  const top = sampler.size[1] + GAP;
  const prompts = add("ADTTreePrompts", sampler, [0, top]);
  takeText(sampler, "positive", prompts, "text");
  const batch = add("ADTTreeBatchSampler", sampler, [prompts.size[0] + GAP, top]);
  take(batch, sampler);
  takeText(sampler, "negative", batch, "negative");
  const collector = add("ADTTreeCollector", sampler, [prompts.size[0] + batch.size[0] + 2 * GAP, top]);
  for (const [slot, name] of [[0, "prompts"], [1, "ids"]]) prompts.connect(slot, batch, slotOf(batch, name));
  batch.connect(2, collector, 0);
  show(prompts, batch, collector);
}

app.registerExtension({
  name: "adttree.sampler",

  nodeCreated(node) {
    if (!SAMPLERS.has(node.comfyClass)) return;
    sendWhatCounts(node);
    foldAdvanced(node);
    if (widget(node, "speed")) widget(node, "speed").value = preference("speed");
    wrap(node, "onConfigure", (saved) => {
      keepOldSpeed(node, saved);
      tidy(node);
    });
    wrap(node, "onConnectionsChange", () => tidy(node));
    tidy(node);
    node.setSize([node.size[0], node.computeSize()[1]]); // it was made with room for all that is hidden now
  },

  getNodeMenuItems(node) {
    if (node.comfyClass !== SAMPLER) return [];
    return [
      null,
      { content: words.compareWithPlain, callback: () => compareWithPlain(node) },
      { content: words.openBatch, callback: () => openBatch(node) },
    ];
  },
});
