/** The acceptance map on the ADT-Tree Sampler and Compare: messages of the server in, a widget on the node out. */

import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { Run } from "./map_model.js";
import { MapPanel } from "./map_panel.js";
import { inherit, picture, showPreviews } from "./pictures.js";
import { forwardWheelAndPan } from "./pointer.js";
import { parts, recall, remember } from "./runs.js";
import { methodName, speak, words } from "./words.js";

const SAMPLERS = new Set(["ADTTreeSampler", "ADTTreeCompare"]);
const WIDGET = "acceptance_map";
const PROPERTY = "adt_tree_map"; // of the node: settings of the widget, and where its runs are found again
const BESIDE = "beside"; // id of B among the runs to compare with
const MIN_WIDTH = 340;
const MIN_HEIGHT = 370;

const maps = new Map(); // node -> NodeMap
const baselines = new Map(); // what is comparable -> the last run of plain decoding seen on this page

/** The map of one node: its runs, and the widget that shows them. */
class NodeMap {
  constructor(node) {
    this.node = node;
    this.parts = []; // the runs that a node makes side by side: one, or A and B
    this.previous = null;
    this.panel = new MapPanel(this, {});
    forwardWheelAndPan(this.panel.element, app);
    const options = { serialize: false, hideOnZoom: false, getMinHeight: () => MIN_HEIGHT, getValue: () => "", setValue: () => {} };
    const widget = node.addDOMWidget(WIDGET, "ADT_TREE_MAP", this.panel.element, options);
    widget.serialize = false; // the option keeps it out of the prompt, this out of the workflow
    widget.map = this;
    this.fit();
  }

  /** Make room for the widget in a node that was saved without it. */
  fit() {
    const [width, height] = this.node.computeSize();
    const [w, h] = this.node.size;
    this.node.setSize([Math.max(w, width, MIN_WIDTH), Math.max(h, height)]);
  }

  // ---- runs ------------------------------------------------------------------------------

  /** The run that is shown first. */
  get run() {
    return this.parts[0] ?? null;
  }

  /** Take a message of a run that goes on. */
  receive(message) {
    const { part } = message;
    if (message.id !== this.parts[part]?.id) this.#start(new Run(message), part);
    const run = this.parts[part];
    run.append(message.first, message.rounds);
    if (run.plainRound !== null) baselines.set(comparable(run), run);
    this.panel.show(this.run);
  }

  /** Take the finished maps; ComfyUI sends them again whenever the node's output is reused. */
  finish(stored, reference) {
    if (stored.every((map, part) => map.id === this.parts[part]?.id && this.parts[part].state === "done")) return;
    stored.forEach((map, part) => {
      const run = Run.stored(map);
      if (run.id === this.parts[part]?.id) inherit(run, this.parts[part]);
      else this.#start(run, part);
      this.#keep(run, { ...reference, part });
    });
    this.changed();
  }

  /** The run stopped before its end. */
  stop() {
    const running = this.parts.filter(({ state }) => state === "running");
    for (const run of running) run.state = "stopped";
    if (running.length) this.panel.refresh();
  }

  preview(blob) {
    const running = this.parts.find(({ state }) => state === "running");
    if (running) showPreviews(this.parts, running.abreast, blob, this.panel.redraw);
  }

  #saved = null; // references in the saved workflow, while their runs are being fetched

