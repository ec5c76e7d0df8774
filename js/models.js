/**
 * Labels in the Model Loader's list of models. For a model that is not installed, the label shows the size of the
 * download, and whether the model fits into the memory of the GPU.
 */

import { findWidget, listen, nodesOf, optionsIn, refreshLabel, registerExtension, setLabels } from "./comfy.js";
import { own } from "./own.js";
import { downloadLabel } from "./texts.js";

const LOADER = "ADTTreeModelLoader";
const INPUT = "model";

let downloads = {}; // name -> { size, fits }, see nodes/downloading.py

function readDownloads(definition) {
  downloads = optionsIn(definition, INPUT)?.downloads ?? downloads;
}

function label(name) {
  const model = own(downloads, name);
  return model ? `${name} (${downloadLabel(model.size, model.fits)})` : (name ?? "");
}

registerExtension({
  name: "adttree.models",

  beforeRegisterNodeDef(_, definition) {
    if (definition.name === LOADER) readDownloads(definition);
  },

  refreshComboInNodes(definitions) {
    readDownloads(definitions?.[LOADER]);
  },

  nodeCreated(node) {
    if (node.comfyClass === LOADER) setLabels(findWidget(node, INPUT), label);
  },

  setup() {
    listen({
      "adt_tree.models": (models) => {
        downloads = models;
        for (const node of nodesOf()) {
          if (node.comfyClass === LOADER) refreshLabel(node, findWidget(node, INPUT));
        }
      },
    });
  },
});
