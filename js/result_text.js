/** The text that a node ends with, such as the page of a check, on the node itself. */

import { app } from "../../scripts/app.js";
import { make } from "./elements.js";
import { nodeAt } from "./node_map.js";

const NODES = new Set(["ADTTreeCheck", "ADTTreeBenchmark"]);
const WIDGET = "result_text";
const [WIDTH, HEIGHT] = [600, 340]; // of a node that has a text; its user may change both

const widgetOf = (node) => node?.widgets?.find(({ name }) => name === WIDGET);

function add(node) {
  const element = make("textarea", { className: "adt-result", readonly: "", spellcheck: "false", hidden: "" });
  const getMinHeight = () => (element.hidden ? 0 : HEIGHT);
  const options = { serialize: false, hideOnZoom: true, hideInPanel: true, getMinHeight, getValue: () => "", setValue: () => {} };
  const widget = node.addDOMWidget(WIDGET, "ADT_TREE_TEXT", element, options);
  widget.serialize = false; // the option keeps it out of the prompt, this out of the workflow
  setHidden(widget, true);
}

function setHidden(widget, on) {
  widget.element.hidden = on;
  widget.hidden = on; // the canvas reads this
  widget.options.hidden = on; // Nodes 2.0 reads this, once the list of widgets changes
}

/** Show the text of a node's output, if it has one. */
function show(node, output) {
  const widget = widgetOf(node);
  const text = [output?.text ?? []].flat().join("\n");
  if (!widget || !text) return;
  widget.element.value = text;
  if (!widget.element.hidden) return;
  setHidden(widget, false);
  const place = node.widgets.indexOf(widget);
  node.widgets.splice(place, 1); // in two steps: a list in which nothing changes is not read again
  node.widgets.splice(place, 0, widget);
  const [width, height] = node.computeSize();
  node.setSize([Math.max(node.size[0], width, WIDTH), Math.max(node.size[1], height)]);
  node.setDirtyCanvas?.(true, true);
}

app.registerExtension({
  name: "adttree.result_text",

  nodeCreated(node) {
    if (!NODES.has(node.comfyClass)) return;
    add(node);
    const before = node.onExecuted;
    node.onExecuted = function (output) {
      before?.call(this, output);
      show(this, output);
    };
  },

  /** Texts come back with a tab of the page that was open before. */
  onNodeOutputsUpdated(outputs) {
    for (const [id, output] of Object.entries(outputs)) show(nodeAt(id), output);
  },
});
