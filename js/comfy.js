/**
 * Interface to ComfyUI's page. Only this file uses `app`, `api`, LiteGraph and the page's own elements. All other files
 * call the functions of this file.
 *
 * The page has two modes. In the classic mode, it draws all nodes on a canvas. In the mode "Nodes 2.0", each node is an
 * HTML element.
 */

import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { own } from "./own.js";

/** @typedef {import("@comfyorg/comfyui-frontend-types").ComfyApp} ComfyApp */
/** @typedef {import("@comfyorg/comfyui-frontend-types").ComfyExtension} ComfyExtension */
/** @typedef {ComfyApp["rootGraph"]} Graph */
/** @typedef {Graph["nodes"][number] & Record<string, any>} GraphNode */
/** @typedef {NonNullable<GraphNode["widgets"]>[number] & Record<string, any>} Widget */

/**
 * The errors for which the server has rejected the inputs of a node.
 *
 * @typedef {{errors: {type: string, message: string, details: string}[]}} NodeErrors
 */

const OUR_NODES = "ADTTree"; // prefix of the types of this pack's nodes
const IMAGE_PREVIEW = "$$canvas-image-preview"; // name of the widget in which ComfyUI shows a preview
const TITLE = 30; // pixels, height of the title of a node
const GAP = 12; // pixels between two nodes
const TEXT_PREVIEW = "$$node-text-preview"; // name of the widget in which ComfyUI shows a line of progress

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

/**
 * Listen to prompts that the page sends, and to the errors of prompts that the server rejects. The page has no event
 * for such errors.
 *
 * @param {() => void} sent called before a prompt is sent
 * @param {(errors: Record<string, NodeErrors>) => void} answered called with the errors by execution id; {} for none
 */
export function onPrompt(sent, answered) {
  const { queuePrompt } = api;
  api.queuePrompt = async (...args) => {
    sent();
    const answer = queuePrompt.apply(api, args);
    answer.then(
      ({ node_errors }) => answered(node_errors ?? {}),
      (error) => answered(error?.response?.node_errors ?? {}),
    );
    return answer;
  };
}

/**
 * Let a function handle the files that the user opens or drops before ComfyUI does. The page has no event for this.
 *
 * @param {(file: File) => Promise<boolean>} open returns whether it has opened the file
 */
export function onFile(open) {
  const page = /** @type {any} */ (app);
  const { handleFile } = page;
  page.handleFile = async (file, ...rest) => (await open(file)) || handleFile.call(app, file, ...rest);
}

/** The value of a setting, or undefined. */
export function getSetting(id) {
  return app.extensionManager?.setting?.get(id);
}

/** Show an error of the pack in a corner of the page. */
export function showError(detail) {
  app.extensionManager.toast.add({ severity: "error", summary: "ADT-Tree", detail });
}

/** The language of the page, such as "en" or "zh"; undefined while ComfyUI has no settings yet. */
export function language() {
  return /** @type {string | undefined} */ (getSetting("Comfy.Locale"));
}

/** The texts in the `locales` folders of all packs, by language. */
export async function fetchTranslations() {
  return (await api.fetchApi("/i18n")).json();
}

/**
 * Let a function change the list of templates of each pack before ComfyUI shows it. The server lists them in the order
 * of its file system.
 *
 * @param {(names: string[]) => string[]} sort
 */
export function onTemplates(sort) {
  const { getWorkflowTemplates } = api;
  api.getWorkflowTemplates = async () => {
    const packs = Object.entries(await getWorkflowTemplates.call(api));
    return Object.fromEntries(packs.map(([pack, names]) => [pack, sort(names)]));
  };
}

/** Open a workflow template of a pack, which the server finds by the template's name, under a title. */
export async function openTemplate(name, title = name) {
  const packs = await (await api.fetchApi("/workflow_templates")).json();
  const [pack] = Object.keys(packs).filter((pack) => packs[pack].includes(name));
  const path = [pack, `${name}.json`].map(encodeURIComponent).join("/");
  const workflow = await (await api.fetchApi(`/workflow_templates/${path}`)).json();
  await app.loadGraphData(workflow, true, true, title);
  showAll();
}

