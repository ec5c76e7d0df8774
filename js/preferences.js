/** ADT-Tree's page in ComfyUI's settings, and its badge on the page "About". */

import { app } from "../../scripts/app.js";

const SPEEDS = ["Auto", "Exact ADT-Tree", "Relaxed (LANTERN)", "No drafting"]; // of nodes/drafting.py
const RENAMED = { Plain: "No drafting" }; // old value of a preference -> new one
const PAGE = "ADT-Tree";
const VERSION = "0.1.0"; // of pyproject.toml
const PAPER = "https://arxiv.org/abs/2512.21857";

const SETTINGS = {
  speed: { id: "ADTTree.Sampler.Speed", name: "Drafting of new samplers", type: "combo", options: SPEEDS, defaultValue: SPEEDS[0] },
  map: { id: "ADTTree.Map.Show", name: "Show the acceptance map on samplers", type: "boolean", defaultValue: true },
  opacity: {
    id: "ADTTree.Map.Opacity",
    name: "Opacity of new maps over their pictures, in percent",
    type: "slider",
    attrs: { min: 0, max: 100, step: 5 },
    defaultValue: 60,
  },
};

const listeners = []; // [name, function]

/** Call a function with a preference's new value whenever it changes. */
export function onPreference(name, listener) {
  listeners.push([name, listener]);
}

/** What the user prefers: "speed", "map" or "opacity". */
export function preference(name) {
  const { id, defaultValue } = SETTINGS[name];
  const value = app.extensionManager?.setting?.get(id) ?? defaultValue;
  return RENAMED[value] ?? value;
}

app.registerExtension({
  name: "adttree.preferences",
  settings: Object.entries(SETTINGS).map(([name, setting]) => ({
    ...setting,
    category: [PAGE, setting.id.split(".")[1], setting.name],
    onChange: (value) => listeners.filter(([wanted]) => wanted === name).forEach(([, listener]) => listener(value)),
  })),
  setup() {
    for (const { id } of Object.values(SETTINGS)) {
      const renamed = RENAMED[app.extensionManager?.setting?.get(id)];
      if (renamed) app.extensionManager.setting.set(id, renamed); // so that the settings page shows it
    }
  },
  aboutPageBadges: [{ label: `${PAGE} ${VERSION}`, url: PAPER, icon: "pi pi-images" }],
});
