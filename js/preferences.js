/** Page of this pack in ComfyUI's settings, and badge of this pack on the settings page "About". */

import { getSetting, registerExtension } from "./comfy.js";

const WAYS = ["Auto", "ADT-Tree", "ADT-Tree + LANTERN", "Auto + LANTERN", "EAGLE-2", "No drafting"]; // as in choices.py
const PAGE = "ADT-Tree";
const VERSION = "0.2.0"; // as in pyproject.toml
const PAPER = "https://arxiv.org/abs/2512.21857";

const SETTINGS = {
  drafting: {
    id: "ADTTree.Sampler.Drafting",
    name: "Drafting of new samplers",
    type: "combo",
    options: WAYS,
    defaultValue: WAYS[0],
  },
  map: { id: "ADTTree.Map.Show", name: "Show the acceptance map on samplers", type: "boolean", defaultValue: true },
  cells: { id: "ADTTree.Map.Cells", name: "Draw new maps over their images", type: "boolean", defaultValue: true },
  opacity: {
    id: "ADTTree.Map.Opacity",
    name: "Opacity of new maps over their pictures, in percent",
    type: "slider",
    attrs: { min: 0, max: 100, step: 5 },
    defaultValue: 40,
  },
};

const listeners = []; // { name, listener }

/** Call `listener` with the new value of a preference whenever the preference changes. */
export function onPreference(name, listener) {
  listeners.push({ name, listener });
}

/** The value of a preference: "drafting", "map", "cells" or "opacity". */
export function preference(name) {
  const { id, defaultValue } = SETTINGS[name];
  return getSetting(id) ?? defaultValue;
}

function notify(name, value) {
  for (const one of listeners) if (one.name === name) one.listener(value);
}

registerExtension({
  name: "adttree.preferences",
  settings: Object.entries(SETTINGS).map(([name, setting]) => ({
    .../** @type {any} */ (setting),
    category: [PAGE, setting.id.split(".")[1], setting.name],
    onChange: (value) => notify(name, value),
  })),
  aboutPageBadges: [{ label: `${PAGE} ${VERSION}`, url: PAPER, icon: "pi pi-images" }],
});