/** The address of an image of the server. @param {Record<string, string>} file parameters of `/view` */
export function imageAddress(file) {
  return api.apiURL(`/view?${new URLSearchParams(file)}`);
}

/** Store a file in the server's input folder. Returns its name there, which differs if another file has the name. */
export async function storeInput(file) {
  const body = new FormData();
  body.append("image", file); // the name of the field, for files of all types
  const answer = await api.fetchApi("/upload/image", { method: "POST", body });
  if (!answer.ok) throw new Error(`${file.name}: ${answer.status} ${answer.statusText}`);
  return (await answer.json()).name;
}

/** The entry of a prompt in ComfyUI's history, or null. */
export async function fetchHistory(prompt) {
  const answer = await api.fetchApi(`/history/${encodeURIComponent(prompt)}`);
  return answer.ok ? ((await answer.json())[prompt] ?? null) : null;
}

/**
 * Set the colours of sockets and links in both modes. The colours are read-only, because a change of ComfyUI's theme
 * would remove the colours of types that the theme does not know.
 *
 * @param {Record<string, string>} colours CSS colours by type of socket
 */
export function setTypeColours(colours) {
  const { LGraphCanvas } = /** @type {any} */ (window);
  for (const table of [LGraphCanvas.link_type_colors, app.canvas.default_connection_color_byType]) {
    for (const [type, colour] of Object.entries(colours)) {
      Object.defineProperty(table, type, { get: () => colour, set: () => {}, enumerable: true, configurable: true });
    }
  }
  const variables = Object.entries(colours).map(([type, colour]) => `--color-datatype-${type}: ${colour};`);
  // A style element, because a change of the theme removes variables from the root element.
  const style = document.createElement("style");
  style.textContent = `:root { ${variables.join(" ")} }`;
  document.head.append(style);
}

// ---- canvas --------------------------------------------------------------------------------

/** Whether the canvas is zoomed out so far that ComfyUI draws neither texts nor elements. */
export function isZoomedOut() {
  return Boolean(app.canvas?.low_quality);
}

/** Call a function when the user zooms out so far that texts are illegible, and when the user zooms in again. */
export function onZoomedOut(/** @type {(isOut: boolean) => void} */ changed) {
  let before = false;
  callAfter(app.canvas, "onDrawForeground", () => {
    if (isZoomedOut() === before) return;
    before = !before;
    changed(before);
  });
}

/** Drawing context of the canvas. Its origin is the node that is being drawn. */
export function canvasContext() {
  return app.canvas.ctx;
}

/**
 * Let the user zoom the canvas with the wheel and move it with the middle button, while the pointer is over an element.
 *
 * In the classic mode, this function passes the events of the element to the canvas. In Nodes 2.0, the canvas gets
 * these events anyway. There, the function only stops presses of other buttons, so that a press on a control does not
 * drag the node.
 *
 * @param {HTMLElement} element
 */
export function forwardWheelAndPan(element) {
  const isNodes2 = () => Boolean(element.closest("[data-node-id]"));
  const canvas = () => /** @type {any} */ (app.canvas);
  element.addEventListener("wheel", (event) => isNodes2() || scrolls(event) || canvas().processMouseWheel(event));
  const handlers = { pointerdown: "processMouseDown", pointermove: "processMouseMove", pointerup: "processMouseUp" };
  for (const [type, handler] of Object.entries(handlers)) {
    element.addEventListener(type, (/** @type {any} */ event) => {
      const isMiddle = type === "pointermove" ? event.buttons & 4 : event.button === 1;
      if (!isNodes2() && isMiddle) canvas()[handler](event);
      if (isNodes2() && !isMiddle && type === "pointerdown") event.stopPropagation();
    });
  }
}

/** Whether the wheel scrolls the part of the element under the pointer: its content is higher than its box. */
function scrolls({ target }) {
  const box = target.closest("[data-capture-wheel]");
  return box !== null && box.scrollHeight > box.clientHeight;
}

/** Draw a node again. */
export function redrawNode(node) {
  node.setDirtyCanvas?.(true, true);
}

