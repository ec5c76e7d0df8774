/**
 * The Settings node: one list of methods by their everyday names, and all else on request. What is saved and sent is the
 * method itself.
 */

import { app } from "../../scripts/app.js";
import { foldAdvanced } from "./advanced.js";
import { methodName } from "./words.js";

app.registerExtension({
  name: "adttree.settings",

  nodeCreated(node) {
    if (node.comfyClass !== "ADTTreeSettings") return;
    node.widgets.find(({ name }) => name === "method").options.getOptionLabel = methodName;
    foldAdvanced(node);
  },
});
