/**
 * Line of text of the server under a running node, in the user's language, and the error of a node that has failed.
 *
 * This line replaces ComfyUI's own line of progress. ComfyUI's line is cut off on the canvas, covers the node below in
 * Nodes 2.0, and is removed at different times in different versions. This pack's line is above the map if the node has
 * one, and otherwise at the bottom of the node (line.js). It is removed when the node runs again.
 */

import * as comfy from "./comfy.js";
import { make } from "./elements.js";
import { Line } from "./line.js";
import { translate } from "./messages.js";
import { maps } from "./node_map.js";
import { workflowOf } from "./runs.js";
import { texts } from "./texts.js";

const WIDGET = "adt_tree_line";
const HEIGHT = 32; // minimum height in pixels, for two lines
const MARGIN = 6; // pixels
const MOST_ERRORS = 100; // that are kept

/**
 * Level of a line. An error is shown until the next prompt.
 *
 * @typedef {"info" | "warning" | "error"} Level
 */

/**
 * Line of text under a node. `text` is the English text, `parts` are the parts to translate. If `is_lasting` is true,
 * the line is also shown after the run. `sentences` are the sentences of an error.
 *
 * @typedef {{text: string, parts: import("./messages.js").Part[], level: Level, is_lasting: boolean,
 *   sentences?: string[]}} Shown
 */

/** @type {Map<string, Shown>} */
const announced = new Map(); // execution id -> line of this pack, which the server sends before ComfyUI's message
/** @type {Map<string, Shown>} */
const lines = new Map(); // execution id -> last line under the node
/** @type {Map<string, import("./messages.js").Part[]>} */
const errors = new Map(); // English text of an error -> its parts, which the server sends before or after the error
let workflow; // id of the workflow of the last run

/** The folder with results that a line names, or "". @param {Shown} line */
function folderOf({ parts }) {
  return String(parts.find(({ parameters }) => parameters?.folder)?.parameters.folder ?? "");
}

/** Show a line under a node; "" removes it. `folder` is the folder that the line names. */
function write(node, text, level = "info", folder = "") {
  if (!node) return;
  comfy.dropWidget(node, comfy.textPreview(node));
  if (!comfy.isOurs(node)) return;
  const map = maps.get(node);
  map?.showMessage(text, level);
  const isAboveMap = map && !map.widget.hidden;
  if (text && !isAboveMap) (comfy.findWidget(node, WIDGET) ?? addLine(node)).line.show(text, level, folder);
  else removeLine(node);
}

function addLine(node) {
  holdTextBoxes(node);
  const line = new Line(() => fitLine(node, widget));
  const element = make("div", { className: "adt-line-below", dataset: { captureWheel: "true" } }, line.element);
  comfy.forwardWheelAndPan(element);
  const height = () => Math.max(line.element.offsetHeight, HEIGHT) + 2 * MARGIN;
  const heights = { getMinHeight: height, getMaxHeight: height };
  const options = { label: texts.line, margin: MARGIN, ...heights, getValue: () => line.text };
  const widget = /** @type {any} */ (comfy.addElement(node, WIDGET, "ADT_TREE_LINE", element, options));
  widget.line = line;
  widget.heights = { before: node.size[1], after: node.size[1] };
  fitLine(node, widget);
  return widget;
}

/** Make the node as high as the line needs, unless the user has changed its height. */
function fitLine(node, widget) {
  const { heights } = widget;
  if (node.size[1] === heights.after) comfy.setHeight(node, heights.before);
  comfy.fitHeight(node);
  heights.after = node.size[1];
  comfy.redrawNode(node);
}

/** Keep the height of a node's text boxes. Otherwise Nodes 2.0 would give half of their height to the line. */
function holdTextBoxes(node) {
  const boxes = comfy.textBoxes(node);
  for (const box of boxes) box.style.minHeight = `${box.offsetHeight - (HEIGHT + MARGIN) / boxes.length}px`;
}

/** Remove the line, and restore the node's height unless the user has changed it. */
function removeLine(node) {
  const widget = comfy.findWidget(node, WIDGET);
  if (!widget) return;
  widget.line.observer.disconnect();
  comfy.dropWidget(node, widget);
  for (const box of comfy.textBoxes(node)) box.style.minHeight = "";
  if (node.size[1] === widget.heights.after) comfy.setHeight(node, widget.heights.before);
  comfy.redrawNode(node);
}

