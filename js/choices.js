/** The choices of our nodes in the user's language. ComfyUI translates what nodes and inputs are called, but not these. */

import { app } from "../../scripts/app.js";

let translated = {}; // comfyClass -> the texts of locales/.../nodeDefs.json

app.registerExtension({
  name: "adttree.choices",

  async setup() {
    const language = app.extensionManager?.setting?.get("Comfy.Locale");
    if (!language || language === "en") return;
    const texts = await app.api.fetchApi("/i18n").then((answer) => answer.json());
    translated = texts[language]?.nodeDefs ?? {};
  },

  /** What is shown of a value; the value itself stays as it is, and so do workflows. */
  nodeCreated(node) {
    if (!node.comfyClass?.startsWith("ADTTree")) return;
    for (const widget of node.widgets ?? []) {
      const labels = translated[node.comfyClass]?.inputs?.[widget.name]?.options;
      if (labels) widget.options.getOptionLabel = (value) => labels[value] ?? value ?? "";
    }
  },
});
