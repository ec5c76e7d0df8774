/**
 * Texts of this pack's `locales` folder in the user's language. ComfyUI translates the names of nodes and inputs; this
 * file adds the values of combo inputs and the messages of the server.
 */

import { fetchTranslations, isOurs, language, registerExtension, setLabels, widgetsOf } from "./comfy.js";
import { setTemplates } from "./messages.js";

let nodes = {}; // type of a node -> its texts in locales/.../nodeDefs.json

registerExtension({
  name: "adttree.translations",

  async setup() {
    const locale = language();
    if (!locale || locale === "en") return;
    const texts = (await fetchTranslations())[locale];
    nodes = texts?.nodeDefs ?? {};
    setTemplates(texts?.adtTree?.messages ?? {});
  },

  /** Only the shown text changes, so that workflows have the same values in all languages. */
  nodeCreated(node) {
    if (!isOurs(node)) return;
    for (const widget of widgetsOf(node)) {
      const labels = nodes[node.comfyClass]?.inputs?.[widget.name]?.options;
      if (labels) setLabels(widget, (value) => labels[value] ?? value ?? "");
    }
  },
});
