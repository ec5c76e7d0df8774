/**
 * Translation with the texts of this pack's `locales` folder. ComfyUI itself translates the names of nodes and inputs.
 * This file translates the values of combo inputs and the messages of the server.
 */

import * as comfy from "./comfy.js";
import { setTemplates } from "./messages.js";
import { own } from "./own.js";

const CONTROL = "control_after_generate"; // name of the widget that ComfyUI adds below a seed
let controls; // its labels in locales/.../main.json
let nodes = {}; // type of a node -> its texts in locales/.../nodeDefs.json

comfy.registerExtension({
  name: "adttree.translations",

  async setup() {
    const locale = comfy.language();
    if (!locale || locale === "en") return;
    const texts = (await comfy.fetchTranslations())[locale];
    nodes = texts?.nodeDefs ?? {};
    const names = Object.values(nodes).flatMap(({ inputs }) => Object.entries(inputs ?? {}));
    const { messages = {}, sentences = {} } = texts?.adtTree ?? {};
    controls = texts?.adtTree?.seeds;
    setTemplates(messages, sentences, Object.fromEntries(names.map(([id, { name }]) => [id, name])));
  },

  /** Translate the displayed labels, not the values. Workflows then have the same values in all languages. */
  nodeCreated(node) {
    if (!comfy.isOurs(node)) return;
    for (const widget of comfy.widgetsOf(node)) {
      const input = own(own(nodes, node.comfyClass)?.inputs, widget.name);
      const labels = widget.name === CONTROL ? controls : input?.options;
      if (input) comfy.setPlaceholder(widget, input.name);
      if (labels) comfy.setLabels(widget, (value) => own(labels, value) ?? value ?? "");
    }
  },
});
