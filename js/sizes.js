/** Natural sizes of the pack's nodes. */

import { callAfter, findWidget, fitNode, isOurs, registerExtension, shrinkNode } from "./comfy.js";

const WIDTH = 250; // minimum width in pixels; the titles of narrower nodes would be cut in canvas mode

registerExtension({
  name: "adttree.sizes",

  nodeCreated(node) {
    if (!isOurs(node)) return;
    fitNode(node, [WIDTH, 0]);
    if (node.comfyClass !== "ADTTreeBatchSampler") return;
    // The saved height includes the images of the last run. Without them, an empty negative prompt would fill it.
    callAfter(node, "onConfigure", () => findWidget(node, "negative")?.value === "" && shrinkNode(node));
  },
});
