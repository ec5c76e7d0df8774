/** Translation of the server's messages, see adt_core/messages.py. */

/**
 * Part of a message: its English text, and the key of its template with the values of the names in braces.
 *
 * @typedef {{text: string, key?: string | null, parameters?: Record<string, string | number>}} Part
 */

/** @type {Record<string, string>} */
let templates = {}; // by key, as in locales/.../main.json; none for English

/** Use these templates from now on. */
export function setTemplates(translated) {
  templates = translated;
}

/** The text of a message in the user's language, or in English without a translation. @param {Part[]} parts */
export function translate(parts) {
  return parts.map(translatePart).join("");
}

/** @param {Part} part */
function translatePart({ text, key, parameters = {} }) {
  if (!key || !Object.hasOwn(templates, key)) return text;
  return templates[key].replace(/\{(\w+)\}/g, (place, name) => String(parameters[name] ?? place));
}
