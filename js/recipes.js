/**
 * PNGs without a workflow: those of `adt.py generate`, of the Benchmark and of batches. If the user opens one, this file
 * makes a workflow from the settings in it. From the text `parameters`, which other programs read, ComfyUI itself would
 * make a workflow for Stable Diffusion.
 *
 * Anybody may have written the PNG. Values are only set in widgets, within their limits, and models are chosen from the
 * list of the loader.
 */

import * as comfy from "./comfy.js";
import { textsOf } from "./png.js";
import { FIRST } from "./templates.js";
import { texts } from "./texts.js";

const KEY = "adt_tree"; // keyword of the settings, as in adt_core/app/images.py
const WORKFLOWS = ["workflow", "prompt"]; // keywords of ComfyUI's own texts
const LARGEST = 2 ** 28; // bytes of a file that is read
const CUSTOM = "custom";
const METHODS = { "adt-tree": "ADT-Tree", eagle2: "EAGLE-2", "no-drafting": "No drafting" }; // as in choices.py
const NOISES = { "original-script": "original script" }; // as in nodes/sampling.py

/** The settings in an image file; null if ComfyUI opens the file itself, {} if the settings are damaged. */
async function recipeIn(file) {
  if (!file.name?.toLowerCase().endsWith(".png") || file.size > LARGEST) return null;
  const texts = textsOf(await file.arrayBuffer());
  if (WORKFLOWS.some((key) => key in texts) || !(KEY in texts)) return null;
  try {
    const recipe = JSON.parse(texts[KEY]);
    return typeof recipe?.prompt === "string" ? recipe : {};
  } catch {
    return {};
  }
}

/** Set a widget to a value of the file, if the widget can have this value. */
function set(node, name, value) {
  const widget = comfy.findWidget(node, name);
  if (!widget || typeof value !== typeof widget.value) return;
  const choices = comfy.choicesOf(widget);
  if (choices && !choices.includes(value)) return;
  const { min = -Infinity, max = Infinity } = comfy.inputOptions(node, name) ?? {};
  comfy.setValue(node, widget, typeof value === "number" ? Math.min(Math.max(value, min), max) : value);
}

/** The name in the loader's list for the path or name of a model. */
function listed(loader, recipe) {
  const nameOf = (path) => String(path).split(/[\\/]/).pop().toLowerCase();
  const wanted = [recipe.model, recipe.model_name].map(nameOf);
  return comfy.choicesOf(comfy.findWidget(loader, "model")).find((name) => wanted.includes(nameOf(name)));
}

function fillLoader(loader, recipe) {
  set(loader, "model", listed(loader, recipe));
  set(loader, "dtype", recipe.weights ? `${recipe.weights} weights` : recipe.dtype);
  set(loader, "exact", recipe.exact === "on");
}

function fillSampler(sampler, recipe) {
  set(sampler, "preset", CUSTOM);
  for (const name of ["seed", "temperature", "top_k", "top_p"]) set(sampler, name, recipe[name]);
  set(sampler, "guidance", recipe.guidance_scale);
  set(sampler, "control_after_generate", "fixed");
  set(sampler, "noise", NOISES[recipe.noise]);
  set(sampler, "drafting", METHODS[recipe.method] ?? "Auto");
  set(sampler, "batch_size", (recipe.image_index ?? 0) + 1); // each image of a prompt has its own noise
}

function addNegative(sampler, loader, text) {
  const node = comfy.addBefore(sampler, "CLIPTextEncode", "negative", [loader, 1, "clip"]);
  set(node, "text", text);
}

/** LANTERN changes the image, so its numbers are needed. */
function addLantern(sampler, recipe) {
  const isPlus = typeof recipe.lantern_factor === "number";
  const node = comfy.addBefore(sampler, "ADTTreeLANTERN", "lantern");
  set(node, "rule", isPlus ? "factor (LANTERN++)" : "delta (LANTERN)");
  set(node, "neighbours", recipe.lantern_k);
  set(node, "delta", recipe.lantern_delta);
  set(node, "factor", recipe.lantern_factor);
  set(node, "max_replaced", recipe.max_substitution);
  set(sampler, "drafting", "Auto");
}

/** Fill the nodes of the first template with the settings of an image. */
function fill(recipe) {
  const find = (type) => comfy.nodesOf().find(({ comfyClass }) => comfyClass === type);
  const [loader, prompt, sampler] = ["ADTTreeModelLoader", "CLIPTextEncode", "ADTTreeSampler"].map(find);
  set(prompt, "text", recipe.prompt + (typeof recipe.suffix === "string" ? recipe.suffix : ""));
  fillLoader(loader, recipe);
  fillSampler(sampler, recipe);
  if (typeof recipe.negative_prompt === "string" && recipe.negative_prompt) {
    addNegative(sampler, loader, recipe.negative_prompt);
  }
  if ([recipe.lantern_delta, recipe.lantern_factor].some(Number.isFinite)) addLantern(sampler, recipe);
}

comfy.registerExtension({
  name: "adttree.recipes",

  setup() {
    comfy.onFile(async (file) => {
      const recipe = await recipeIn(file);
      if (!recipe) return false;
      if (!recipe.prompt) {
        comfy.showError(texts.unreadable(file.name));
        return true;
      }
      await comfy.openTemplate(FIRST, file.name.replace(/\.\w+$/, ""));
      fill(recipe);
      return true;
    });
  },
});
