/** The Model Loader's list: behind the name of a model that is not installed, its size and whether it fits the GPU. */

import { app } from "../../scripts/app.js";
import { downloadLabel } from "./words.js";

const LOADER = "ADTTreeModelLoader";
const INPUT = "model";
const EVENT = "adt_tree.models";

let downloads = {}; // name -> size and fit, as nodes/downloading.py describes them

/** Read them from the server's definition of the node. */
function take(definition) {
  const { required, optional } = definition?.input ?? {};
  downloads = (required?.[INPUT] ?? optional?.[INPUT])?.[1]?.downloads ?? downloads;
}

function widgetOf(node) {
  return node.comfyClass === LOADER ? node.widgets?.find((widget) => widget.name === INPUT) : undefined;
}

/** The Model Loaders of a workflow, those in subgraphs included. */
function loaders(graph) {
  return graph.nodes.flatMap((node) => [...(widgetOf(node) ? [node] : []), ...(node.subgraph ? loaders(node.subgraph) : [])]);
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
    widget.options.getOptionLabel = (value) => {
      const model = downloads[value];
      return model ? `${value} (${downloadLabel(model.size, model.fits)})` : (value ?? "");
    };
  },

  setup() {
    app.api.addEventListener(EVENT, ({ detail }) => {
      downloads = detail;
      for (const node of loaders(app.rootGraph ?? app.graph)) {
        const widget = widgetOf(node);
        const { value } = widget;
        widget.value = ""; // Nodes 2.0 reads the label of a value that changes
        widget.value = value;
        node.setDirtyCanvas?.(true, true);
      }
    });
  },
});