/**
 * Select nodes and move the view to an area of the canvas.
 *
 * @param {number[]} area left, top, width and height
 */
export function showNodes(nodes, area) {
  app.canvas.deselectAll();
  app.canvas.selectItems(nodes);
  app.canvas.animateToBounds(/** @type {[number, number, number, number]} */ (area));
}

/** Move the view to all nodes. */
function showAll() {
  app.canvas.deselectAll();
  const fit = () => app.extensionManager.command.execute("Comfy.Canvas.FitView");
  requestAnimationFrame(() => requestAnimationFrame(fit)); // new nodes have a position only after they are drawn
}

// ---- workflow ------------------------------------------------------------------------------

/** The graph of the open workflow. Older versions of ComfyUI have no `rootGraph`. @returns {Graph} */
function rootGraph() {
  return app.rootGraph ?? app.graph;
}

/** A new id for a workflow. */
export function newWorkflowId() {
  return /** @type {string} */ (/** @type {any} */ (window).LiteGraph.uuidv4());
}

/** Id of the open workflow. */
export function openWorkflow() {
  return rootGraph()?.id;
}

/** The inner graph of a node that is a subgraph, or undefined for other nodes. @returns {Graph | undefined} */
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

/**
 * The execution ids and modes of a node. A node in a subgraph that is used several times has several. A muted or bypassed
 * subgraph passes its mode on to the nodes in it.
 *
 * @returns {{id: string, mode: number}[]}
 */
function placesOf(node, graph = rootGraph(), path = "", outer = 0) {
  return graph.nodes.flatMap((one) => {
    const own = { id: path + one.id, mode: outer || one.mode };
    const subgraph = subgraphOf(one);
    const inside = subgraph ? placesOf(node, subgraph, `${own.id}:`, own.mode) : [];
    return one === node ? [own, ...inside] : inside;
  });
}

/** The execution ids of a node. */
export function executionIds(node) {
  return placesOf(node).map(({ id }) => id);
}

/** Whether a node is in the open workflow or one of its subgraphs. */
export function isOpen(node) {
  const root = rootGraph();
  const { graph } = node;
  return graph?.getNodeById(node.id) === node && (graph === root || root.subgraphs?.get(graph.id) === graph);
}

/**
 * Let ComfyUI check whether the workflow has changed, so that "undo" can revert the change. Call this function after a
 * click has changed a setting. ComfyUI's own check runs before the handler of the click, so it misses the change.
 */
export function noticeChanges() {
  app.canvas.emitBeforeChange();
  app.canvas.emitAfterChange();
}

/**
 * The nodes in ComfyUI's stored state of the workflow, including the nodes in subgraphs. ComfyUI compares the workflow
 * with this state to find changes by the user. While a workflow is being opened, the stored state belongs to another
 * workflow. Then the list is empty.
 */
export function comparedNodes() {
  const { workflow } = /** @type {any} */ (app.extensionManager ?? {});
  const state = workflow?.activeWorkflow?.changeTracker?.activeState;
  if (!state || (state.id && state.id !== openWorkflow())) return [];
  return [state, ...(state.definitions?.subgraphs ?? [])].flatMap((graph) => graph.nodes ?? []);
}

/** Add a node to the graph of the node `beside`. */
export function addNode(type, beside, pos) {
  const node = /** @type {any} */ (window).LiteGraph.createNode(type);
  node.pos = pos;
  beside.graph.add(node);
  return node;
}

/**
 * Add a node to the left of another one, below everything there, and link its output to an input of the other node.
 *
 * @param {[GraphNode, number, string]} [from] node, its output, and the input of the new node to which it is linked
 */
export function addBefore(node, type, name, from) {
  const boxes = node.graph.nodes.map(boxOfNode);
  const added = addNode(type, node, [Math.min(...boxes.map(([x]) => x)), 0]);
  added.pos[1] = Math.max(...boxes.map(([, y, , height]) => y + height)) + 2 * TITLE;
  linkNodes(added, 0, node, name);
  if (from) linkNodes(from[0], from[1], added, from[2]);
  return added;
}

/**
 * Left, top, width and height of a node with its title. Nodes 2.0 may draw it larger than its stored size.
 *
 * @returns {number[]}
 */
