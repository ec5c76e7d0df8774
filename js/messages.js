/** Translation of the server's messages, see adt_core/messages.py, and of its errors, which are plain text. */

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
let errors = []; // English errors, and their translated templates
/** @type {Record<string, string>} */
let inputs = {}; // id of an input -> its translated name

/**
 * Set the translated templates of messages and errors.
 *
 * @param {Record<string, string>} translated by key
 * @param {Record<string, string>} [sentences] by the English template, in which a name in braces stands for any text
 * @param {Record<string, string>} [names] of inputs, by id
 */
export function setTemplates(translated, sentences = {}, names = {}) {
  templates = translated;
  errors = Object.entries(sentences).map(([english, template]) => ({ pattern: patternOf(english), template }));
  inputs = names;
}

function patternOf(template) {
  const literal = template.replace(/[.*+?^$()|[\]\\]/g, "\\$&");
  return new RegExp(`^${literal.replace(/\{(\w+)\}/g, "(?<$1>.+?)")}$`, "s");
}

/** An error in the user's language. A part of it that is an error of its own is translated, too. @param {string} text */
function translateError(text) {
  for (const { pattern, template } of errors) {
    const found = pattern.exec(text);
    if (found) return fill(template, (name) => partOf(name, own(found.groups, name)));
  }
  return text;
}

/** @param {string} name of a place in a template @param {string | undefined} value */
function partOf(name, value) {
  return value && (name === "input" ? (own(inputs, value) ?? value) : translateError(value));
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
  return template === undefined ? translateError(text) : fill(template, (name) => textOf(own(parameters, name)));
}

/** @param {string | number | Part[] | undefined} value of a parameter */
function textOf(value) {
  if (value === undefined) return value;
  return Array.isArray(value) ? translate(value) : translateError(String(value));
}
