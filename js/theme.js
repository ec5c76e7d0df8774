/** Theme of this pack's nodes: colours of sockets and links, natural sizes, and the inputs of the Settings node. */

import * as comfy from "./comfy.js";
import { methodName } from "./texts.js";

const COLOURS = {
  ADT_MODEL: "#b39ddb", // the colour of MODEL
  ADT_DRAFTER: "#4db6ac",
  ADT_SETTINGS: "#90a4ae",
  ADT_LANTERN: "#ffb74d",
  ADT_TRACE: "#aed581",
  ADT_RESULTS: "#f48fb1",
};
const WIDTH = 250; // minimum width in pixels; the titles of narrower nodes would be cut in canvas mode

comfy.registerExtension({
  name: "adttree.theme",

  setup: () => comfy.setTypeColours(COLOURS),

  nodeCreated(node) {
    if (!comfy.isOurs(node)) return;
    if (node.comfyClass === "ADTTreeSettings") {
      comfy.setLabels(comfy.findWidget(node, "method"), methodName);
      comfy.foldAdvanced(node);
      comfy.shrinkNode(node); // ComfyUI has made the node large enough for all inputs
    }
    comfy.fitNode(node, [WIDTH, 0]);
    if (node.comfyClass !== "ADTTreeBatchSampler") return;
    // The saved height includes the images of the last run. Without them, an empty negative prompt would fill it.
    const isEmpty = () => comfy.findWidget(node, "negative")?.value === "";
    comfy.callAfter(node, "onConfigure", () => isEmpty() && comfy.shrinkNode(node));
  },
});