function boxOfNode(node) {
  const element = /** @type {HTMLElement | null} */ (document.querySelector(`.lg-node[data-node-id="${node.id}"]`));
  node.updateArea(); // ComfyUI updates the box only when it draws the node
  const [x, y, width, height] = node.getBounding();
  return [x, y, Math.max(width, element?.offsetWidth ?? 0), Math.max(height, element?.offsetHeight ?? 0)];
}

/**
 * A position below a node, at which no other node is within the given size in pixels.
 *
 * @param {GraphNode} node
 * @param {number[]} size width and height
 * @param {number} gap
 */
export function freePlace(node, size, gap) {
  const [left, y, , h] = boxOfNode(node);
  const isBeside = (/** @type {number[]} */ [x, , w]) => x < left + size[0] && left < x + w;
  const others = node.graph.nodes.map(boxOfNode).filter(isBeside);
  let top = y + h + gap;
  for (const [, otherTop, , height] of others.sort((a, b) => a[1] - b[1]))
    if (otherTop < top + size[1] && top < otherTop + height + gap) top = otherTop + height + gap;
  const title = /** @type {any} */ (window).LiteGraph.NODE_TITLE_HEIGHT;
  return [left, top + title];
}

/** Run the parts of the workflow that these nodes need. */
export function runNodes(nodes) {
  app.queuePrompt(0, 1, nodes.flatMap(executionIds));
}

// ---- nodes ---------------------------------------------------------------------------------

/** Whether a node belongs to this pack. */
export function isOurs(node) {
  return Boolean(node?.comfyClass?.startsWith(OUR_NODES));
}

/** Replace a method of an object by one that calls the old method, if any, and then `after` with the same arguments. */
export function callAfter(object, name, after) {
  const before = object[name];
  object[name] = function (...args) {
    const result = before?.apply(this, args);
    after(...args);
    return result;
  };
}

/** Hide ComfyUI's live preview, which a node draws in its background, while `isHidden()` is true. */
export function hideLivePreview(node, isHidden) {
  const { onDrawBackground } = node;
  node.onDrawBackground = function (...args) {
    if (!isHidden()) onDrawBackground?.apply(this, args);
  };
}

/** Remove the preview that ComfyUI has added to a node. */
export function removePreview(node) {
  dropWidget(node, findWidget(node, IMAGE_PREVIEW));
  node.imgs = undefined;
  node.preview = undefined;
}

/** Enlarge a node so that it has at least the given size in pixels, and all its widgets fit. Never make it smaller. */
export function fitNode(node, [width, height] = [0, 0]) {
  const [w, h] = node.computeSize();
  node.setSize([Math.max(node.size[0], w, width), Math.max(node.size[1], h, height)]);
}

/** The largest width up to `wanted` with which a node does not reach another node on its right. */
export function freeWidth(node, wanted) {
  const [left, top, width, height] = boxOfNode(node);
  const beside = node.graph.nodes.map(boxOfNode).filter(([x, y, , h]) => x > left && y < top + height && top < y + h);
  const free = Math.min(...beside.map(([x]) => x - left - GAP));
  return Math.max(width, Math.min(wanted, free));
}

/** Make a node higher if its widgets need more height. */
export function fitHeight(node) {
  node.setSize([node.size[0], Math.max(node.size[1], node.computeSize()[1])]);
}

/** Make a node exactly as high as its widgets need. */
export function shrinkNode(node) {
  node.setSize([node.size[0], node.computeSize()[1]]);
}

/** Set the height of a node in pixels. */
export function setHeight(node, height) {
  node.setSize([node.size[0], height]);
}

/** The options of a node's input in the server's definition, such as its limits, or undefined. */
export function inputOptions(node, name) {
  return optionsIn(node?.constructor?.nodeData, name);
}

/** The options of an input in `definition`, which is the server's definition of a node type, or undefined. */
export function optionsIn(definition, name) {
  const { required, optional } = definition?.input ?? {};
  return (own(required, name) ?? own(optional, name))?.[1];
}

