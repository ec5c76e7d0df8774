/**
 * Acceptance map of one node: it stores the node's runs, the widget that shows them, and the property that is saved
 * with the node.
 *
 * A run is one decoding of a batch of images, see map_model.js.
 */

import { measured } from "./added_nodes.js";
import * as comfy from "./comfy.js";
import { bitmapOf, inheritPreviews, showPreviews } from "./images.js";
import { FIGURES } from "./map_model.js";
import { MapPanel } from "./map_panel.js";
import { listedName } from "./models.js";
import { own } from "./own.js";
import { preference } from "./preferences.js";
import { isLeftOut, keep, latest, load, noteShown, recall } from "./runs.js";
import { checkMap, checkProperty } from "./saved_map.js";
import { shortName } from "./sentences.js";
import { PROMPT, texts } from "./texts.js";
import { ZoomedOutMap } from "./zoomed_out.js";

const WIDGET = "acceptance_map";
const PROPERTY = "adt_tree_map"; // property of the node: settings of the panel, tag of the node, references to its runs
const WILDCARDS = /[{}]|\/\*|\/\//; // when ComfyUI queues a prompt, it chooses from {red|blue} and removes comments
const CONTROL = "control_after_generate"; // widget that ComfyUI adds below a seed, and its value for no change
const FIXED = "fixed";
const BESIDE = "beside"; // id of run B of the Compare node in the list of runs to compare with
const PREVIOUS = "previous"; // id of the previous run in this list

// In pixels:
const MIN_WIDTH = 340;
const IDLE_HEIGHT = 30; // before the first run
const MESSAGE_HEIGHT = 82; // before the first run, with a message of the server
const MIN_HEIGHT = 413; // with a run

/** Node -> NodeMap, for the nodes of the open workflow and its subgraphs. */
export const maps = new Map();

export class NodeMap {
  #saved = null; // references to runs in the saved workflow while these runs are being fetched, otherwise null

  constructor(node) {
    this.node = node;
    this.tag = newTag(); // random text that identifies the node, also after "undo" or a reload of its workflow
    this.parts = []; // the shown runs: one run of the sampler, or the runs A and B of the node Compare
    this.started = null; // time at which the node began to run, until its first message; null otherwise
    this.previous = null; // the run before the runs in `parts`
    this.panel = new MapPanel(this, { cells: preference("cells"), opacity: preference("opacity") / 100 });
    const { element } = this.panel;
    comfy.forwardWheelAndPan(element);
    for (const event of ["click", "change"]) element.addEventListener(event, comfy.noticeChanges);
    const options = { label: texts.map, getMinHeight: () => this.#minHeight() };
    this.widget = comfy.addElement(node, WIDGET, "ADT_TREE_MAP", element, options);
    this.widget.map = this;
    this.zoomedOut = new ZoomedOutMap(node, this.widget, this.panel);
    this.show(preference("map"));
    this.changed();
  }

  #minHeight() {
    const { caption, captionHeight, detailsHeight, comparisonHeight } = this.panel;
    if (!this.run) return (caption.message ? MESSAGE_HEIGHT : IDLE_HEIGHT) + captionHeight;
    return MIN_HEIGHT + comparisonHeight + captionHeight + detailsHeight;
  }

  /** Show the map on its node, or hide it. */
  show(on) {
    comfy.setHidden(this.widget, !on);
    comfy.refreshWidgets(this.node, this.widget);
    if (!on) return;
    comfy.removePreview(this.node); // ComfyUI has added it while the map was hidden
    this.fit();
  }

  /** Enlarge the node if the widget does not fit, for example at the first run. */
  fit() {
    comfy.fitNode(this.node, [MIN_WIDTH, 0]);
  }

  /** Show a message of the server above the map; "" removes it. `level` is its `Level`, see progress_text.js. */
  showMessage(text, level) {
    this.panel.caption.line.show(text, level);
    if (text && !this.run && !this.widget.hidden) this.fit();
  }

