/**
 * The Settings node: one list of methods by their everyday names, and all else on request. What is saved and sent is the
 * method itself.
 */

import { app } from "../../scripts/app.js";
import { methodName } from "./words.js";

app.registerExtension({
  name: "adttree.settings",

  nodeCreated(node) {
    if (node.comfyClass !== "ADTTreeSettings") return;
    for (const widget of node.widgets) {
      if (widget.name === "method") widget.options.getOptionLabel = methodName;
      widget.advanced = widget.options.advanced; // Nodes 2.0 reads it of the options, the canvas of the widget
    }
    node.getLayoutWidgets = () => node.widgets.filter((one) => !one.advanced || node.showAdvanced); // no empty room for them
  },
});
