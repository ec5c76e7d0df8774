/** Colours of this pack's sockets and links, for both ways in which ComfyUI draws nodes. */

import { app } from "../../scripts/app.js";

const COLOURS = {
  ADT_MODEL: "#b39ddb", // as MODEL, which it stands for
  ADT_DRAFTER: "#4db6ac",
  ADT_SETTINGS: "#90a4ae",
  ADT_LANTERN: "#ffb74d",
  ADT_TRACE: "#aed581",
  ADT_RESULTS: "#f48fb1",
};

app.registerExtension({
  name: "adttree.sockets",

  setup() {
    Object.assign(window.LGraphCanvas.link_type_colors, COLOURS);
    Object.assign(app.canvas.default_connection_color_byType, COLOURS);
    const style = document.createElement("style"); // Nodes 2.0 reads variables, and a change of theme removes those of the element
    style.textContent = `:root { ${Object.entries(COLOURS).map(([type, colour]) => `--color-datatype-${type}: ${colour};`).join(" ")} }`;
    document.head.append(style);
  },
});
