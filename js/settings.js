/** Settings node: the list of methods has display names, and the other inputs are hidden until the user opens them. */

import { findWidget, foldAdvanced, registerExtension, setLabels, shrinkNode } from "./comfy.js";
import { methodName } from "./texts.js";

registerExtension({
  name: "adttree.settings",

  nodeCreated(node) {
    if (node.comfyClass !== "ADTTreeSettings") return;
    setLabels(findWidget(node, "method"), methodName);
    foldAdvanced(node);
    shrinkNode(node); // ComfyUI has made the node large enough for all inputs
  },
});
