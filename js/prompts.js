/** The text of ADT-Tree Prompts is dimmed while a file is chosen, because the node then ignores it. */

import { callAfter, findWidget, registerExtension, setDisabled, setLabels } from "./comfy.js";
import { texts } from "./texts.js";

const TYPED = "(the text below)"; // as in nodes/prompts.py

function update(node) {
  setDisabled(node, findWidget(node, "text"), findWidget(node, "file").value !== TYPED);
}

registerExtension({
  name: "adttree.prompts",

  nodeCreated(node) {
    if (node.comfyClass !== "ADTTreePrompts") return;
    const file = findWidget(node, "file");
    setLabels(file, (value) => (value === TYPED ? texts.typed : (value ?? "")));
    callAfter(file, "callback", () => update(node));
    callAfter(node, "onConfigure", () => update(node));
    update(node);
  },
});
