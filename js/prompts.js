/**
 * ADT-Tree Prompts takes a file from the user's computer, dropped on the node or uploaded with its button. Its text is
 * dimmed while a file is chosen, because the node then ignores it.
 */

import * as comfy from "./comfy.js";
import { make } from "./elements.js";
import { own } from "./own.js";
import { texts } from "./texts.js";

const NODE = "ADTTreePrompts";
const TYPED = "(the text below)"; // as in nodes/prompts.py
const EXAMPLES = "(example captions)"; // as in nodes/prompts.py
const ENDINGS = [".txt", ".json", ".jsonl", ".csv", ".tsv"]; // as in adt_core/app/prompts.py

const isList = ({ name }) => ENDINGS.some((ending) => name.toLowerCase().endsWith(ending));

function update(node) {
  comfy.setDisabled(node, comfy.findWidget(node, "text"), comfy.findWidget(node, "file").value !== TYPED);
}

/** Store a file on the server and choose it. @param {any} node @param {File} file */
async function take(node, file) {
  try {
    const name = await comfy.storeInput(file);
    const widget = comfy.findWidget(node, "file");
    const choices = comfy.choicesOf(widget);
    if (!choices.includes(name)) choices.push(name);
    comfy.setValue(node, widget, name);
  } catch (error) {
    comfy.showError(String(error));
  }
}

function choose(node) {
  const input = make("input", { type: "file", accept: ENDINGS.join() });
  input.onchange = () => take(node, input.files[0]);
  input.click();
}

comfy.registerExtension({
  name: "adttree.prompts",

  /** @param {any} node */
  nodeCreated(node) {
    if (node.comfyClass !== NODE) return;
    const file = comfy.findWidget(node, "file");
    comfy.setLabels(file, (value) => own({ [TYPED]: texts.typed, [EXAMPLES]: texts.examples }, value) ?? value ?? "");
    comfy.addButton(node, texts.chooseFile, () => choose(node));
    comfy.callAfter(file, "callback", () => update(node));
    comfy.callAfter(node, "onConfigure", () => update(node));
    node.onDragOver = ({ dataTransfer }) => [...(dataTransfer?.items ?? [])].some(({ kind }) => kind === "file");
    node.onDragDrop = ({ dataTransfer }) => {
      const dropped = [...(dataTransfer?.files ?? [])].find(isList);
      if (dropped) take(node, dropped);
      return Boolean(dropped);
    };
    update(node);
  },
});
