/** The map of one node: its runs, and the widget that shows them. */

import { app } from "../../scripts/app.js";
import { isLinked, sourcesOf } from "./inputs.js";
import { FIGURES } from "./map_model.js";
import { FromAfar } from "./from_afar.js";
import { MapPanel } from "./map_panel.js";
import { ownImage } from "./own_image.js";
import { inherit, picture, showPreviews } from "./pictures.js";
import { preference } from "./preferences.js";
import { forwardWheelAndPan } from "./pointer.js";
import { current } from "./renamed.js";
import { keep, latest, load, noteShown, recall } from "./runs.js";
import { sound, soundProperty } from "./saved_map.js";
import { shortName } from "./sentences.js";
import { PROMPT, words } from "./words.js";

const WIDGET = "acceptance_map";
const PROPERTY = "adt_tree_map"; // of the node: settings of the widget, its tag, and where its runs are found again
const WILDCARDS = /[{}]|\/\*|\/\//; // ComfyUI draws from {red|blue} when it queues, and leaves comments out
const OWN_PREVIEW = "$$canvas-image-preview"; // widget of ComfyUI
const BESIDE = "beside"; // id of B among the runs to compare with
const MIN_WIDTH = 340;
const MORE_TEXT = 30; // pixels that the text of two runs takes beside that of one
const [IDLE_HEIGHT, TOLD_HEIGHT, MIN_HEIGHT] = [30, 66, 398]; // of the widget: before the node's first run, with text, and from that run on

/** node -> NodeMap, of the open workflow and its subgraphs */
export const maps = new Map();

export class NodeMap {
  constructor(node) {
    this.node = node;
    this.tag = newTag(); // the same in every earlier state of the node in its workflow, and in no other node of it
    this.parts = []; // the runs that a node makes side by side: one, or A and B
    this.previous = null;
    this.panel = new MapPanel(this, { opacity: preference("opacity") / 100 });
    forwardWheelAndPan(this.panel.element, app);
    for (const act of ["click", "change"]) this.panel.element.addEventListener(act, () => this.#lookForChanges());
    const getMinHeight = () => (this.run ? MIN_HEIGHT + (this.run.abreast > 1 ? MORE_TEXT : 0) + this.panel.opened : this.panel.caption.told ? TOLD_HEIGHT : IDLE_HEIGHT);
    // A panel that lists a node's widgets would take the element out of the node.
    const options = { serialize: false, hideOnZoom: true, hideInPanel: true, getMinHeight, getValue: () => "", setValue: () => {} };
    const widget = node.addDOMWidget(WIDGET, "ADT_TREE_MAP", this.panel.element, options);
    widget.serialize = false; // the option keeps it out of the prompt, this out of the workflow
    widget.map = this;
    this.widget = widget;
    this.fromAfar = new FromAfar(node, widget, this.panel);
    this.show(preference("map"));
    this.changed();
  }

  /** Show the map on its node, or hide it. */
  show(on) {
    this.widget.hidden = !on; // the canvas reads this
    this.widget.options.hidden = !on; // Nodes 2.0 reads this, once the list of widgets changes
    const place = this.node.widgets.indexOf(this.widget);
    this.node.widgets.splice(place, 1); // in two steps: a list in which nothing changes is not read again
    this.node.widgets.splice(place, 0, this.widget);
    this.node.setDirtyCanvas?.(true, true);
    if (!on) return;
    this.#removeOwnPreview();
    this.fit();
  }

  /** ComfyUI shows a preview of its own on a node whose map is hidden: a second picture once the map is there again. */
  #removeOwnPreview() {
    const own = this.node.widgets.find(({ name }) => name === OWN_PREVIEW);
    if (own) this.node.removeWidget(own);
    this.node.imgs = this.node.preview = undefined;
  }

  /** Make room for the widget in a node that was saved without it, or has its first run. */
  fit() {
    const [width, height] = this.node.computeSize();
    const [w, h] = this.node.size;
    this.node.setSize([Math.max(w, width, MIN_WIDTH), Math.max(h, height)]);
  }

  /** Show a line of the server's above the map; "" for none. */
  tell(text) {
    this.panel.caption.tell(text);
    if (text && !this.run && !this.widget.hidden) this.fit();
  }

  /** Make the node so much higher. */
  grow(pixels) {
    this.node.setSize([this.node.size[0], this.node.size[1] + pixels]);
    this.node.setDirtyCanvas?.(true, true);
    this.keepOutOfUndo();
  }

  // ---- runs ------------------------------------------------------------------------------

  /** The run that is shown first. */
  get run() {
    return this.parts[0] ?? null;
  }

  /** Where its runs belong, whatever else is open when they end: a copy of the workflow has nodes of the same tags. */
  get home() {
    return `${openWorkflow()} ${this.tag}`;
  }

  /** Show a run that goes on. */
  receive(run, part) {
    if (run !== this.parts[part]) {
      this.#start(run, part);
      this.keepOutOfUndo();
    }
    this.panel.show(this.run);
  }