  /** Make the node higher by a number of pixels. */
  grow(pixels) {
    comfy.setHeight(this.node, this.node.size[1] + pixels);
    comfy.redrawNode(this.node);
    this.keepOutOfUndo();
  }

  // ---- runs --------------------------------------------------------------------------------

  /** The run that is shown first. */
  get run() {
    return this.parts[0] ?? null;
  }

  /** The home of the map. The workflow's id is needed, because nodes in copies of a workflow have the same tags. */
  get home() {
    return `${comfy.openWorkflow()} ${this.tag}`;
  }

  /** Show that the node runs, or not, but has made no tokens yet: it loads the model, or measures the device. */
  prepare(on) {
    if (on === (this.started !== null)) return;
    this.started = on ? performance.now() : null;
    clearInterval(this.timer);
    if (on) this.timer = setInterval(this.panel.redraw, 1000);
    this.panel.redraw();
  }

  /** The text while the node prepares, or "". */
  get preparing() {
    return this.started === null ? "" : texts.preparing(Math.round((performance.now() - this.started) / 1000));
  }

  /** Show a live run, or its new rounds. `part` is its index in `parts`: 1 for Compare's run B, otherwise 0. */
  receive(run, part) {
    this.prepare(false);
    if (run !== this.parts[part]) {
      this.#start(run, part);
      this.keepOutOfUndo();
    }
    this.panel.show(this.run);
  }

  /** Show finished maps, unless they are shown already. ComfyUI sends them again if it reuses the node's output. */
  async finish(saved, reference) {
    this.prepare(false);
    const isShown = saved.every((map, part) => map.id === this.parts[part]?.id && this.parts[part].state === "done");
    if (isShown) return;
    const runs = await keep(this.home, saved, reference);
    if (!comfy.isOpen(this.node)) return;
    for (const [part, run] of runs.entries()) {
      const live = this.parts[part];
      if (run.id !== live?.id) this.#start(run, part);
      else inheritPreviews(run, live);
      this.parts[part] = run;
    }
    this.changed();
    this.keepOutOfUndo();
    for (const map of maps.values()) map.panel.refresh(); // another node may be compared with this one
    this.panel.show(this.run);
  }

  /** Mark the live runs as stopped before their end. */
  stop() {
    this.prepare(false);
    const running = this.parts.filter(({ state }) => state === "running");
    for (const run of running) run.state = "stopped";
    if (running.length) this.panel.refresh();
  }

  /** Update after a change of the workflow, also by "undo". */
  graphChanged() {
    this.keepOutOfUndo(); // "undo" may have restored a run, which enlarges the node
    this.panel.redraw(); // the caption lists the values of the node that have changed since the run
  }

  preview(blob) {
    const running = this.parts.find(({ state }) => state === "running");
    if (running) showPreviews(this.parts, running.abreast, blob, this.panel.redraw);
  }

