/** Inputs of a node by name. An input's own `link` is deprecated, so connections are read through the node. */

/** The slot of an input; -1 if there is none of this name. */
export function slotOf(node, name) {
  return node.inputs?.findIndex((one) => one.name === name) ?? -1;
}

/** Whether something is linked to an input. */
export function isLinked(node, name) {
  const slot = slotOf(node, name);
  return slot >= 0 && node.isInputConnected(slot);
}

/** The nodes that are linked to a node's inputs, or to those of these names. A link from the edge of a subgraph has null. */
export function sourcesOf(node, names = null) {
  const slots = [...(node.inputs ?? []).keys()].filter((slot) => !names || names.includes(node.inputs[slot].name));
  return slots.filter((slot) => node.isInputConnected(slot)).map((slot) => node.getInputNode(slot));
}
