/**
 * Workflow templates: their order, their translation, and a command that opens the first one. The nodes of a template
 * contain titles and notes in all languages.
 */

import { language, newWorkflowId, onTemplates, openTemplate, registerExtension } from "./comfy.js";

/** Name of the first template. */
export const FIRST = "ADT-Tree text to image (start here)";
/** Names of all templates: what an artist does first, then the models, then measurements and research. */
export const ORDER = [
  FIRST,
  "ADT-Tree continue a picture",
  "ADT-Tree inpaint with MaskEditor",
  "ADT-Tree batch of prompts with report",
  "ADT-Tree text to image and upscale with a model",
  "ADT-Tree compared with no drafting",
  "ADT-Tree map and statistics of a run",
  "ADT-Tree relaxed acceptance (LANTERN)",
  "ADT-Tree Janus-Pro text to image",
  "ADT-Tree GLM-Image text to image",
  "ADT-Tree GLM-Image edit a picture",
  "ADT-Tree Lumina-mGPT 2.0 text to image",
  "ADT-Tree Lumina-mGPT text to image",
  "ADT-Tree Anole 7B text to image",
  "ADT-Tree Emu3 text to image",
  "ADT-Tree Liquid text to image",
  "ADT-Tree LlamaGen text to image",
  "ADT-Tree benchmark and diagnostics of this machine",
  "ADT-Tree MS-COCO batch with upscaling",
  "ADT-Tree run of the paper (Anole with LANTERN)",
  "ADT-Tree image of the original script (Janus-Pro)",
  "ADT-Tree train a drafter for a model",
];
const OPEN_FIRST = "ADTTree.OpenFirstTemplate";

const LANGUAGES = ["zh"]; // besides English

/** Replace the English texts of a workflow by texts in a language, if it has any. Then remove all translations. */
export function localise(workflow, locale) {
  for (const node of workflow.nodes ?? []) {
    const { title, note } = (LANGUAGES.includes(locale) && node[locale]) || {};
    // App mode shows the labels of inputs: a prompt's is the title of its node.
    for (const input of node.inputs ?? []) if (title && input.label === node.title) input.label = title;
    if (title) node.title = title;
    if (note) node.widgets_values = [note];
    for (const name of LANGUAGES) delete node[name];
  }
}

/**
 * Replace the ids of nodes in the form of App mode by ids of widgets, as ComfyUI itself saves them. When the user opens
 * another workflow, ComfyUI looks for the form's inputs in it, and warns in the console about each id of a node.
 */
export function nameWidgets(workflow) {
  const inputs = workflow.extra?.linearData?.inputs ?? [];
  if (!inputs.length) return;
  workflow.id ??= newWorkflowId();
  for (const input of inputs) {
    const [node, name] = input;
    if (!String(node).includes(":")) input[0] = [workflow.id, node, name].map(encodeURIComponent).join(":");
  }
}

/** Sort the templates of this pack. The lists of other packs stay as they are. @param {string[]} names */
export function sorted(names) {
  return names.includes(FIRST) ? names.toSorted((a, b) => ORDER.indexOf(a) - ORDER.indexOf(b)) : names;
}

onTemplates(sorted);

registerExtension({
  name: "adttree.templates",

  commands: [
    { id: OPEN_FIRST, label: "Open the first template", icon: "pi pi-images", function: () => openTemplate(FIRST) },
  ],
  menuCommands: [{ path: ["ADT-Tree"], commands: [OPEN_FIRST] }],

  beforeConfigureGraph(workflow) {
    localise(workflow, language());
    nameWidgets(workflow);
  },
});