  #start(run, part) {
    this.#saved = null;
    if (part === 0) this.previous = this.run;
    else if (!this.parts[part]) this.panel.other = BESIDE; // until the user chooses something else
    this.parts[part] = run;
  }

  #keep(run, reference) {
    this.parts[reference.part] = run;
    run.reference = reference;
    remember(run);
    if (run.plainRound !== null) baselines.set(comparable(run), run);
    this.panel.show(this.run);
  }

  /** Bring back what the node showed when it was saved or copied, and the look of its widget. */
  async restore() {
    const { runs = [], ...settings } = this.node.properties[PROPERTY] ?? {};
    Object.assign(this.panel.settings, settings);
    this.panel.refresh();
    const before = this.run;
    this.#saved = runs;
    const found = await recall(runs, (id) => nodeAt(id) === this.node, app.rootGraph ?? app.graph);
    this.#saved = null;
    if (this.run !== before || !found.length) return; // a new run has begun meanwhile
    const [run, previous] = found.filter(({ reference }) => !reference.part);
    for (const one of found) if (one !== previous) this.#start(one, one.reference.part);
    for (const one of found) if (one !== previous) this.#keep(one, one.reference);
    this.previous = previous ?? null;
  }

  /** Whether there is a picture under the map of the image that is shown. */
  pictureShown() {
    return this.run !== null && picture(this.run, this.panel.image, this.panel.redraw) !== null;
  }

  // ---- what the panel asks ---------------------------------------------------------------

  /** Remember settings and runs in the node, small: the runs themselves are in ComfyUI's history. */
  changed() {
    const runs = this.#saved ?? [...this.parts, this.previous].map((run) => run?.reference).filter(Boolean);
    this.node.properties[PROPERTY] = { ...this.panel.settings, runs };
  }

  choices() {
    const others = [...maps.values()].filter((other) => other !== this && other.run);
    const beside = this.parts[1];
    return [
      ...(beside ? [{ id: BESIDE, label: words.beside(methodName(beside.method)) }] : []),
      ...(this.previous ? [{ id: "previous", label: words.previous(methodName(this.previous.method)) }] : []),
      ...others.map(({ node, run }) => ({ id: `node ${node.id}`, label: `${node.title} #${node.id} (${methodName(run.method)})` })),
    ];
  }

  choose(id) {
    if (id === BESIDE) return this.parts[1] ?? null;
    return id === "previous" ? this.previous : ([...maps.values()].find(({ node }) => id === `node ${node.id}`)?.run ?? null);
  }

  plain(run) {
    return baselines.get(comparable(run)) ?? null;
  }
}

function comparable(run) {
  return `${run.comparable}, ${run.count} of ${run.rows} by ${run.columns}`;
}

/** The node that an execution id such as "12:5" means: node 5 in the subgraph of node 12. */
function nodeAt(id) {
  const path = String(id).split(":");
  const last = path.pop();
  let graph = app.rootGraph ?? app.graph;
  for (const part of path) graph = graph?.getNodeById(part)?.subgraph;
  return graph?.getNodeById(last) ?? null;
}

function openWorkflow() {
  return (app.rootGraph ?? app.graph)?.id;
}

/** The map that a message is for: its node may have the same number as one of another workflow. */
function mapFor(id, workflow) {
  return workflow && workflow !== openWorkflow() ? undefined : maps.get(nodeAt(id));
}

function addStyles() {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = new URL("./acceptance_map.css", import.meta.url).href;
  document.head.append(link);
}

app.registerExtension({
  name: "adttree.acceptance_map",

  setup() {
    addStyles();
    speak(app.extensionManager?.setting?.get("Comfy.Locale"));
    const stop = () => maps.forEach((map) => map.stop());
    let live, started; // of the prompt: the run last told of, and the workflow that was open when it began
    const listeners = {
      "adt_tree.map": ({ detail }) => {
        live = detail.id;
        mapFor(detail.node, detail.workflow)?.receive(detail);
      },
      executed: ({ detail }) => {
        const stored = parts(detail.output);
        if (!stored.length) return;
        const last = stored.find(({ id }) => id === live); // a result from the cache may be of another workflow
        mapFor(detail.node, last ? last.workflow : started)?.finish(stored, { prompt: detail.prompt_id, node: String(detail.node) });
      },
      b_preview_with_metadata: ({ detail }) => maps.get(nodeAt(detail.nodeId))?.preview(detail.blob),
      execution_start: () => {
        [live, started] = [null, openWorkflow()];
        stop();
      },
      execution_interrupted: stop,
      execution_error: stop,
    };
    for (const [event, listener] of Object.entries(listeners)) api.addEventListener(event, listener);
  },

  nodeCreated(node) {
    if (!SAMPLERS.has(node.comfyClass)) return;
    const map = new NodeMap(node);
    maps.set(node, map);
    const { onConfigure, onRemoved } = node;
    node.onConfigure = function (...args) {
      onConfigure?.apply(this, args);
      map.fit();
      map.restore();
    };
    node.onRemoved = function (...args) {
      maps.delete(node);
      onRemoved?.apply(this, args);
    };
    node.onDrawBackground = () => {}; // would add ComfyUI's own live preview below the map, which shows it already
  },
});