/** The announced line with this text. If there is none, for example for other packs, a plain line. @returns {Shown} */
function lineOf(id, text) {
  const line = announced.get(id);
  return line?.text === text ? line : { text, parts: [{ text }], level: "info", is_lasting: true };
}

function receive({ nodeId, text }) {
  const id = String(nodeId);
  const line = lineOf(id, text);
  lines.set(id, line);
  const node = nodeOf(id);
  if (comfy.isOurs(node)) write(node, translate(line.parts), line.level, folderOf(line));
  else if (comfy.textPreview(node)) comfy.textPreview(node).value = translate(line.parts);
}

/** Remove lines. @param {(id: string, line: Shown) => boolean} isRemoved */
function clear(isRemoved) {
  for (const [id, line] of [...lines]) {
    if (!isRemoved(id, line)) continue;
    lines.delete(id);
    write(nodeOf(id), "");
  }
}

function clearProgress() {
  clear((_, line) => !line.is_lasting && !folderOf(line)); // the user still needs to find the results
}

/** Forget the lines of another workflow. @param {{prompt_id?: string}} message about a prompt, {} for the open workflow */
function open({ prompt_id }) {
  const own = workflowOf(prompt_id) ?? comfy.openWorkflow();
  if (own !== workflow) lines.clear();
  workflow = own;
}

/** The node of a line, or null while another workflow is open, whose nodes may have the same ids. */
function nodeOf(id) {
  workflow ??= comfy.openWorkflow(); // the page was reloaded during the run, so it has not received its start
  return comfy.openWorkflow() === workflow ? comfy.nodeAt(id) : null;
}

/**
 * Show an error under one of this pack's nodes. ComfyUI's own message says only that the node has failed.
 *
 * @param {string} id @param {string[]} sentences
 */
function showError(id, sentences) {
  const node = nodeOf(id);
  if (!comfy.isOurs(node)) return;
  const text = sentences.join(" ");
  const parts = sentences.flatMap((one, number) => [
    { text: number ? " " : "" },
    ...(errors.get(one) ?? [{ text: one }]),
  ]);
  lines.set(id, { text, parts, level: "error", is_lasting: true, sentences });
  write(node, translate(parts), "error");
}

/** Store the parts of an error, and translate the error if it is shown already. */
function receiveError({ text, parts }) {
  errors.set(text, parts);
  if (errors.size > MOST_ERRORS) errors.delete(errors.keys().next().value);
  for (const [id, { sentences }] of [...lines]) if (sentences?.includes(text)) showError(id, sentences);
}

/** Show the error that has ended the run, unless the node has announced a line for it. */
function fail({ node_id, exception_message }) {
  clearProgress();
  const id = String(node_id);
  if (lines.get(id)?.level !== "error") showError(id, [exception_message.trim()]);
}

function clearErrors() {
  clear((_, line) => line.level === "error");
}

/** Show why the server has rejected a prompt. */
function reject(rejected) {
  const ids = Object.keys(rejected);
  if (ids.length) open({});
  for (const id of ids) showError(id, sentencesOf(rejected[id]));
}

/**
 * The sentences of a node's errors. If the node itself has checked its inputs, ComfyUI repeats its sentence for each
 * of these inputs, after the name of the input.
 *
 * @param {import("./comfy.js").NodeErrors} error
 */
function sentencesOf({ errors }) {
  const sentences = errors.map(({ type, message, details }) =>
    type === "custom_validation_failed" ? details.replace(/^\S+ - /, "") : `${message}: ${details}`,
  );
  return [...new Set(sentences)];
}

/** Show the lines again after ComfyUI has created the nodes again, for example after "undo". */
function restore() {
  if (comfy.openWorkflow() !== workflow) return;
  for (const [id, line] of lines) write(comfy.nodeAt(id), translate(line.parts), line.level, folderOf(line));
}

// Listen before ComfyUI connects to the server, because ComfyUI reports messages without listeners as errors.
comfy.listen({
  "adt_tree.line": ({ node, ...line }) => announced.set(String(node), line),
  "adt_tree.error": receiveError,
});

comfy.registerExtension({
  name: "adttree.progress_text",

  setup() {
    comfy.listen({
      execution_start: open,
      execution_cached: ({ nodes }) => clear((id) => !nodes.includes(id)), // nodes that do not run keep their line
      progress_text: receive, // ComfyUI has added its own line with the English text already
      execution_success: clearProgress,
      execution_error: fail,
      execution_interrupted: clearProgress,
    });
    comfy.onPrompt(clearErrors, reject);
  },

  afterConfigureGraph: restore,
});
