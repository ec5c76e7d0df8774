/**
 * Interface to ComfyUI's page. All other files use `app`, `api`, LiteGraph and the page's own elements through this one.
 *
 * The page has two modes: the canvas, which draws nodes, and Nodes 2.0, which makes an element of each.
 */

import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";

/** @typedef {import("@comfyorg/comfyui-frontend-types").ComfyApp} ComfyApp */
/** @typedef {import("@comfyorg/comfyui-frontend-types").ComfyExtension} ComfyExtension */
/** @typedef {ComfyApp["rootGraph"]} Graph */
/** @typedef {Graph["nodes"][number] & Record<string, any>} GraphNode */
/** @typedef {NonNullable<GraphNode["widgets"]>[number] & Record<string, any>} Widget */

const OUR_NODES = "ADTTree"; // prefix of the types of this pack's nodes
const IMAGE_PREVIEW = "$$canvas-image-preview"; // name of ComfyUI's widget with a preview
const TEXT_PREVIEW = "$$node-text-preview"; // name of ComfyUI's widget with a line of progress

// ---- page ----------------------------------------------------------------------------------

/** @param {ComfyExtension} extension */
export function registerExtension(extension) {
  app.registerExtension(extension);
}

/**
 * Listen to messages of the server and events of the page.
 *
 * @param {Record<string, (detail: any) => void>} listeners by the name of the event
 */
export function listen(listeners) {
  for (const [event, listener] of Object.entries(listeners)) {
    /** @type {EventTarget} */ (api).addEventListener(event, (message) =>
      listener(/** @type {CustomEvent} */ (message).detail),
    );
  }
}

/** The value of a setting, or undefined. */
export function getSetting(id) {
  return app.extensionManager?.setting?.get(id);
}

export function setSetting(id, value) {
  app.extensionManager.setting.set(id, value);
}

/** The language of the page, such as "en" or "zh"; undefined while ComfyUI has no settings yet. */
export function language() {
  return /** @type {string | undefined} */ (getSetting("Comfy.Locale"));
}

/** The texts in the `locales` folders of all packs, by language. */
export async function fetchTranslations() {
  return (await api.fetchApi("/i18n")).json();
}

/** The address of an image of the server. @param {Record<string, string>} file parameters of `/view` */
export function imageAddress(file) {
  return api.apiURL(`/view?${new URLSearchParams(file)}`);
}

/** The entry of a prompt in ComfyUI's history, or null. */
export async function fetchHistory(prompt) {
  const answer = await api.fetchApi(`/history/${encodeURIComponent(prompt)}`);
  return answer.ok ? ((await answer.json())[prompt] ?? null) : null;
}

/**
 * Set the colours of sockets and links in both modes. A theme without a type would remove its colour, so that the
 * colours are read-only.
 *
 * @param {Record<string, string>} colours by type
 */
export function setTypeColours(colours) {
  const { LGraphCanvas } = /** @type {any} */ (window);
  for (const table of [LGraphCanvas.link_type_colors, app.canvas.default_connection_color_byType]) {
    for (const [type, colour] of Object.entries(colours)) {
      Object.defineProperty(table, type, { get: () => colour, set: () => {}, enumerable: true, configurable: true });
    }
  }
  const variables = Object.entries(colours).map(([type, colour]) => `--color-datatype-${type}: ${colour};`);
  const style = document.createElement("style"); // a change of the theme removes variables that the root element has
  style.textContent = `:root { ${variables.join(" ")} }`;
  document.head.append(style);
}

// ---- canvas --------------------------------------------------------------------------------

/** Whether the canvas is zoomed out so far that ComfyUI draws neither texts nor elements. */
export function isZoomedOut() {
  return Boolean(app.canvas?.low_quality);
}

/** Context of the canvas, in the coordinates of the node that is being drawn. */
export function canvasContext() {
  return app.canvas.ctx;
}

/**
 * Pass zooming by wheel and panning with the middle button from an element to the canvas. In Nodes 2.0 such events reach
 * the canvas without help, but a press on a control must not drag the node.
 *
 * @param {HTMLElement} element
 */
