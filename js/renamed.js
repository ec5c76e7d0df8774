/** Values of combo inputs that were renamed: old workflows show the new names. nodes/renamed.py lists them. */

import {
  callAfter,
  choicesOf,
  inputOptions,
  isOurs,
  nodesOf,
  registerExtension,
  subgraphOf,
  widgetsOf,
} from "./comfy.js";

/** The new name of an input's value, or the value itself if it was not renamed. */
export function current(node, name, value) {
  return inputOptions(node, name)?.renamed?.[value] ?? value;
}

function rename(node) {
  for (const widget of widgetsOf(node)) {
    const value = current(node, widget.name, widget.value);
    if (value !== widget.value) widget.value = value;
  }
}

/** Rename values in the node of a subgraph, which stores values of inner inputs. */
function renameShown(host) {
  const inner = nodesOf(subgraphOf(host)).flatMap((node) => widgetsOf(node).map(({ name }) => ({ node, name })));
  for (const widget of widgetsOf(host)) {
    const values = choicesOf(widget);
    if (!values || values.includes(widget.value)) continue;
    const names = inner.map(({ node, name }) => current(node, name, widget.value));
    const value = names.find((name) => values.includes(name));
    if (value !== undefined) widget.value = value;
  }
}

registerExtension({
  name: "adttree.renamed",

  nodeCreated(node) {
    if (isOurs(node)) callAfter(node, "onConfigure", () => rename(node));
  },

  loadedGraphNode(node) {
    if (subgraphOf(node)) renameShown(node);
  },
});
