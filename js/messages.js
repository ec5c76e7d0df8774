/** Translation of the server's messages and errors, see adt_core/messages.py, and of sentences of ComfyUI. */

import { own } from "./own.js";

/**
 * Part of a message: its English text, the key of its template, and the values for the names in braces in the template.
 * A value can be a message, as a list of parts.
 *
 * @typedef {{text: string, key?: string | null, parameters?: Record<string, string | number | Part[]>}} Part
 */

/** @type {Record<string, string>} */
let templates = {}; // key -> translated template, from locales/.../main.json; empty for English

/** @type {{pattern: RegExp, template: string}[]} */
let sentences = []; // patterns of ComfyUI's English sentences, and their translated templates
/** @type {Record<string, string>} */
let inputs = {}; // id of an input -> its translated name

/**
 * Set the translated templates of messages and of sentences.
 *
 * @param {Record<string, string>} translated by key
 * @param {Record<string, string>} [foreign] by the English template, in which a name in braces stands for any text
 * @param {Record<string, string>} [names] of inputs, by id
 */
export function setTemplates(translated, foreign = {}, names = {}) {
  templates = translated;
  sentences = Object.entries(foreign).map(([english, template]) => ({ pattern: patternOf(english), template }));
  inputs = names;
}

function patternOf(template) {
  const literal = template.replace(/[.*+?^$()|[\]\\]/g, "\\$&");
  return new RegExp(`^${literal.replace(/\{(\w+)\}/g, "(?<$1>.+?)")}$`, "s");
}

/** A sentence of ComfyUI in the user's language. Other texts stay as they are. @param {string} text */
function translateSentence(text) {
  for (const { pattern, template } of sentences) {
    const found = pattern.exec(text);
    if (found) return fill(template, (name) => valueText(name, own(found.groups, name)));
  }
  return text;
}

/** @param {string} name of a place in a template @param {string | number | Part[] | undefined} value */
function valueText(name, value) {
  if (Array.isArray(value)) return translate(value).replace(/[.。]$/, "");
  if (typeof value !== "string") return value?.toString();
  return (name === "input" || name === "other" ? own(inputs, value) : undefined) ?? translateSentence(value);
}

/** Replace the names in braces. @param {string} template @param {(name: string) => string | undefined} find */
function fill(template, find) {
  return template.replace(/\{(\w+)\}/g, (place, name) => find(name) ?? place);
}

/** The text of a message in the user's language. Parts without a translation are in English. @param {Part[]} parts */
export function translate(parts) {
  return parts.map(translatePart).join("");
}

/** @param {Part} part */
function translatePart({ text, key, parameters = {} }) {
  const template = key ? own(templates, key) : undefined;
  return template === undefined
    ? translateSentence(text)
    : fill(template, (name) => valueText(name, own(parameters, name)));
}
