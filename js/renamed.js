/**
 * Values of combo inputs that have a new name: a workflow that was saved with the old ones shows the new ones. The server's
 * nodes/renamed.py lists them.
 */

import { app } from "../../scripts/app.js";

/** The value's new name if an input of the node has renamed it, else the value. */
export function current(node, name, value) {
  const { required, optional } = node?.constructor?.nodeData?.input ?? {};
  const [, options] = required?.[name] ?? optional?.[name] ?? [];
  return options?.renamed?.[value] ?? value;
}

function rename(node) {
  for (const widget of node.widgets ?? []) {
    const value = current(node, widget.name, widget.value);
    if (value !== widget.value) widget.value = value;
  }
}

/** A subgraph's node keeps the values of the inputs that it shows of the nodes inside. */
function renameShown(host) {
  const inside = (graph) => graph.nodes.flatMap((node) => [node, ...(node.subgraph ? inside(node.subgraph) : [])]);
  const inner = inside(host.subgraph).flatMap((node) => (node.widgets ?? []).map(({ name }) => [node, name]));
  for (const widget of host.widgets ?? []) {
    const { values } = widget.options ?? {};
    if (!Array.isArray(values) || values.includes(widget.value)) continue;
    const value = inner.map(([node, name]) => current(node, name, widget.value)).find((one) => values.includes(one));
    if (value !== undefined) widget.value = value;
  }
}

app.registerExtension({
  name: "adttree.renamed",

  nodeCreated(node) {
    if (!node.comfyClass?.startsWith("ADTTree")) return;
    const configured = node.onConfigure;
    node.onConfigure = function (...saved) {
      const result = configured?.apply(this, saved);
      rename(this);
      return result;
    };
  },

  loadedGraphNode(node) {
    if (node.subgraph) renameShown(node);
  },
});
