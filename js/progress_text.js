/**
 * The line of text that the server writes under a node that runs, in the user's language. ComfyUI's own line is cut off on the canvas,
 * grows over the node below in Nodes 2.0, and depending on its version stays after the next run or goes with the end of its own. So ours
 * takes its place: above the map of a node that has one, else at the node's bottom, of a fixed height. It goes when the node runs again.
 */

import { app } from "../../scripts/app.js";
import { make } from "./elements.js";
import { maps, nodeAt, openWorkflow } from "./node_map.js";
import { forwardWheelAndPan } from "./pointer.js";
import { isNote, line } from "./words.js";

const EVENT = "progress_text";
const ENDS = ["execution_success", "execution_error", "execution_interrupted"];
const THEIRS = "$$node-text-preview"; // ComfyUI's widget, which has the text already when we hear of it
const OURS = "adt_tree_line";
const [HEIGHT, MARGIN] = [32, 6]; // of two lines, in pixels

const last = new Map(); // id of a node -> the last line under it
let began; // the workflow that was open when the last run began

const widgetOf = (node, name) => node.widgets?.find((one) => one.name === name);

/** Show a line under a node; "" removes it. */
function write(node, text) {
  if (!node) return;
  const theirs = widgetOf(node, THEIRS);
  if (theirs) node.removeWidget(theirs);
  if (!node.comfyClass?.startsWith("ADTTree")) return;
  const map = maps.get(node);
  map?.tell(text);
  if (text && !(map && !map.widget.hidden)) (widgetOf(node, OURS) ?? addLine(node)).element.textContent = text;
  else removeLine(node);
}

/** Nodes 2.0 would divide the free height of a node between its text boxes and the line, so the boxes only give the line its own height. */
function holdBoxes(node) {
  const boxes = boxesOf(node);
  for (const box of boxes) box.style.minHeight = `${box.offsetHeight - (HEIGHT + MARGIN) / boxes.length}px`;
}

const boxesOf = (node) => document.querySelectorAll(`.lg-node[data-node-id="${node.id}"] textarea`);

function addLine(node) {
  holdBoxes(node);
  const element = make("div", { className: "adt-line adt-line-below", role: "status", dataset: { captureWheel: "true" } });
  forwardWheelAndPan(element, app);
  const height = () => HEIGHT + 2 * MARGIN;
  const options = { serialize: false, hideOnZoom: true, hideInPanel: true, margin: MARGIN, getMinHeight: height, getMaxHeight: height };
  const widget = node.addDOMWidget(OURS, "ADT_TREE_LINE", element, { ...options, getValue: () => element.textContent, setValue: () => {} });
  widget.serialize = false;
  const before = node.size[1];
  node.setSize([node.size[0], Math.max(before, node.computeSize()[1])]);
  widget.grown = { before, after: node.size[1] };
  return widget;
}

/** The node gets the height back that it had, unless that was changed meanwhile. */
function removeLine(node) {
  const widget = widgetOf(node, OURS);
  if (!widget) return;
  node.removeWidget(widget);
  for (const box of boxesOf(node)) box.style.minHeight = "";
  if (node.size[1] === widget.grown.after) node.setSize([node.size[0], widget.grown.before]);
  node.setDirtyCanvas?.(true, true);
}

/** Forget lines and remove them. @param {(id: string, text: string) => boolean} goes which ones */
function clear(goes) {
  for (const [id, text] of [...last].filter((entry) => goes(...entry))) {
    last.delete(id);
    write(nodeAt(id), "");
  }
}

/** Show again what belongs to the open workflow, for nodes that were made anew, as by "undo". */
function repeat() {
  if (openWorkflow() === began) for (const [id, text] of last) write(nodeAt(id), line(text));
}

app.registerExtension({
  name: "adttree.progress_text",

  setup() {
    const listeners = {
      execution_start: () => {
        if (openWorkflow() !== began) last.clear();
        began = openWorkflow();
      },
      execution_cached: ({ detail: { nodes } }) => clear((id) => !nodes.includes(id)), // what is not made again keeps its line
      [EVENT]: ({ detail: { nodeId, text } }) => {
        const node = nodeAt(nodeId);
        last.set(String(nodeId), text);
        if (node?.comfyClass?.startsWith("ADTTree")) write(node, line(text));
        else if (node && widgetOf(node, THEIRS)) widgetOf(node, THEIRS).value = line(text);
      },
    };
    for (const end of ENDS) listeners[end] = () => clear((_, text) => !isNote(text));
    for (const [event, listener] of Object.entries(listeners)) app.api.addEventListener(event, listener);
  },

  afterConfigureGraph: repeat,
});
