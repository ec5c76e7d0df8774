/**
 * Names in the Model Loader's list of models. The labels are readable names with the memory that the model needs, its
 * licence, and for a model that is not installed the size of the download. The values are the names of the files. A workflow may name a published model that is
 * installed in a folder of its publisher. Then the name in the list, "publisher/model", replaces the published name.
 */

import * as comfy from "./comfy.js";
import { own } from "./own.js";
import { downloadLabel, texts } from "./texts.js";

const LOADER = "ADTTreeModelLoader";
const INPUT = "model";
const BUNDLED = "bundled";

let about = {}; // name -> { title, licence, memory, fits }, see nodes/downloading.py
let downloads = {}; // name -> { size, fits }, see nodes/downloading.py

function readDownloads(definition) {
  const options = comfy.optionsIn(definition, INPUT);
  downloads = options?.downloads ?? downloads;
  about = options?.about ?? about;
}

function label(name) {
  const model = own(about, name);
  if (name === BUNDLED) return texts.bundled;
  if (!model) return name ?? "";
  const missing = own(downloads, name);
  const size = missing ? downloadLabel(missing.size, missing.fits) : "";
  const fits = missing ? "" : (own(texts.fits, model.fits) ?? ""); // the size tells it for a missing model
  const memory = texts.memory(model.memory) + fits;
  const licence = own(texts.licences, model.licence) ?? model.licence;
  return `${model.title} (${[size, memory, licence].filter(Boolean).join("; ")})`;
}

/** The name in the list for a model of a workflow. Values of other inputs are returned unchanged. */
export function listedName(node, input, value) {
  return own(comfy.inputOptions(node, input)?.installed, value) ?? value;
}

function useListedName(node) {
  const widget = comfy.findWidget(node, INPUT);
  const name = listedName(node, INPUT, widget.value);
  if (name !== widget.value) widget.value = name;
}

/** Use the names in the list in a node that is a subgraph. Such a node stores values of its inner nodes' inputs. */
function useListedNames(host) {
  const loaders = comfy.nodesOf(comfy.subgraphOf(host)).filter((node) => node.comfyClass === LOADER);
  for (const widget of comfy.widgetsOf(host)) {
    const values = comfy.choicesOf(widget);
    if (!values || values.includes(widget.value)) continue;
    const names = loaders.map((node) => listedName(node, INPUT, widget.value));
    const name = names.find((name) => values.includes(name));
    if (name !== undefined) widget.value = name;
  }
}

comfy.registerExtension({
  name: "adttree.models",

  beforeRegisterNodeDef(_, definition) {
    if (definition.name === LOADER) readDownloads(definition);
  },

  refreshComboInNodes(definitions) {
    readDownloads(definitions?.[LOADER]);
  },

  nodeCreated(node) {
    if (node.comfyClass !== LOADER) return;
    comfy.setLabels(comfy.findWidget(node, INPUT), label);
    comfy.callAfter(node, "onConfigure", () => useListedName(node));
  },

  loadedGraphNode(node) {
    if (comfy.subgraphOf(node)) useListedNames(node);
  },

  setup() {
    comfy.listen({
      "adt_tree.models": (models) => {
        downloads = models;
        for (const node of comfy.nodesOf()) {
          if (node.comfyClass === LOADER) comfy.refreshLabel(node, comfy.findWidget(node, INPUT));
        }
      },
    });
  },
});
