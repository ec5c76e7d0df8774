/** Translation of the server's messages, see adt_core/messages.py. */

import { own } from "./own.js";

/**
 * Part of a message: its English text, the key of its template, and the values for the names in braces in the template.
 * A value can be a message, as a list of parts.
 *
 * @typedef {{text: string, key?: string | null, parameters?: Record<string, string | number | Part[]>}} Part
 */

/** @type {Record<string, string>} */
let templates = {}; // key -> translated template, from locales/.../main.json; empty for English

/** Set the translated templates. */
export function setTemplates(translated) {
  templates = translated;
}

/** The text of a message in the user's language. Parts without a translation are in English. @param {Part[]} parts */
export function translate(parts) {
  return parts.map(translatePart).join("");
}

/** @param {Part} part */
function translatePart({ text, key, parameters = {} }) {
  const template = key ? own(templates, key) : undefined;
  return template?.replace(/\{(\w+)\}/g, (place, name) => textOf(own(parameters, name) ?? place)) ?? text;
}

/** @param {string | number | Part[]} value of a parameter */
function textOf(value) {
  return Array.isArray(value) ? translate(value) : String(value);
}
