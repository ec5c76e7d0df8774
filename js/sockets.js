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

/** Give a table of colours ours for good: a theme that does not know a type empties its colour. */
function fix(table) {
  for (const [type, colour] of Object.entries(COLOURS)) {
    Object.defineProperty(table, type, { get: () => colour, set: () => {}, enumerable: true, configurable: true });
  }
}

app.registerExtension({
  name: "adttree.sockets",

  setup() {
    fix(window.LGraphCanvas.link_type_colors);
    fix(app.canvas.default_connection_color_byType);
    const style = document.createElement("style"); // Nodes 2.0 reads variables, and a change of theme removes those of the element
    style.textContent = `:root { ${Object.entries(COLOURS).map(([type, colour]) => `--color-datatype-${type}: ${colour};`).join(" ")} }`;
    document.head.append(style);
  },
});
