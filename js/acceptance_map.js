/** The acceptance map on the ADT-Tree Sampler and Compare: messages of the server in, a widget on the node out. */

import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { maps, nodeAt, NodeMap } from "./node_map.js";
import { onPreference } from "./preferences.js";
import { parts } from "./runs.js";
import { speak, words } from "./words.js";

const SAMPLERS = new Set(["ADTTreeSampler", "ADTTreeCompare"]);
const TRAVELLED = "adt_tree_maps"; // among the extras of a workflow that comes out of an image: see nodes/saved_map.py

/** The workflow that is being loaded, or null: the maps that came with it, or null, and when all of it is there. */
let loading = null;

function openWorkflow() {
  return (app.rootGraph ?? app.graph)?.id;
}

/** The map that a message is for: its node may have the same number as one of another workflow. */
function mapFor(id, workflow) {
  return workflow && workflow !== openWorkflow() ? undefined : maps.get(nodeAt(id));
}

function listen() {
  const stop = () => maps.forEach((map) => map.stop());
  let live, started; // of the prompt: the run last told of, and the workflow that was open when it began
  const listeners = {
    "adt_tree.map": ({ detail }) => {
      live = detail.id;
      mapFor(detail.node, detail.workflow)?.receive(detail);
    },
    executed: ({ detail }) => {
      const saved = parts(detail.output);
      if (!saved.length) return;
      const last = saved.find(({ id }) => id === live); // a result from the cache may be of another workflow
      mapFor(detail.node, last ? last.workflow : started)?.finish(saved, { prompt: detail.prompt_id, node: String(detail.node) });
    },
    b_preview_with_metadata: ({ detail }) => maps.get(nodeAt(detail.nodeId))?.preview(detail.blob),
    execution_start: () => {
      [live, started] = [null, openWorkflow()];
      stop();
    },
    execution_interrupted: stop,
    execution_error: stop,
    graphChanged: () => maps.forEach((map) => map.panel.redraw()), // a value may be another than that which made the map
  };
  for (const [event, listener] of Object.entries(listeners)) api.addEventListener(event, listener);
}

function addStyles() {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = new URL("./acceptance_map.css", import.meta.url).href;
  document.head.append(link);
}

listen(); // before ComfyUI connects: it logs messages that nobody knows, as of a run that goes on while the page is loaded again

app.registerExtension({
  name: "adttree.acceptance_map",

  setup() {
    addStyles();
    speak(app.extensionManager?.setting?.get("Comfy.Locale"));
    onPreference("map", (on) => maps.forEach((map) => map.show(on)));
  },

  beforeConfigureGraph(workflow) {
    const travelled = workflow.extra?.[TRAVELLED] ?? null;
    if (travelled) delete workflow.extra[TRAVELLED]; // the page keeps them: they would be in every state that can be undone
    let done;
    const ready = new Promise((resolve) => (done = resolve));
    loading = { travelled, ready, done };
  },

  afterConfigureGraph() {
    loading?.done();
    loading = null;
  },

  nodeCreated(node) {
    if (!SAMPLERS.has(node.comfyClass)) return;
    const map = new NodeMap(node);
    maps.set(node, map);
    const { onConfigure, onRemoved, onWidgetChanged } = node;
    node.onConfigure = function (...args) {
      onConfigure?.apply(this, args);
      map.fit();
      map.restore(loading);
    };
    node.onRemoved = function (...args) {
      maps.delete(node);
      onRemoved?.apply(this, args);
    };
    node.onWidgetChanged = function (...args) {
      onWidgetChanged?.apply(this, args);
      map.panel.redraw();
    };
    node.onDrawBackground = () => {}; // would add ComfyUI's own live preview below the map, which shows it already
  },

  getNodeMenuItems(node) {
    const map = maps.get(node);
    return map?.run ? [{ content: words.save, callback: () => map.panel.save() }] : [];
  },
});
