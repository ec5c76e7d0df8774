/** Translation of workflow templates. The nodes of a template contain titles and notes in all languages. */

import { language, registerExtension } from "./comfy.js";

const LANGUAGES = ["zh"]; // besides English

/** Replace the English texts of a workflow by texts in a language, if it has any. Then remove all translations. */
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
