/**
 * Inputs that a preset overrides. They are disabled unless the preset is "custom". While they are disabled, all of them
 * except guidance are also hidden, to leave space for the map on a small screen. Guidance stays visible, so that the
 * user sees where these inputs appear.
 */

import {
  callAfter,
  findWidget,
  fitHeight,
  isLinked,
  isOurs,
  redrawNode,
  registerExtension,
  savedNames,
  sendWhile,
  setHidden,
  widgetsOf,
} from "./comfy.js";

/** Inputs that a preset overrides. */
export const OVERRIDDEN = ["guidance", "temperature", "top_k", "top_p"];
const ALWAYS_SHOWN = "guidance";
const CUSTOM = "custom";

const defaults = new WeakMap(); // widget -> its default value

const overriddenOf = (node) => widgetsOf(node).filter(({ name }) => OVERRIDDEN.includes(name));

/** Whether the value of an input is used: the input is linked, or the preset is linked or "custom". */
function counts(node, name) {
  return isLinked(node, name) || isLinked(node, "preset") || findWidget(node, "preset").value === CUSTOM;
}

/** Disable and hide the inputs that the preset overrides. */
export function disableOverridden(node) {
  for (const widget of overriddenOf(node)) {
    widget.disabled = !counts(node, widget.name);
    setHidden(widget, widget.disabled && widget.name !== ALWAYS_SHOWN);
  }
  fitHeight(node);
  redrawNode(node);
}

/**
 * Set the preset of a node in an old workflow, which was saved by a version of this pack without presets. The preset is
 * "custom" if one of the inputs does not have its default value.
 */
function migrate(node, saved) {
  if (!Array.isArray(saved?.widgets_values) || savedNames(node).indexOf("preset") < saved.widgets_values.length) return;
  const isChanged = overriddenOf(node).some((widget) => widget.value !== defaults.get(widget));
  if (isChanged) findWidget(node, "preset").value = CUSTOM;
}

registerExtension({
  name: "adttree.preset",

  nodeCreated(node) {
    const preset = findWidget(node, "preset");
    if (!isOurs(node) || !preset) return;
    for (const widget of overriddenOf(node)) {
      defaults.set(widget, widget.value);
      sendWhile(widget, () => counts(node, widget.name));
    }
    const update = () => disableOverridden(node);
    callAfter(node, "onConfigure", (saved) => {
      migrate(node, saved);
      update();
    });
    callAfter(node, "onConnectionsChange", update);
    callAfter(preset, "callback", update);
    update();
  },
});