  /** Take the finished maps; ComfyUI sends them again whenever the node's output is reused. */
  async finish(saved, reference) {
    if (saved.every((map, part) => map.id === this.parts[part]?.id && this.parts[part].state === "done")) return;
    const runs = await keep(this.home, saved, reference);
    if (!isOpen(this.node)) return;
    for (const [part, run] of runs.entries()) {
      const live = this.parts[part];
      if (run.id !== live?.id) this.#start(run, part);
      else inherit(run, live);
      this.parts[part] = run;
    }
    this.changed();
    this.keepOutOfUndo();
    maps.forEach((map) => map.panel.refresh()); // another node may be compared with this one
    this.panel.show(this.run);
  }

  /** The run stopped before its end. */
  stop() {
    const running = this.parts.filter(({ state }) => state === "running");
    for (const run of running) run.state = "stopped";
    if (running.length) this.panel.refresh();
  }

  /** After a change of the workflow, also by "undo". */
  graphChanged() {
    this.keepOutOfUndo(); // a run that "undo" brought back may have made the node larger
    this.panel.redraw(); // a value may be another than that which made the map
  }

  preview(blob) {
    const running = this.parts.find(({ state }) => state === "running");
    if (running) showPreviews(this.parts, running.abreast, blob, this.panel.redraw);
  }

  #saved = null; // references in the saved workflow, while their runs are being fetched

