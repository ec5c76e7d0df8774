/** Settings node: a list of methods by their displayed names, with the other inputs folded. */

import { findWidget, foldAdvanced, registerExtension, setLabels } from "./comfy.js";
import { methodName } from "./texts.js";

registerExtension({
  name: "adttree.settings",

  nodeCreated(node) {
    if (node.comfyClass !== "ADTTreeSettings") return;
    setLabels(findWidget(node, "method"), methodName);
    foldAdvanced(node);
  },
});
