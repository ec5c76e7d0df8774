/** Workflow templates in the user's language: their nodes have titles and notes in all languages. */

import { language, registerExtension } from "./comfy.js";

const LANGUAGES = ["zh"]; // besides English

/** Use the texts of a language if a workflow has them, and remove the texts of all languages. */
export function localise(workflow, locale) {
  for (const node of workflow.nodes ?? []) {
    const { title, note } = (LANGUAGES.includes(locale) && node[locale]) || {};
    if (title) node.title = title;
    if (note) node.widgets_values = [note];
    for (const name of LANGUAGES) delete node[name];
  }
}

registerExtension({
  name: "adttree.templates",

  beforeConfigureGraph(workflow) {
    localise(workflow, language());
  },
});
