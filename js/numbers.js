/**
 * The numbers that a preset overrides: gray unless the preset is "custom", and a change of them makes nothing run again meanwhile.
 * Guidance stays in sight, so that everybody finds out where it is set; the others would push a sampler's map off a small screen.
 */

import { app } from "../../scripts/app.js";
import { isLinked } from "./inputs.js";

export const NUMBERS = ["guidance", "temperature", "top_k", "top_p"];
const IN_SIGHT = "guidance";
const CUSTOM = "custom";

export const widget = (node, name) => node.widgets?.find((one) => one.name === name);
const numbersOf = (node) => node.widgets.filter(({ name }) => NUMBERS.includes(name));
const counts = (node, name) => isLinked(node, name) || isLinked(node, "preset") || widget(node, "preset").value === CUSTOM;

/** Call a function after a method of an object. */
export function wrap(object, name, after) {
  const before = object[name];
  object[name] = function (...args) {
    const result = before?.apply(this, args);
    after(...args);
    return result;
  };
}

/** Gray out what the preset overrides, and hide it, but for the guidance. */
export function grayOut(node) {
  for (const one of numbersOf(node)) {
    one.disabled = !counts(node, one.name);
    one.hidden = one.disabled && one.name !== IN_SIGHT; // the canvas reads this
    one.options.hidden = one.hidden; // Nodes 2.0 reads this
  }
  node.setSize([node.size[0], Math.max(node.size[1], node.computeSize()[1])]);
  node.setDirtyCanvas?.(true, true);
}

/** Send a number that is gray as if nobody had changed it, so that ComfyUI's cache keeps the result. */
function sendWhatCounts(node) {
  for (const one of numbersOf(node)) {
    one.usual = one.value;
    one.serializeValue = () => (counts(node, one.name) ? one.value : one.usual);
  }
}

/** The names of the values that a node saves, in their order. */
export const savedNames = (node) => node.widgets.filter((one) => one.serialize !== false).map(({ name }) => name);

/** A workflow that was saved before its node had presets counts as custom if its user changed a number. */
function keepOldNumbers(node, saved) {
  if (!Array.isArray(saved?.widgets_values) || savedNames(node).indexOf("preset") < saved.widgets_values.length) return;
  if (numbersOf(node).some((one) => one.value !== one.usual)) widget(node, "preset").value = CUSTOM;
}

app.registerExtension({
  name: "adttree.numbers",

  nodeCreated(node) {
    if (!node.comfyClass?.startsWith("ADTTree") || !widget(node, "preset")) return;
    sendWhatCounts(node);
    wrap(node, "onConfigure", (saved) => {
      keepOldNumbers(node, saved);
      grayOut(node);
    });
    wrap(node, "onConnectionsChange", () => grayOut(node));
    wrap(widget(node, "preset"), "callback", () => grayOut(node));
    grayOut(node);
  },
});
