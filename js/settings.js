/** The Settings node shows methods by their everyday names. What is saved and sent is the method itself. */

import { app } from "../../scripts/app.js";
import { methodName } from "./words.js";

app.registerExtension({
  name: "adttree.settings",

  nodeCreated(node) {
    if (node.comfyClass !== "ADTTreeSettings") return;
    node.widgets.find(({ name }) => name === "method").options.getOptionLabel = methodName;
  },
});
