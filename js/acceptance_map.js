/**
 * Acceptance map on the nodes ADT-Tree Sampler and ADT-Tree Compare. The map shows how many tokens each model pass has
 * accepted in each part of an image. This file adds a map (a NodeMap) to each of these nodes. If the server sends a
 * message about a node, this file passes the message to the map of the node.
 *
 * Terms: a run is one decoding of a batch of images. The home of a map is its workflow and its node, see node_map.js.
 */

import * as comfy from "./comfy.js";
import { Run } from "./map_model.js";
import { maps, NodeMap } from "./node_map.js";
import { own } from "./own.js";
import { onPreference } from "./preferences.js";
import { canEncode, KINDS } from "./replay_file.js";
import { homesOf, keep, noteQueued, noteStart, noteSuccess, parts, remember, seen, workflowOf } from "./runs.js";
import { Budget } from "./saved_map.js";
import { setLanguage, texts } from "./texts.js";

const SAMPLERS = new Set(["ADTTreeSampler", "ADTTreeCompare"]);
const EXTRA = "adt_tree_maps"; // key in `extra` of a workflow in an image file, see nodes/saved_map.py

/** Data about the workflow that is being loaded (see `NodeMap.restore`), or null. */
let loading = null;

/** Data about the running prompt: the id of its latest run, its own id, and the id of its workflow. */
const running = { id: null, prompt: null, workflow: undefined };

/**
 * The home of the map for a message about a node, or undefined. If this tab did not queue the prompt, the homes of the
 * prompt are unknown. Then this function looks for the node in the open workflow.
 */
function homeOf(prompt, node, workflow) {
  const homes = homesOf(prompt);
  if (homes) return own(homes, node);
  return workflow && workflow !== comfy.openWorkflow() ? undefined : maps.get(comfy.nodeAt(node))?.home;
}

function mapAt(home) {
  return [...maps.values()].find((map) => map.home === home);
}

/** Append the rounds of a live message to their run. */
function receive(message) {
  running.id = message.id;
  const run = seen(message.id) ?? new Run(message);
  run.append(message.first, message.rounds);
  remember(run); // so that the map can show the run after "undo", or after its workflow is opened again
  mapAt(homeOf(message.prompt, message.node, message.workflow))?.receive(run, message.part);
}

/** Show the finished maps of a node, or store them until their workflow is opened. */
function finish(message) {
  const saved = parts(message.output);
  if (!saved.length) return;
  // The maps of the latest run contain the id of its workflow. Other maps come from ComfyUI's cache and may contain the
  // id of another workflow. For such maps, use the workflow that was open at the start of the prompt.
  const own = saved.find(({ id }) => id === running.id);
  const home = homeOf(message.prompt_id, message.display_node ?? message.node, own ? own.workflow : running.workflow);
  const reference = { prompt: message.prompt_id, node: String(message.node) };
  const map = mapAt(home);
  if (map) map.finish(saved, reference);
  else if (home) keep(home, saved, reference);
}

/** Store which maps belong to a queued prompt, because the user may open another workflow before it runs. */
function queued(message) {
  const open = [...maps.values()].map((map) => map.home);
  noteQueued(message, open);
}

function start(message) {
  running.id = null;
  running.prompt = message.prompt_id;
  running.workflow = workflowOf(message.prompt_id) ?? comfy.openWorkflow();
  noteStart(message.prompt_id);
  stop();
  refreshCaptions();
}

function succeed(message) {
  noteSuccess(message.prompt_id);
  refreshCaptions();
}

/** A node has begun to run, or the prompt has ended. @param {string | null} node */
function execute(node) {
  const map = node === null ? null : mapAt(homeOf(running.prompt, String(node), running.workflow));
  for (const one of maps.values()) one.prepare(one === map);
}

function stop() {
  for (const map of maps.values()) map.stop();
}

// Listen before ComfyUI connects to the server. A run may continue while the page is reloaded, and ComfyUI reports
// messages without listeners as errors.
comfy.listen({
  "adt_tree.queued": queued,
  "adt_tree.map": receive,
  executed: finish,
  b_preview_with_metadata: ({ jobId, displayNodeId, nodeId, blob }) =>
    mapAt(homeOf(jobId, displayNodeId ?? nodeId))?.preview(blob),
  executing: execute,
  execution_start: start,
  execution_success: succeed,
  execution_interrupted: stop,
  execution_error: stop,
  graphChanged: () => {
    for (const map of maps.values()) map.graphChanged();
  },
});

/**
 * Update the captions with the next frame. ComfyUI reports a change by the user late, for example after a prompt has
 * been typed. In Nodes 2.0, it does not report that a node was muted or bypassed.
 */
function refreshCaptions() {
  requestAnimationFrame(() => {
    for (const map of maps.values()) map.panel.refreshCaption();
  });
}

function addStyles() {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = new URL("./acceptance_map.css", import.meta.url).href;
  document.head.append(link);
}

function addMap(node) {
  const map = new NodeMap(node);
  comfy.callAfter(node, "onAdded", () => maps.set(node, map)); // not before: "copy" creates nodes that are never added
  comfy.callAfter(node, "onConfigure", () => {
    map.fit();
    map.restore(loading);
  });
  const { onRemoved } = node;
  node.onRemoved = function (...args) {
    maps.delete(node);
    onRemoved?.apply(this, args);
  };
  comfy.callAfter(node, "onWidgetChanged", () => map.panel.redraw());
  comfy.hideLivePreview(node, () => !map.widget.hidden); // the map shows the preview itself
}

comfy.registerExtension({
  name: "adttree.acceptance_map",

  setup() {
    addStyles();
    setLanguage(comfy.language());
    comfy.onZoomedOut((isOut) => document.body.classList.toggle("adt-zoomed-out", isOut));
    onPreference("map", (on) => {
      for (const map of maps.values()) map.show(on);
    });
    for (const event of ["input", "keyup", "click"]) addEventListener(event, refreshCaptions, true);
  },

  beforeConfigureGraph(/** @type {any} */ workflow) {
    const travelled = workflow.extra?.[EXTRA];
    const isInFile = travelled !== undefined;
    if (isInFile) delete workflow.extra[EXTRA]; // otherwise ComfyUI would store the maps in every "undo" state
    let done;
    const ready = new Promise((resolve) => {
      done = resolve;
    });
    loading = { travelled: isInFile ? Object(travelled) : null, budget: new Budget(), ready, done };
  },

  afterConfigureGraph() {
    loading?.done();
    loading = null;
    for (const node of maps.keys()) if (!comfy.isOpen(node)) maps.delete(node); // subgraphs do not call onRemoved
  },

  nodeCreated(node) {
    if (SAMPLERS.has(node.comfyClass)) addMap(node);
  },

  getNodeMenuItems(node) {
    const map = maps.get(node);
    if (!map?.run) return [];
    const kinds = map.run.state === "done" ? KINDS.filter(canEncode) : [];
    return [
      { content: texts.save, callback: () => map.panel.save() },
      ...kinds.map((kind) => ({ content: texts.saveReplay[kind], callback: () => map.panel.saveReplay(kind) })),
    ];
  },
});
