/** Replaces renamed values of combo inputs in old workflows by their new names. nodes/renamed.py lists the names. */

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
import { own } from "./own.js";

/** The new name of an input's value, or the value itself if it was not renamed. */
export function current(node, name, value) {
  return own(inputOptions(node, name)?.renamed, value) ?? value;
}

function rename(node) {
  for (const widget of widgetsOf(node)) {
    const value = current(node, widget.name, widget.value);
    if (value !== widget.value) widget.value = value;
  }
}

/** Rename values in a node that is a subgraph. Such a node stores values of its inner nodes' inputs. */
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
