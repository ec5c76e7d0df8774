/** The line of text under a node that runs: the server, which writes it, does not know the user's language. */

import { app } from "../../scripts/app.js";
import { nodeAt } from "./node_map.js";
import { line } from "./words.js";

const WIDGET = "$$node-text-preview"; // ComfyUI's, which has the text already when we hear of it

app.registerExtension({
  name: "adttree.progress_text",

  setup() {
    app.api.addEventListener("progress_text", ({ detail: { nodeId, text } }) => {
      const said = line(text);
      const widget = said !== text && nodeAt(nodeId)?.widgets?.find(({ name }) => name === WIDGET);
      if (widget) widget.value = said;
    });
  },
});
