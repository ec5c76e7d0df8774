/** The Model Loader's list: beside the name of a model that is not installed, its size and whether it fits the GPU. */

import { app } from "../../scripts/app.js";
import { downloadLabel } from "./words.js";

const LOADER = "ADTTreeModelLoader";
const INPUT = "model";
const EVENT = "adt_tree.models";

let list = { downloads: {}, aliases: {} }; // as nodes/downloading.py describes it

/** The list that a node definition of the server holds. */
function take(definition) {
  const { required, optional } = definition?.input ?? {};
  list = (required?.[INPUT] ?? optional?.[INPUT])?.[1]?.adt_tree ?? list;
}

function widgetOf(node) {
  return node.comfyClass === LOADER ? node.widgets?.find((widget) => widget.name === INPUT) : undefined;
}

/** Every Model Loader of the open workflow, those in subgraphs included. */
function loaders(graph = app.graph) {
  return (graph?.nodes ?? []).flatMap((node) => [...(widgetOf(node) ? [node] : []), ...(node.subgraph ? loaders(node.subgraph) : [])]);
}

/** Choose the name in the list for one that an older version, or another folder, had for the same model. */
function rename(node) {
  const widget = widgetOf(node);
  if (widget && list.aliases[widget.value]) widget.value = list.aliases[widget.value];
}

app.registerExtension({
  name: "adttree.models",

  beforeRegisterNodeDef(nodeType, definition) {
    if (definition.name === LOADER) take(definition);
  },

  refreshComboInNodes(definitions) {
    take(definitions?.[LOADER]);
  },

  nodeCreated(node) {
    const widget = widgetOf(node);
    if (!widget) return;
    const usual = widget.options.getOptionLabel;
    widget.options.getOptionLabel = (value) => {
      const name = usual?.(value) ?? value ?? "";
      const model = list.downloads[value];
      return model ? `${name} (${downloadLabel(model.size, model.fits)})` : name;
    };
  },

  loadedGraphNode: rename,

  setup() {
    app.api.addEventListener(EVENT, ({ detail }) => {
      list = detail;
      for (const node of loaders()) {
        rename(node);
        const widget = widgetOf(node);
        widget.options = { ...widget.options }; // Nodes 2.0 draws the label again
        node.setDirtyCanvas?.(true, true);
      }
    });
  },
});
