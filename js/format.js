/**
 * Format number of this pack's nodes in workflows. A node that was saved with another number is refused: it is muted,
 * a message says why, and saving the workflow writes its values as they were read.
 */

import { callAfter, isOurs, registerExtension, showError } from "./comfy.js";
import { texts } from "./texts.js";

const FORMAT = 1; // WORKFLOW_FORMAT of adt_core/version.py
const PROPERTY = "adt_tree_format"; // property of the node with the number
const NEVER = 2; // mode of a muted node

function refuse(node, saved) {
  const { properties, widgets_values, mode } = structuredClone(saved);
  node.mode = NEVER;
  callAfter(node, "onSerialize", (data) => Object.assign(data, { properties, widgets_values, mode }));
  showError(texts.unknownFormat(properties[PROPERTY], FORMAT));
}

registerExtension({
  name: "adttree.format",

  nodeCreated(node) {
    if (!isOurs(node)) return;
    node.properties[PROPERTY] = FORMAT;
    callAfter(node, "onConfigure", (saved) => {
      if ((saved?.properties?.[PROPERTY] ?? FORMAT) !== FORMAT) refuse(node, saved);
    });
  },
});
