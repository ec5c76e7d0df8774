/**
 * Inputs that a preset overrides. They are disabled unless the preset is "custom". While they are disabled, all of them
 * except guidance are also hidden, to leave space for the map on a small screen. Guidance stays visible, so that the
 * user sees where these inputs appear. Its label says that the preset sets it, because the canvas shows no value of a
 * disabled input.
 */

import * as comfy from "./comfy.js";
import { texts } from "./texts.js";

/** Inputs that a preset overrides. */
export const OVERRIDDEN = ["guidance", "temperature", "top_k", "top_p"];
const ALWAYS_SHOWN = "guidance";
const CUSTOM = "custom";

const overriddenOf = (node) => comfy.widgetsOf(node).filter(({ name }) => OVERRIDDEN.includes(name));

/** Whether the value of an input is used: the input is linked, or the preset is linked or "custom". */
function counts(node, name) {
  return (
    comfy.isLinked(node, name) || comfy.isLinked(node, "preset") || comfy.findWidget(node, "preset").value === CUSTOM
  );
}

/** Say in the label of a disabled input that the preset sets it. The input keeps the name that the user gave to it. */
function label(widget) {
  const { setByPreset } = texts;
  const name = (widget.label ?? widget.name).replace(setByPreset, "");
  widget.label = widget.disabled ? name + setByPreset : name;
}

/** Disable and hide the inputs that the preset overrides. */
export function disableOverridden(node) {
  for (const widget of overriddenOf(node)) {
    widget.disabled = !counts(node, widget.name);
    comfy.setHidden(widget, widget.disabled && widget.name !== ALWAYS_SHOWN);
    label(widget);
  }
  comfy.fitHeight(node);
  comfy.redrawNode(node);
}

comfy.registerExtension({
  name: "adttree.preset",

  nodeCreated(node) {
    const preset = comfy.findWidget(node, "preset");
    if (!comfy.isOurs(node) || !preset) return;
    for (const widget of overriddenOf(node)) {
      comfy.sendWhile(widget, () => counts(node, widget.name));
    }
    const update = () => disableOverridden(node);
    comfy.callAfter(node, "onConfigure", update);
    comfy.callAfter(node, "onConnectionsChange", update);
    comfy.callAfter(preset, "callback", update);
    update();
  },
});
