/** Page of this pack in ComfyUI's settings, and badge of this pack on the settings page "About". */

import { getSetting, registerExtension, setSetting } from "./comfy.js";
import { own } from "./own.js";

const SPEEDS = ["Auto", "Exact ADT-Tree", "Relaxed (LANTERN)", "No drafting"]; // as in nodes/drafting.py
const RENAMED = { Plain: "No drafting" }; // old value of a setting -> its new name
const PAGE = "ADT-Tree";
const VERSION = "0.2.0"; // as in pyproject.toml
const PAPER = "https://arxiv.org/abs/2512.21857";

const SETTINGS = {
  speed: {
    id: "ADTTree.Sampler.Speed",
    name: "Drafting of new samplers",
    type: "combo",
    options: SPEEDS,
    defaultValue: SPEEDS[0],
  },
  map: { id: "ADTTree.Map.Show", name: "Show the acceptance map on samplers", type: "boolean", defaultValue: true },
  opacity: {
    id: "ADTTree.Map.Opacity",
    name: "Opacity of new maps over their pictures, in percent",
    type: "slider",
    attrs: { min: 0, max: 100, step: 5 },
    defaultValue: 60,
  },
};

const listeners = []; // { name, listener }

/** Call `listener` with the new value of a preference whenever the preference changes. */
export function onPreference(name, listener) {
  listeners.push({ name, listener });
}

/** The value of a preference: "speed", "map" or "opacity". */
export function preference(name) {
  const { id, defaultValue } = SETTINGS[name];
  const value = getSetting(id) ?? defaultValue;
  return own(RENAMED, value) ?? value;
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
  setup() {
    for (const { id } of Object.values(SETTINGS)) {
      const renamed = RENAMED[/** @type {string} */ (getSetting(id))];
      if (renamed) setSetting(id, renamed); // so that the settings page shows the new name
    }
  },
  aboutPageBadges: [{ label: `${PAGE} ${VERSION}`, url: PAPER, icon: "pi pi-images" }],
});
