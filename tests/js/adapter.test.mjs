import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import test from "node:test";

const FOLDER = new URL("../../js/", import.meta.url);
const ADAPTER = "comfy.js"; // the only file that may use internals of ComfyUI's page

/** Kind of internals of ComfyUI's page -> pattern of code that uses them. */
const INTERNALS = {
  "modules of the page": /["'][^"']*\/scripts\//,
  "app or api": /\b(app|api|comfyAPI)\s*[?!]?\.|\bwindow\.(app|comfyAPI)\b/,
  LiteGraph: /\b(LiteGraph|LGraphCanvas|LGraphNode|LGraph)\b/,
  "methods of nodes and graphs":
    /\.(addDOMWidget|removeWidget|computeSize|setSize|setDirtyCanvas|getNodeById|getInputNode|getInputLink|isInputConnected)\b/,
  "internals of widgets":
    /\bwidget\??\.(options|serializeValue|callback|computedHeight|advanced)|\bwidget\.hidden =[^=]/,
  "lists of a node": /\.(widgets|inputs\[|rootGraph|subgraphs)\b/,
  "elements of the page": /\.lg-node|data-node-id|\$\$/,
};

/** The source text of a file without comments. */
function code(file) {
  const text = readFileSync(new URL(file, FOLDER), "utf8");
  return text.replace(/\/\*[\s\S]*?\*\//g, "").replace(/(^|\s)\/\/.*$/gm, "$1");
}

/** Names of the patterns that a source text contains. */
function used(text) {
  return Object.keys(INTERNALS).filter((name) => INTERNALS[name].test(text));
}

test("only the adapter uses internals of ComfyUI's page", () => {
  const files = readdirSync(FOLDER).filter((file) => file.endsWith(".js"));
  assert.ok(files.includes(ADAPTER));
  const found = files.map((file) => [file, used(code(file))]).filter(([, names]) => names.length);
  assert.deepEqual(found, [[ADAPTER, Object.keys(INTERNALS)]]);
});