  #start(run, part) {
    this.#saved = null;
    if (part === 0) this.previous = this.run;
    else if (!this.parts[part]) this.panel.compare.other = BESIDE; // until the user chooses another run
    const isFirst = !this.run;
    this.parts[part] = run;
    if (isFirst && !this.widget.hidden) this.fit();
  }

  get #references() {
    return this.parts.map((run) => run.reference).filter(Boolean);
  }

  /**
   * Restore the settings and runs of the node.
   *
   * If the workflow was opened from an image file and contains maps, the node shows only its own map from this file.
   * Otherwise the node shows the runs that its property refers to, or later runs that it has shown in this browser tab.
   *
   * @param {any} loading data about the workflow that is being loaded, or null if the node is a copy.
   *   `travelled`: the maps in the workflow by execution id, or null. `file`: a promise of the image file, or of null.
   *   `ready`: a promise that is resolved when the workflow is loaded. `budget`: the memory that its maps may use.
   */
  async restore(loading) {
    const { settings, tag, runs } = checkProperty(this.node.properties[PROPERTY], this.panel.settings, FIGURES);
    Object.assign(this.panel.settings, settings);
    if (tag && loading && !loading.travelled) this.tag = tag;
    const before = this.run;
    this.#saved = loading?.travelled ? [] : runs;
    this.changed();
    this.panel.refresh();
    await loading?.ready;
    const { home } = this; // store the home, because the user may open another workflow during the next call
    const found = loading?.travelled ? await this.#unpack(loading) : await recall(latest(home, runs));
    this.#saved = null;
    if (this.run !== before || !found.length || !comfy.isOpen(this.node)) return; // a new run has begun
    this.#showFound(found, home);
  }

  #showFound(found, home) {
    const [run, previous] = found.filter(({ reference }) => !reference?.part);
    for (const one of found) if (one !== previous) this.#start(one, one.reference?.part ?? 0);
    this.previous = previous && previous !== run ? previous : null;
    noteShown(home, this.#references);
    this.panel.image = 0;
    this.panel.show(this.run);
  }

  async #unpack({ travelled, budget }) {
    const id = comfy.executionIds(this.node).find((id) => Object.hasOwn(travelled, id));
    try {
      const saved = (own(travelled, id)?.parts ?? []).slice(0, 2).map((map) => checkMap(map, budget));
      return await Promise.all(saved.map((map, part) => load(map, { part }, budget)));
    } catch {
      return []; // the maps are damaged or not from this pack, so show none
    }
  }

  /** Whether the image of the run is available, so that the map is drawn over it. */
  imageShown() {
    return this.run !== null && bitmapOf(this.run, this.panel.image, this.panel.redraw) !== null;
  }

  /**
   * Copy the node's runs and size to the state with which ComfyUI compares the workflow. Then ComfyUI does not regard a
   * new run as a change by the user that "undo" reverts.
   */
  keepOutOfUndo() {
    const saved = comfy.comparedNodes().find(({ properties }) => properties?.[PROPERTY]?.tag === this.tag);
    if (!saved) return;
    const { runs } = this.node.properties[PROPERTY];
    saved.properties[PROPERTY].runs = JSON.parse(JSON.stringify(runs)); // structuredClone refuses proxies
    saved.size = [...this.node.size];
  }

  // ---- interface for the panel -------------------------------------------------------------

  /** Store settings and references to the runs in the node. */
  changed() {
    const runs = this.#saved ?? [...this.parts, this.previous].map((run) => run?.reference).filter(Boolean);
    this.node.properties[PROPERTY] = { ...this.panel.settings, tag: this.tag, runs };
  }

  /** The values of the node and the texts of its prompts that have changed since a run; see caption.js. */
  differences(run) {
    const own = changedWidgets(this.node, run.inputs).filter(({ widget }) => comfy.isEditable(widget));
    return [
      ...own.map((one) => this.#difference(one, one.widget.label ?? one.widget.name)),
      ...this.#promptDifferences(run),
    ];
  }

  /** Only nodes that feed this node are compared. Nodes of other workflows may have the ids of the run's nodes. */
  #promptDifferences(run) {
    const sources = promptNodes(this.node);
    const prompts = Object.entries(run.texts).map(([id, values]) => ({ node: comfy.nodeAt(id), values }));
    if (isRelinked(sources, prompts)) return [{ name: PROMPT, now: "" }];
    const changed = prompts
      .filter(({ node }) => sources.has(node))
      .flatMap((one) => changedWidgets(one.node, one.values));
    return changed.filter(isVerbatim).map((one) => this.#difference(one, PROMPT));
  }

  #difference({ node, widget, was }, name) {
    const control = widget.name === "seed" ? comfy.findWidget(node, CONTROL) : undefined;
    const keeps = control !== undefined && control.value !== FIXED;
    const restore = () => {
      comfy.setValue(node, widget, parse(was, typeof widget.value));
      if (keeps) comfy.setValue(node, control, FIXED);
      this.panel.redraw();
    };
    return { name, now: String(widget.value), was, restore, keeps };
  }

  /** A sentence on why the map is from an earlier run (the node is or was muted or bypassed), or "". */
  get off() {
    return own(texts.off, comfy.modeOf(this.node)) ?? (isLeftOut(this.home) ? texts.leftOut : "");
  }

  /** Whether `measure` is possible. */
  canMeasure() {
    return this.node.comfyClass === "ADTTreeSampler";
  }

  /** Compare the node with one without drafts, for the seed of the shown run. */
  measure() {
    const [compare, preview] = measured(this.node, this.tag);
    comfy.findWidget(compare, "seed").value = parse(this.run.seed, "number");
    comfy.runNodes([preview]);
  }

  /** The panel has been drawn. */
  drawn() {
    this.zoomedOut?.invalidate(); // `zoomedOut` does not exist yet when the panel draws for the first time
  }

  /** The runs that the user can compare with. @returns {{id: string, label: string}[]} */
  choices() {
    const others = [...maps.values()].filter((other) => other !== this && other.run);
    const beside = this.parts[1];
    return [
      ...(beside ? [{ id: BESIDE, label: texts.beside(shortName(beside)) }] : []),
      ...(this.previous ? [{ id: PREVIOUS, label: texts.previous(shortName(this.previous)) }] : []),
      ...others.map(({ tag, node, run }) => ({ id: tag, label: `${node.title} #${node.id} (${shortName(run)})` })),
    ];
  }

  /** One of the `choices`. @returns {import("./map_model.js").Run | null} */
  choose(id) {
    if (id === BESIDE) return this.parts[1] ?? null;
    if (id === PREVIOUS) return this.previous;
    return [...maps.values()].find(({ tag }) => id === tag)?.run ?? null;
  }
}