export function forwardWheelAndPan(element) {
  const isNodes2 = () => Boolean(element.closest("[data-node-id]"));
  const canvas = () => /** @type {any} */ (app.canvas);
  element.addEventListener("wheel", (event) => isNodes2() || scrolls(event) || canvas().processMouseWheel(event));
  const handlers = {
    pointerdown: "processMouseDown",
    pointermove: "processMouseMove",
    pointerup: "processMouseUp",
  };
  for (const [type, handler] of Object.entries(handlers)) {
    element.addEventListener(type, (/** @type {any} */ event) => {
      const isMiddle = type === "pointermove" ? event.buttons & 4 : event.button === 1;
      if (!isNodes2() && isMiddle) canvas()[handler](event);
      if (isNodes2() && !isMiddle && type === "pointerdown") event.stopPropagation();
    });
  }
}

/** Whether a wheel event is over a part of an element that can be scrolled. */
function scrolls({ target }) {
  const box = target.closest("[data-capture-wheel]");
  return box !== null && box.scrollHeight > box.clientHeight;
}

/** Draw a node again. */
export function redrawNode(node) {
  node.setDirtyCanvas?.(true, true);
}

/** Select nodes and move the view to them. */
export function showNodes(nodes) {
  app.canvas.deselectAll();
  app.canvas.selectItems(nodes);
  const fit = () => app.extensionManager.command.execute("Comfy.Canvas.FitView");
  requestAnimationFrame(() => requestAnimationFrame(fit)); // nodes have their places only after they were drawn
}

// ---- workflow ------------------------------------------------------------------------------

/** The graph of the open workflow, which newer pages call rootGraph. @returns {Graph} */
function rootGraph() {
  return app.rootGraph ?? app.graph;
}

/** Id of the open workflow. */
export function openWorkflow() {
  return rootGraph()?.id;
}

/** The graph in a subgraph's node, or undefined for other nodes. @returns {Graph | undefined} */
export function subgraphOf(node) {
  return node.subgraph;
}

/** All nodes of a graph and of its subgraphs. @param {Graph} graph @returns {GraphNode[]} */
export function nodesOf(graph = rootGraph()) {
  return graph.nodes.flatMap((node) => {
    const subgraph = subgraphOf(node);
    return [node, ...(subgraph ? nodesOf(subgraph) : [])];
  });
}

/** The node with an execution id such as "12:5", which is node 5 in the subgraph of node 12; null if there is none. */
export function nodeAt(id) {
  const path = String(id).split(":");
  const last = path.pop();
  /** @type {any} */
  let graph = rootGraph();
  for (const part of path) graph = graph?.getNodeById(part)?.subgraph;
  return graph?.getNodeById(last) ?? null;
}

/** The execution ids of a node: one, or several if its subgraph is used several times. @returns {string[]} */
export function executionIds(node, graph = rootGraph(), path = "") {
  return graph.nodes.flatMap((one) => {
    const subgraph = subgraphOf(one);
    const inside = subgraph ? executionIds(node, subgraph, `${path}${one.id}:`) : [];
    return one === node ? [path + one.id, ...inside] : inside;
  });
}

/** Whether a node is in the open workflow or one of its subgraphs. */
export function isOpen(node) {
  const root = rootGraph();
  const { graph } = node;
  return graph?.getNodeById(node.id) === node && (graph === root || root.subgraphs?.get(graph.id) === graph);
}

/** Let ComfyUI look for changes of the workflow, which it otherwise does before a click has changed a setting. */
export function noticeChanges() {
  app.canvas.emitBeforeChange();
  app.canvas.emitAfterChange();
}

/**
 * The saved nodes with which ComfyUI compares the workflow to find changes of the user, subgraphs included. Empty while
 * a workflow is being opened, when ComfyUI still has another one.
 */
export function comparedNodes() {
  const { workflow } = /** @type {any} */ (app.extensionManager ?? {});
  const state = workflow?.activeWorkflow?.changeTracker?.activeState;
  if (!state || (state.id && state.id !== openWorkflow())) return [];
  return [state, ...(state.definitions?.subgraphs ?? [])].flatMap((graph) => graph.nodes ?? []);
}

/** Add a node of a type to the graph of another node, at an offset in pixels. */
export function addNode(type, beside, [dx, dy]) {
  const node = /** @type {any} */ (window).LiteGraph.createNode(type);
  node.pos = [beside.pos[0] + dx, beside.pos[1] + dy];
  beside.graph.add(node);
  return node;
}

