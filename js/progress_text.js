/**
 * The line of text under a node that runs: the server, which writes it, does not know the user's language; and newer pages take it away
 * with the end of the run, also where it says what became of a prompt or of a file.
 */

import { app } from "../../scripts/app.js";
import { lineOf, nodeAt, openWorkflow } from "./node_map.js";
import { isNote, line } from "./words.js";

const EVENT = "progress_text";
const ENDS = ["execution_success", "execution_error", "execution_interrupted"];
const MOMENTS = [0, 300, 1500]; // milliseconds after an end, by which the page has taken the lines away

const last = new Map(); // id of a node -> the last line under it, of the run that goes on
let began; // the workflow that was open when that began

/** Show again what is to be read after a run and is gone. */
function repeat() {
  if (openWorkflow() !== began) return;
  for (const [nodeId, text] of last) {
    const node = nodeAt(nodeId);
    const gone = node?.comfyClass?.startsWith("ADTTree") && isNote(text) && !lineOf(node);
    if (gone) app.api.dispatchEvent(new CustomEvent(EVENT, { detail: { nodeId, text } }));
  }
}

app.registerExtension({
  name: "adttree.progress_text",

  setup() {
    app.api.addEventListener("execution_start", () => {
      last.clear();
      began = openWorkflow();
    });
    app.api.addEventListener(EVENT, ({ detail: { nodeId, text } }) => {
      last.set(nodeId, text);
      const said = line(text);
      const widget = said !== text && lineOf(nodeAt(nodeId));
      if (widget) widget.value = said;
    });
    for (const end of ENDS) app.api.addEventListener(end, () => MOMENTS.forEach((moment) => setTimeout(repeat, moment)));
  },
});
