/** Text box on a node that shows the text that the node returns, such as the report of ADT-Tree Check. */

import {
  addElement,
  callAfter,
  findWidget,
  fitNode,
  nodeAt,
  refreshWidgets,
  registerExtension,
  setHidden,
} from "./comfy.js";
import { make } from "./elements.js";

const NODES = new Set(["ADTTreeCheck", "ADTTreeBenchmark"]);
const WIDGET = "result_text";
const WIDTH = 600; // minimum width in pixels of a node that shows a text
const HEIGHT = 340; // minimum height in pixels of the text

function add(node) {
  const element = make("textarea", { className: "adt-result", readonly: "", spellcheck: "false", hidden: "" });
  const getMinHeight = () => (element.hidden ? 0 : HEIGHT);
  setHidden(addElement(node, WIDGET, "ADT_TREE_TEXT", element, { getMinHeight }), true);
}

/** Show the text of a node's output, if it has one. */
function show(node, output) {
  const widget = findWidget(node, WIDGET);
  const text = [output?.text ?? []].flat().join("\n");
  if (!widget || !text) return;
  widget.element.value = text;
  if (!widget.element.hidden) return;
  widget.element.hidden = false;
  setHidden(widget, false);
  refreshWidgets(node, widget);
  fitNode(node, [WIDTH, 0]);
}

registerExtension({
  name: "adttree.result_text",

  nodeCreated(node) {
    if (!NODES.has(node.comfyClass)) return;
    add(node);
    callAfter(node, "onExecuted", (output) => show(node, output));
  },

  /** Show the texts again after ComfyUI has restored the outputs of a workflow. */
  onNodeOutputsUpdated(outputs) {
    for (const [id, output] of Object.entries(outputs)) show(nodeAt(id), output);
  },
});