// ---- nodes ---------------------------------------------------------------------------------

/** Whether a node belongs to this pack. */
export function isOurs(node) {
  return Boolean(node?.comfyClass?.startsWith(OUR_NODES));
}

/** Call a function after a method of an object, which may not exist yet, with the same arguments. */
export function callAfter(object, name, after) {
  const before = object[name];
  object[name] = function (...args) {
    const result = before?.apply(this, args);
    after(...args);
    return result;
  };
}

/** Hide ComfyUI's live preview, which a node draws in its background, while a condition holds. */
export function hideLivePreview(node, isHidden) {
  const { onDrawBackground } = node;
  node.onDrawBackground = function (...args) {
    if (!isHidden()) onDrawBackground?.apply(this, args);
  };
}

/** Remove the preview that ComfyUI has added to a node. */
export function removePreview(node) {
  removeWidget(node, findWidget(node, IMAGE_PREVIEW));
  node.imgs = undefined;
  node.preview = undefined;
}

/** Make a node at least so large, and large enough for its widgets. */
export function fitNode(node, [width, height] = [0, 0]) {
  const [w, h] = node.computeSize();
  node.setSize([Math.max(node.size[0], w, width), Math.max(node.size[1], h, height)]);
}

/** Make a node at least as high as its widgets need. */
export function fitHeight(node) {
  node.setSize([node.size[0], Math.max(node.size[1], node.computeSize()[1])]);
}

/** Make a node only as high as its widgets need. */
export function shrinkNode(node) {
  node.setSize([node.size[0], node.computeSize()[1]]);
}

/** Set the height of a node in pixels. */
export function setHeight(node, height) {
  node.setSize([node.size[0], height]);
}

/** The type of a node in the server's definitions: the options of an input, such as its limits. */
export function inputOptions(node, name) {
  return optionsIn(node?.constructor?.nodeData, name);
}

/** The options of an input in the server's definition of a node. */
export function optionsIn(definition, name) {
  const { required, optional } = definition?.input ?? {};
  return (required?.[name] ?? optional?.[name])?.[1];
}

/** Whether a node runs as it is: it belongs to no subgraph's edge, is no reroute, and is neither muted nor bypassed. */
export function runsItself(node) {
  return !(node.subgraph || node.isVirtualNode || node.mode);
}

// ---- widgets -------------------------------------------------------------------------------

/** The widget of this name, or undefined. @returns {Widget | undefined} */
export function findWidget(node, name) {
  return node?.widgets?.find((widget) => widget.name === name);
}

/** @returns {Widget[]} */
export function widgetsOf(node) {
  return node?.widgets ?? [];
}

export function removeWidget(node, widget) {
  if (widget) node.removeWidget(widget);
}

/** Hide or show a widget. An element's widget appears in Nodes 2.0 only after `refreshWidgets`. */
export function setHidden(widget, isHidden) {
  widget.hidden = isHidden; // for the canvas
  widget.options.hidden = isHidden; // for Nodes 2.0
}

/** Let Nodes 2.0 read a node's list of widgets again, which it does only after a change of the list. */
export function refreshWidgets(node, widget) {
  const place = node.widgets.indexOf(widget);
  node.widgets.splice(place, 1);
  node.widgets.splice(place, 0, widget);
  redrawNode(node);
}

/** Whether the user can see and change the value of a widget. */
export function isEditable(widget) {
  return !widget.hidden && !widget.disabled && widget.options?.hidden !== true;
}

/** Set the value of a widget as the user would. */
export function setValue(node, widget, value) {
  widget.value = value;
  widget.callback?.(value, app.canvas, node);
  redrawNode(node);
}

/** Let Nodes 2.0 read the label of a widget's value again, which it does only if the value changes. */
export function refreshLabel(node, widget) {
  const { value } = widget;
  widget.value = "";
  widget.value = value;
  redrawNode(node);
}

/** Set the function that returns the label of a combo widget's value. */
export function setLabels(widget, label) {
  widget.options.getOptionLabel = label;
}

