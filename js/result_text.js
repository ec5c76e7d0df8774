/** Box on a node that shows the text that the node returns, such as the report of ADT-Tree Diagnostics. */

import * as comfy from "./comfy.js";
import { make } from "./elements.js";
import { render } from "./markdown.js";
import { texts } from "./texts.js";

const NODES = new Set(["ADTTreeDiagnostics", "ADTTreeBenchmark"]);
const WIDGET = "result_text";
const WIDTH = 600; // width in pixels of a node that shows a text, if there is no other node
const HEIGHT = 340; // minimum height in pixels of the text
const STORAGE = "adt_tree.reports"; // key of the session storage: texts by workflow and node
const MOST = 16; // maximum number of stored texts

function add(node) {
  const element = make("div", { className: "adt-result", hidden: "", tabindex: 0, dataset: { captureWheel: "true" } });
  comfy.forwardWheelAndPan(element);
  const getMinHeight = () => (element.hidden ? 0 : HEIGHT);
  comfy.setHidden(
    comfy.addElement(node, WIDGET, "ADT_TREE_TEXT", element, { label: texts.result, getMinHeight }),
    true,
  );
}

/** Show a text on a node. */
function write(node, text) {
  const widget = comfy.findWidget(node, WIDGET);
  if (!widget) return;
  widget.element.replaceChildren(...render(text));
  comfy.removePreview(node); // the last image of the run would make the node higher on the canvas
  if (!widget.element.hidden) return;
  widget.element.hidden = false;
  comfy.setHidden(widget, false);
  comfy.refreshWidgets(node, widget);
  comfy.fitNode(node, [comfy.freeWidth(node, WIDTH), 0]);
}

/** Show and store the text of a node's output, if it has one. */
function show(node, output) {
  const text = [output?.text ?? []].flat().join("\n");
  if (!text || !NODES.has(node?.comfyClass)) return;
  write(node, text);
  const all = stored();
  const key = keyOf(node);
  delete all[key]; // so that it becomes the newest
  const kept = Object.fromEntries(Object.entries({ ...all, [key]: text }).slice(-MOST));
  try {
    sessionStorage.setItem(STORAGE, JSON.stringify(kept));
  } catch {
    sessionStorage.removeItem(STORAGE); // the storage is full
  }
}

function keyOf(node) {
  return `${comfy.openWorkflow()} ${comfy.executionIds(node)[0]}`;
}

function stored() {
  try {
    return JSON.parse(sessionStorage.getItem(STORAGE) ?? "{}");
  } catch {
    return {};
  }
}

comfy.registerExtension({
  name: "adttree.result_text",

  nodeCreated(node) {
    if (!NODES.has(node.comfyClass)) return;
    comfy.foldAdvanced(node);
    add(node);
    comfy.shrinkNode(node); // ComfyUI has made the node large enough for all inputs, but some are hidden
    comfy.callAfter(node, "onExecuted", (output) => show(node, output));
  },

  /** Show the texts again after ComfyUI has created the nodes again, for example after "undo" or a reload. */
  afterConfigureGraph() {
    const all = stored();
    for (const node of comfy.nodesOf()) {
      const text = NODES.has(node.comfyClass) && all[keyOf(node)];
      if (text) write(node, text);
    }
  },

  onNodeOutputsUpdated(outputs) {
    for (const [id, output] of Object.entries(outputs)) show(comfy.nodeAt(id), output);
  },
});
