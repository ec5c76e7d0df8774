/** Colours of this pack's sockets and links. */

import { registerExtension, setTypeColours } from "./comfy.js";

const COLOURS = {
  ADT_MODEL: "#b39ddb", // the colour of MODEL
  ADT_DRAFTER: "#4db6ac",
  ADT_SETTINGS: "#90a4ae",
  ADT_LANTERN: "#ffb74d",
  ADT_TRACE: "#aed581",
  ADT_RESULTS: "#f48fb1",
};

registerExtension({ name: "adttree.sockets", setup: () => setTypeColours(COLOURS) });