/** The values that a combo widget offers, or null if it is no combo widget. */
export function choicesOf(widget) {
  const values = widget.options?.values;
  return Array.isArray(values) ? values : null;
}

/**
 * Send a widget's value only while it counts, and else its default, so that a change of it does not invalidate ComfyUI's
 * cache.
 */
export function sendWhile(widget, counts) {
  const usual = widget.value;
  widget.serializeValue = () => (counts() ? widget.value : usual);
}

/** Names of the values that a node saves, in the order of `widgets_values`. */
export function savedNames(node) {
  return widgetsOf(node)
    .filter((widget) => widget.serialize !== false)
    .map(({ name }) => name);
}

/** Hide the advanced inputs of a node until the user asks for them, without a gap in their place. */
export function foldAdvanced(node) {
  for (const widget of node.widgets) widget.advanced = widget.options?.advanced; // the canvas reads this one
  const { getLayoutWidgets } = node;
  node.getLayoutWidgets = () => {
    const widgets = [...(getLayoutWidgets?.call(node) ?? node.widgets)];
    return widgets.filter((widget) => !widget.advanced || node.showAdvanced);
  };
}

/**
 * Add a widget that shows an element and has no value.
 *
 * @param {GraphNode} node
 * @param {string} name
 * @param {string} type
 * @param {HTMLElement} element
 * @param {object} options heights and others of `addDOMWidget`
 * @returns {Widget}
 */
export function addElement(node, name, type, element, options) {
  const all = {
    serialize: false,
    hideOnZoom: true,
    hideInPanel: true,
    getValue: () => "",
    setValue: () => {},
    ...options,
  };
  // `hideInPanel`: a panel that lists a node's widgets would take the element out of the node.
  const widget = /** @type {any} */ (node.addDOMWidget(name, type, element, all));
  widget.serialize = false; // the option keeps it out of the prompt, this one out of the workflow
  return widget;
}

/** Call a function when ComfyUI draws a box instead of a widget's element, because the canvas is zoomed out. */
export function onPlaceholder(widget, draw) {
  widget.options.onDraw = draw;
}

/** The box of an element's widget in its node, in pixels of the canvas. */
export function boxOf(node, widget) {
  const { margin } = widget;
  return {
    x: margin,
    y: widget.y + margin,
    width: node.size[0] - 2 * margin,
    height: (widget.computedHeight ?? 0) - 2 * margin,
  };
}

/** ComfyUI's own widget with a line of progress, or undefined. */
export function textPreview(node) {
  return findWidget(node, TEXT_PREVIEW);
}

/** The text boxes of a node in Nodes 2.0. @returns {NodeListOf<HTMLElement>} */
export function textBoxes(node) {
  return document.querySelectorAll(`.lg-node[data-node-id="${node.id}"] textarea`);
}

// ---- links ---------------------------------------------------------------------------------

// ComfyUI has deprecated `link` of an input, so links are read through the node.

/** The slot of an input; -1 if there is none of this name. */
export function slotOf(node, name) {
  return node.inputs?.findIndex((input) => input.name === name) ?? -1;
}

/** Whether an input is linked. */
export function isLinked(node, name) {
  const slot = slotOf(node, name);
  return slot >= 0 && node.isInputConnected(slot);
}

/** The nodes that are linked to these inputs of a node, or to all of them; null for a link from outside a subgraph. */
export function sourcesOf(node, names = null) {
  const slots = [...(node.inputs ?? []).keys()].filter((slot) => !names || names.includes(node.inputs[slot].name));
  return slots.filter((slot) => node.isInputConnected(slot)).map((slot) => node.getInputNode(slot));
}

/** The node that is linked to an input in the same graph, or undefined. */
export function originOf(node, name) {
  return isLinked(node, name) ? node.graph.getNodeById(node.getInputLink(slotOf(node, name))?.origin_id) : undefined;
}

/** Link an input of a node to the output to which an input of another node is linked, if it is. */
export function copyLink(from, name, node, own = name) {
  const slot = slotOf(node, own);
  if (slot >= 0) originOf(from, name)?.connect(from.getInputLink(slotOf(from, name)).origin_slot, node, slot);
}

/** Link an output of a node to an input of another one. */
export function connect(from, output, node, name) {
  from.connect(output, node, slotOf(node, name));
}