/** Whether the server runs this node. It does not run subgraphs, reroutes, and nodes that are muted or bypassed. */
export function runsItself(node) {
  return !(node.subgraph || node.isVirtualNode || node.mode);
}

/** The mode of a node: 0 if it runs (in one of its places, see `placesOf`), 2 if it is muted, 4 if it is bypassed. */
export function modeOf(node) {
  if (node.graph === rootGraph()) return node.mode;
  const modes = placesOf(node).map(({ mode }) => mode);
  return modes.find((mode) => !mode) ?? modes[0] ?? node.mode;
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

export function dropWidget(node, widget) {
  if (widget) node.removeWidget(widget);
}

/** Hide or show a widget. To show a widget with an element in Nodes 2.0, also call `refreshWidgets`. */
export function setHidden(widget, isHidden) {
  widget.hidden = isHidden; // for the canvas
  widget.options.hidden = isHidden; // for Nodes 2.0
}

/** Let Nodes 2.0 read a node's list of widgets again, by removing a widget and adding it at the same index. */
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

/** Dim a widget, also its text box, so that the user cannot change it. */
export function setDisabled(node, widget, isDisabled) {
  widget.disabled = isDisabled;
  const { element } = widget;
  if (element) Object.assign(element, { readOnly: isDisabled }).style.opacity = isDisabled ? "0.4" : "";
  redrawNode(node);
}

/** Set the value of a widget, and call its callback as if the user had set the value. */
export function setValue(node, widget, value) {
  widget.value = value;
  widget.callback?.(value, app.canvas, node);
  redrawNode(node);
}

/** Let Nodes 2.0 read the label of a widget's value again, by changing the value and then restoring it. */
export function refreshLabel(node, widget) {
  const { value } = widget;
  widget.value = "";
  widget.value = value;
  redrawNode(node);
}

/** Set the function that returns the displayed label of each value of a combo widget. */
export function setLabels(widget, label) {
  widget.options.getOptionLabel = label;
}

/** Show a name in a widget's empty text box on the canvas, where ComfyUI shows the id of the input. */
export function setPlaceholder(/** @type {Widget} */ widget, text) {
  const { element } = widget;
  if (element?.placeholder === widget.name) element.placeholder = text;
}

/** The values of a combo widget, or null for other widgets. */
export function choicesOf(widget) {
  const values = widget.options?.values;
  return Array.isArray(values) ? values : null;
}

/**
 * Send the value of a widget to the server only if `counts()` is true, that is, if the value has an effect. Otherwise
 * send the default value, so that ComfyUI does not run the node again after a change without effect.
 */
export function sendWhile(widget, counts) {
  const usual = widget.value;
  widget.serializeValue = () => (counts() ? widget.value : usual);
}

const COUNTER = "measurement"; // name of the widget of `countRun`

/** Let ComfyUI run a node again although its inputs are the same. The server ignores the additional input. */
export function countRun(node) {
  const options = { hidden: true, canvasOnly: true };
  const widget = findWidget(node, COUNTER) ?? node.addWidget("number", COUNTER, 0, () => {}, options);
  widget.hidden = true;
  widget.serialize = false; // not in the workflow
  widget.value = Date.now();
}

/** Add a button below the inputs of a node. Neither workflows nor prompts contain it. */
export function addButton(node, label, press) {
  const button = node.addWidget("button", label, null, press, { serialize: false });
  button.serialize = false; // `options` leaves it out of the prompt, and this property out of the workflow
}

/** Hide the advanced inputs of a node until the user opens them. Hidden inputs leave no gap on the node. */
export function foldAdvanced(node) {
  for (const widget of widgetsOf(node)) widget.advanced = /** @type {any} */ (widget.options)?.advanced; // the canvas reads this property
  const { getLayoutWidgets } = node;
  node.getLayoutWidgets = () => {
    const widgets = [...(getLayoutWidgets?.call(node) ?? widgetsOf(node))];
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
 * @param {{label: string, [name: string]: any}} options name to show, and options of ComfyUI's `addDOMWidget`, such as
 *   minimum heights
 * @returns {Widget}
 */
export function addElement(node, name, type, element, { label, ...options }) {
  // `hideInPanel`: a panel that lists a node's widgets would take the element out of the node.
  const always = { serialize: false, hideOnZoom: true, hideInPanel: true, getValue: () => "", setValue: () => {} };
  const widget = /** @type {any} */ (node.addDOMWidget(name, type, element, { ...always, ...options }));
  widget.label = label; // App mode and lists of a subgraph's inputs show it
  widget.serialize = false; // the option `serialize` excludes it from the prompt, this property from the workflow
  return widget;
}

/** Set a function to call when the canvas is zoomed out and ComfyUI draws a box instead of the widget's element. */
export function onPlaceholder(widget, draw) {
  widget.options.onDraw = draw;
}

/** Position and size of a widget's element, relative to its node, in pixels of the unzoomed canvas. */
export function boxOf(node, widget) {
  const { margin } = widget;
  const [width, height] = [node.size[0], widget.computedHeight ?? 0].map((length) => length - 2 * margin);
  return { x: margin, y: widget.y + margin, width, height };
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

/** The index of an input among the inputs of its node; -1 if there is no input of this name. */
export function slotOf(node, name) {
  return node.inputs?.findIndex((input) => input.name === name) ?? -1;
}

/** Whether an input is linked. */
export function isLinked(node, name) {
  const slot = slotOf(node, name);
  return slot >= 0 && node.isInputConnected(slot);
}

/** The nodes that hold a subgraph. @returns {GraphNode[]} */
function hostsOf(graph) {
  return nodesOf().filter((node) => subgraphOf(node) === graph);
}

/** The link at an input. ComfyUI's method for subgraphs also reads the output of this index, which may not exist. */
function linkAt(node, slot) {
  return subgraphOf(node) ? node.graph.getLink(node.inputs[slot]?.link) : node.getInputLink(slot);
}

/** The node at the start of a link, and the index of its output. Subgraphs are entered and left. */
function startsOf(/** @type {any} */ graph, link) {
  if (!link) return [];
  const host = graph.getNodeById(link.origin_id);
  if (!host) return hostsOf(graph).flatMap((one) => startsOf(one.graph, linkAt(one, link.origin_slot)));
  const inner = /** @type {any} */ (subgraphOf(host));
  if (!inner) return [host];
  const ids = inner.outputs[link.origin_slot]?.linkIds ?? [];
  return ids.flatMap((id) => startsOf(inner, inner.getLink(id)));
}

/**
 * All nodes upstream of inputs of a node that the server runs, also outside and inside of subgraphs.
 *
 * @param {GraphNode} node
 * @param {(name: string) => boolean} follows whether to follow the links of an input, by its name
 * @returns {Set<GraphNode>}
 */
export function upstreamOf(node, follows, found = new Set(), passed = new Set()) {
  if (!node.graph) return found; // the node has been removed, and its map is drawn a last time
  const slots = [...(node.inputs ?? []).keys()].filter((slot) => follows(node.inputs[slot].name));
  for (const source of slots.flatMap((slot) => startsOf(node.graph, linkAt(node, slot)))) {
    if (passed.has(source)) continue;
    passed.add(source);
    if (runsItself(source)) found.add(source);
    upstreamOf(source, (name) => name !== "clip", found, passed);
  }
  return found;
}

/** The node of the same graph that is linked to an input, or undefined. */
export function originOf(node, name) {
  return isLinked(node, name) ? node.graph.getNodeById(node.getInputLink(slotOf(node, name))?.origin_id) : undefined;
}

/** The nodes to which an output of a node, given by its index, is linked. @returns {GraphNode[]} */
export function targetsOf(node, output) {
  return node.getOutputNodes(output) ?? [];
}

/** If the input `name` of the node `from` is linked, link the input `own` of another node to the same output. */
export function copyLink(from, name, node, own = name) {
  const origin = originOf(from, name);
  if (origin && slotOf(node, own) >= 0) linkNodes(origin, from.getInputLink(slotOf(from, name)).origin_slot, node, own);
}

/** Link an output of the node `from`, given by its index, to the input `name` of another node. */
export function linkNodes(from, output, node, name) {
  from.connect(output, node, slotOf(node, name));
}
