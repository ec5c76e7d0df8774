/** Templates in the user's language: their nodes carry what they say in others, such as `zh`. */

import { app } from "../../scripts/app.js";

const LANGUAGES = ["zh"];

/** Take the language's texts where there are some, and drop the others: a workflow keeps the language it is opened in. */
export function translate(workflow, language) {
  for (const part of workflow.nodes ?? []) {
    const { title, note } = (LANGUAGES.includes(language) && part[language]) || {};
    if (title) part.title = title;
    if (note) part.widgets_values = [note];
    for (const other of LANGUAGES) delete part[other];
  }
}

app.registerExtension({
  name: "adttree.templates",

  beforeConfigureGraph(workflow) {
    translate(workflow, app.extensionManager?.setting?.get("Comfy.Locale"));
  },
});