function newTag() {
  return Math.random().toString(36).slice(2, 12);
}

/** Convert the text of a queued value to the type of a widget's value. */
function parse(text, type) {
  if (type === "number") return Number(text);
  return type === "boolean" ? text === "true" : text;
}

/** The widgets of a node whose values differ from the values in the run. Linked inputs are ignored. */
function changedWidgets(node, saved) {
  const queued = Object.fromEntries(
    Object.entries(saved).map(([name, value]) => [name, listedName(node, name, value)]),
  );
  return comfy
    .widgetsOf(node)
    .filter(
      ({ name, value }) => Object.hasOwn(queued, name) && !isSame(queued[name], value) && !comfy.isLinked(node, name),
    )
    .map((widget) => ({ node, widget, was: queued[widget.name] }));
}

/** Whether the text of a queued value is equal to the value of a widget. */
function isSame(queued, value) {
  return queued === String(value) || (queued !== "" && Number(queued) === Number(value));
}

/** Whether ComfyUI queues the text of a widget unchanged. */
function isVerbatim({ widget }) {
  return !WILDCARDS.test(widget.value);
}

/**
 * Whether the prompts are linked to other nodes than in the run, and these nodes have other texts.
 *
 * @param {Set<import("./comfy.js").GraphNode>} sources nodes upstream of the prompts
 */
function isRelinked(sources, prompts) {
  if (!sources.size) return false;
  const has = (source, values) => {
    const names = comfy.widgetsOf(source).map(({ name }) => name);
    return Object.keys(values).every((name) => names.includes(name));
  };
  const hasTexts = (source, values) => has(source, values) && !changedWidgets(source, values).some(isVerbatim);
  return prompts.some(({ node, values }) => !sources.has(node) && ![...sources].some((one) => hasTexts(one, values)));
}

/** The nodes upstream of a sampler's prompts. */
function promptNodes(node) {
  return comfy.upstreamOf(node, (name) => ["positive", "negative"].includes(name));
}
