/**
 * Translation with the texts of this pack's `locales` folder. ComfyUI itself translates the names of nodes and inputs.
 * This file translates the values of combo inputs and the messages of the server.
 */

import { fetchTranslations, isOurs, language, registerExtension, setLabels, widgetsOf } from "./comfy.js";
import { setTemplates } from "./messages.js";
import { own } from "./own.js";

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

  /** Translate the displayed labels, not the values. Workflows then have the same values in all languages. */
  nodeCreated(node) {
    if (!isOurs(node)) return;
    for (const widget of widgetsOf(node)) {
      const labels = own(own(nodes, node.comfyClass)?.inputs, widget.name)?.options;
      if (labels) setLabels(widget, (value) => own(labels, value) ?? value ?? "");
    }
  },
});
