/** The acceptance map on the ADT-Tree Sampler and Compare: messages of the server in, a widget on the node out. */

import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { Run } from "./map_model.js";
import { isOpen, maps, nodeAt, NodeMap, openWorkflow } from "./node_map.js";
import { openedFile } from "./opened_file.js";
import { onPreference } from "./preferences.js";
import { homesOf, keep, noteHomes, parts, remember, seen } from "./runs.js";
import { Room } from "./saved_map.js";
import { speak, words } from "./words.js";

const SAMPLERS = new Set(["ADTTreeSampler", "ADTTreeCompare"]);
const TRAVELLED = "adt_tree_maps"; // among the extras of a workflow that comes out of an image: see nodes/saved_map.py

/** The workflow that is being loaded, or null: the maps that came with it, or null, and when all of it is there. */
let loading = null;

/** The home of the map that a message is for. Of a prompt that this tab did not queue, it is known by the open workflow alone. */
function homeOf(prompt, node, workflow) {
  const homes = homesOf(prompt);
  if (homes) return homes[node];
  return workflow && workflow !== openWorkflow() ? undefined : maps.get(nodeAt(node))?.home;
}

function mapAt(home) {
  return [...maps.values()].find((map) => map.home === home);
}

function listen() {
  const stop = () => maps.forEach((map) => map.stop());
  let live, started; // of the prompt: the run last told of, and the workflow that was open when it began
  const listeners = {
    "adt_tree.queued": ({ detail }) => noteHomes(detail.prompt, detail.homes), // at its end another workflow may be open
    "adt_tree.map": ({ detail }) => {
      live = detail.id;
      const run = seen(live) ?? new Run(detail);
      run.append(detail.first, detail.rounds);
      remember(run); // for the same node after "undo", say, or in a workflow that is opened again meanwhile
      mapAt(homeOf(detail.prompt, detail.node, detail.workflow))?.receive(run, detail.part);
    },
    executed: ({ detail }) => {
      const saved = parts(detail.output);
      if (!saved.length) return;
      const last = saved.find(({ id }) => id === live); // a result from the cache may be of another workflow
      const home = homeOf(detail.prompt_id, detail.display_node ?? detail.node, last ? last.workflow : started);
      const reference = { prompt: detail.prompt_id, node: String(detail.node) };
      const map = mapAt(home);
      if (map) map.finish(saved, reference);
      else if (home) keep(home, saved, reference); // for when its workflow is opened
    },
    b_preview_with_metadata: ({ detail }) => mapAt(homeOf(detail.jobId, detail.displayNodeId ?? detail.nodeId))?.preview(detail.blob),
    execution_start: () => {
      [live, started] = [null, openWorkflow()];
      stop();
    },
    execution_interrupted: stop,
    execution_error: stop,
    graphChanged: () => maps.forEach((map) => map.graphChanged()),
  };
  for (const [event, listener] of Object.entries(listeners)) api.addEventListener(event, listener);
  // ComfyUI tells of a change of the workflow after a click; a prompt is noticed while it is typed, once its widget has it.
  addEventListener("input", () => requestAnimationFrame(() => maps.forEach((map) => map.panel.recaption())), true);
}

function addStyles() {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = new URL("./acceptance_map.css", import.meta.url).href;
  document.head.append(link);
}

listen(); // before ComfyUI connects: it logs messages that nobody listens to, and a run may go on while the page is loaded again

app.registerExtension({
  name: "adttree.acceptance_map",

  setup() {
    addStyles();
    speak(app.extensionManager?.setting?.get("Comfy.Locale"));
    onPreference("map", (on) => maps.forEach((map) => map.show(on)));
  },

  beforeConfigureGraph(workflow) {
    const brought = workflow.extra?.[TRAVELLED];
    if (brought !== undefined) delete workflow.extra[TRAVELLED]; // the page keeps them: they would be in every state that can be undone
    let done;
    const ready = new Promise((resolve) => (done = resolve));
    loading = { travelled: brought === undefined ? null : Object(brought), file: brought && openedFile(), room: new Room(), ready, done };
  },

  afterConfigureGraph() {
    loading?.done();
    loading = null;
    for (const node of maps.keys()) if (!isOpen(node)) maps.delete(node); // onRemoved is not called for nodes in subgraphs
  },

  nodeCreated(node) {
    if (!SAMPLERS.has(node.comfyClass)) return;
    const map = new NodeMap(node);
    const { onAdded, onConfigure, onDrawBackground, onRemoved, onWidgetChanged } = node;
    node.onAdded = function (...args) {
      onAdded?.apply(this, args);
      maps.set(node, map); // not before: "copy" makes a node only to serialise it, and never adds it
    };
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
    node.onDrawBackground = function (...args) {
      if (map.widget.hidden) onDrawBackground?.apply(this, args); // adds ComfyUI's own live preview, which the map shows already
    };
  },

  getNodeMenuItems(node) {
    const map = maps.get(node);
    return map?.run ? [{ content: words.save, callback: () => map.panel.save() }] : [];
  },
});