  #start(run, part) {
    this.#saved = null;
    if (part === 0) this.previous = this.run;
    else if (!this.parts[part]) this.panel.compare.other = BESIDE; // until the user chooses something else
    const first = !this.run;
    this.parts[part] = run;
    if (first && !this.widget.hidden) this.fit();
  }

  get #references() {
    return this.parts.map((run) => run.reference).filter(Boolean);
  }

  /**
   * Bring back what belongs to the node, and the look of its widget.
   *
   * @param {object | null} loading the workflow that is being loaded, or null if the node is a copy: `travelled`, the maps that came with it,
   *   by node, or null; `file`, a promise of the picture that it came out of, or of null; `ready`, when all of it is there. If maps came with it, no others belong to it. Otherwise it is what the node refers
   *   to, or what it showed since in this browser tab.
   */
  async restore(loading) {
    const { settings, tag, runs } = soundProperty(this.node.properties[PROPERTY], this.panel.settings, FIGURES);
    Object.assign(this.panel.settings, settings);
    if (tag && loading && !loading.travelled) this.tag = tag;
    const before = this.run;
    this.#saved = loading?.travelled ? [] : runs;
    this.changed();
    this.panel.refresh();
    await loading?.ready;
    const { home } = this; // while history is read, another workflow may be opened
    const found = loading?.travelled ? await this.#unpack(loading) : await recall(latest(home, runs));
    this.#saved = null;
    if (this.run !== before || !found.length || !isOpen(this.node)) return; // a new run has begun meanwhile
    const [run, previous] = found.filter(({ reference }) => !reference?.part);
    for (const one of found) if (one !== previous) this.#start(one, one.reference?.part ?? 0);
    this.previous = previous && previous !== run ? previous : null;
    noteShown(home, this.#references);
    this.panel.image = run.reference?.image ?? 0;
    this.panel.show(this.run);
  }

  async #unpack({ travelled, file, room }) {
    const own = numbersOf(this.node).find((number) => Object.hasOwn(travelled, number));
    try {
      const maps = (travelled[own]?.parts ?? []).slice(0, 2).map((saved) => sound(saved, room));
      const image = maps.length ? await ownImage(await file, maps[0]) : null;
      return await Promise.all(maps.map((saved, part) => load(saved, { part, ...(image && { image }) }, room)));
    } catch {
      return []; // damaged, or made by somebody else: no map rather than a wrong one
    }
  }

  /** Whether there is a picture under the map of the image that is shown. */
  pictureShown() {
    return this.run !== null && picture(this.run, this.panel.image, this.panel.redraw) !== null;
  }

  /** ComfyUI looks at a workflow when the mouse goes up, before a click has changed a setting. */
  #lookForChanges() {
    app.canvas.emitBeforeChange();
    app.canvas.emitAfterChange();
  }

  /**
   * Enter the node's runs and size into the state that ComfyUI compares with to see what the user changed: a run is nothing to undo. While a
   * workflow is being opened that state is still of another.
   */
  keepOutOfUndo() {
    const state = app.extensionManager?.workflow?.activeWorkflow?.changeTracker?.activeState;
    if (!state || (state.id && state.id !== (app.rootGraph ?? app.graph).id)) return;
    const nodes = [state, ...(state.definitions?.subgraphs ?? [])].flatMap((graph) => graph.nodes ?? []);
    const saved = nodes.find(({ properties }) => properties?.[PROPERTY]?.tag === this.tag);
    if (!saved) return;
    saved.properties[PROPERTY].runs = JSON.parse(JSON.stringify(this.node.properties[PROPERTY].runs)); // of proxies, which can't be cloned
    saved.size = [...this.node.size];
  }

  // ---- what the panel asks ---------------------------------------------------------------

  /** Remember settings and runs in the node, small: the runs themselves are elsewhere, see runs.js. */
  changed() {
    const runs = this.#saved ?? [...this.parts, this.previous].map((run) => run?.reference).filter(Boolean);
    this.node.properties[PROPERTY] = { ...this.panel.settings, tag: this.tag, runs };
  }

  /** Values of the node, and texts of its prompts, that are others than those that made the run; see caption.js. */
  differences(run) {
    const own = changed(this.node, run.inputs).filter(({ widget }) => !widget.hidden && !widget.disabled && widget.options?.hidden !== true);
    const texts = Object.entries(run.texts).map(([id, values]) => ({ node: nodeAt(id), values }));
    const prompts = relinked(this.node, texts)
      ? [{ name: PROMPT, now: "" }]
      : texts.flatMap(({ node, values }) => changed(node, values)).filter(isText).map((one) => this.#difference(one, PROMPT));
    return [...own.map((one) => this.#difference(one, one.widget.label ?? one.widget.name)), ...prompts];
  }

  #difference({ node, widget, was }, name) {
    const take = () => {
      widget.value = typeof widget.value === "number" ? Number(was) : typeof widget.value === "boolean" ? was === "true" : was;
      widget.callback?.(widget.value, app.canvas, node);
      node.setDirtyCanvas?.(true, true);
      this.panel.redraw();
    };
    return { name, now: String(widget.value), was, take };
  }

  /** Why the node does not run, or "". */
  get off() {
    return words.off[this.node.mode] ?? "";
  }

  drawn() {
    this.fromAfar?.forget(); // the panel draws before there is a widget
  }

  choices() {
    const others = [...maps.values()].filter((other) => other !== this && other.run);
    const beside = this.parts[1];
    return [
      ...(beside ? [{ id: BESIDE, label: words.beside(shortName(beside)) }] : []),
      ...(this.previous ? [{ id: "previous", label: words.previous(shortName(this.previous)) }] : []),
      ...others.map(({ tag, node, run }) => ({ id: tag, label: `${node.title} #${node.id} (${shortName(run)})` })),
    ];
  }

  choose(id) {
    if (id === BESIDE) return this.parts[1] ?? null;
    return id === "previous" ? this.previous : ([...maps.values()].find(({ tag }) => id === tag)?.run ?? null);
  }
}

function newTag() {
  return Math.random().toString(36).slice(2, 12);
}

/** The widgets of a node whose values are others than those that were queued, by input. What is linked is no value of the node's. */
function changed(node, saved) {
  const queued = Object.fromEntries(Object.entries(saved).map(([name, value]) => [name, current(node, name, value)]));
  return (node?.widgets ?? [])
    .filter(({ name, value }) => name in queued && !same(queued[name], value) && !isLinked(node, name))
    .map((widget) => ({ node, widget, was: queued[widget.name] }));
}

/** Whether what a widget says is all of a text: ComfyUI draws others from it when it queues. */
function isText({ widget }) {
  return !WILDCARDS.test(widget.value);
}

/** Whether a sampler's prompts come from other nodes now than those with the texts that were queued, and say something else. */
function relinked(sampler, texts) {
  const sources = promptNodes(sampler);
  const has = ({ widgets }, values) => Object.keys(values).every((wanted) => widgets?.some(({ name }) => name === wanted));
  const says = (source, values) => has(source, values) && !changed(source, values).some(isText);
  return sources?.size > 0 && texts.some(({ node, values }) => !sources.has(node) && ![...sources].some((source) => says(source, values)));
}

/** The nodes that a node's prompts come from; null where links do not say it, as at the edge of a subgraph. */
function promptNodes(node, names = ["positive", "negative"], found = new Set()) {
  for (const source of sourcesOf(node, names)) {
    if (!source || source.subgraph || source.isVirtualNode || source.mode) return null;
    if (found.has(source)) continue;
    if (!promptNodes(source, null, found.add(source))) return null;
  }
  return found;
}

/** Whether a value as it was queued, which is text, is that of a widget. */
function same(queued, value) {
  return queued === String(value) || (queued !== "" && Number(queued) === Number(value));
}

/** The id of the workflow that is open. */
export function openWorkflow() {
  return (app.rootGraph ?? app.graph)?.id;
}

/** The node that an execution id such as "12:5" means: node 5 in the subgraph of node 12. */
export function nodeAt(id) {
  const path = String(id).split(":");
  const last = path.pop();
  let graph = app.rootGraph ?? app.graph;
  for (const part of path) graph = graph?.getNodeById(part)?.subgraph;
  return graph?.getNodeById(last) ?? null;
}

/** Whether a node is in the open workflow or one of its subgraphs. */
export function isOpen(node) {
  const root = app.rootGraph ?? app.graph;
  return node.graph?.getNodeById(node.id) === node && (node.graph === root || root.subgraphs?.get(node.graph.id) === node.graph);
}

/** The execution ids of a node: one, but for a node of a subgraph that is used several times. */
export function numbersOf(node, graph = app.rootGraph ?? app.graph, path = "") {
  return graph.nodes.flatMap((one) => [...(one === node ? [path + one.id] : []), ...(one.subgraph ? numbersOf(node, one.subgraph, `${path}${one.id}:`) : [])]);
}
