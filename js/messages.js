/** Translation of the server's messages and errors, see adt_core/messages.py. Some errors arrive as plain text. */

import { own } from "./own.js";

/**
 * Part of a message: its English text, the key of its template, and the values for the names in braces in the template.
 * A value can be a message, as a list of parts.
 *
 * @typedef {{text: string, key?: string | null, parameters?: Record<string, string | number | Part[]>}} Part
 */

/** @type {Record<string, string>} */
let templates = {}; // key -> translated template, from locales/.../main.json; empty for English

const LEAST = 6; // characters of a template besides its parameters; a shorter one would match any text
/** @type {{pattern: RegExp, template: string}[]} */
let sentences = []; // patterns of English sentences, and their translated templates
/** @type {Record<string, string>} */
let inputs = {}; // id of an input -> its translated name

/**
 * Set the translated templates.
 *
 * @param {Record<string, string>} translated by key
 * @param {Record<string, string>} [english] templates of errors, by key
 * @param {Record<string, string>} [foreign] translated sentences of ComfyUI, by the English template
 * @param {Record<string, string>} [names] of inputs, by id
 */
export function setTemplates(translated, english = {}, foreign = {}, names = {}) {
  templates = translated;
  inputs = names;
  const ours = Object.entries(english).map(([key, text]) => [text, translated[key]]);
  sentences = [...ours.flatMap(withShorter), ...Object.entries(foreign)]
    .filter(([text, template]) => template && literal(text).length > LEAST)
    .sort(([one], [other]) => literal(other).length - literal(one).length)
    .map(([text, template]) => ({ pattern: patternOf(text), template }));
}

/** An error, and the error without what to do and the final period, as notes quote it. @param {string[]} pair */
function withShorter([text, template = ""]) {
  const whole = [text.replace(/\.$/, ""), template.replace(/。$/, "")];
  const reason = [text.slice(0, text.lastIndexOf(";")), template.slice(0, template.lastIndexOf("；"))];
  return text.includes(";") && template.includes("；") ? [[text, template], whole, reason] : [[text, template], whole];
}

const literal = (text) => text.replace(/`\w+`|\{\w+\}/g, "");

/** Names in backquotes are settings, which have other names in some nodes. @param {string} template */
function patternOf(template) {
  const escaped = template.replace(/[.*+?^$()|[\]\\]/g, "\\$&").replace(/`(\w+)`/g, "\\w+");
  const seen = new Set();
  const group = (_, name) => (seen.has(name) ? `\\k<${name}>` : seen.add(name) && `(?<${name}>.+?)`);
  return new RegExp(`^${escaped.replace(/`?\{(\w+)\}`?/g, group)}$`, "s");
}

/** A sentence in the user's language. A part of it that is a sentence of its own is translated, too. @param {string} text */
function translateSentence(text) {
  for (const { pattern, template } of sentences) {
    const found = pattern.exec(text);
    if (found) return fill(template, (name) => filledIn(name, own(found.groups, name)));
  }
  return text;
}

/** @param {string} name of a place in a template @param {string | number | Part[] | undefined} value */
function filledIn(name, value) {
  const isInput = (name === "input" || name === "other") && typeof value === "string";
  return isInput ? (own(inputs, value) ?? value) : textOf(value);
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
    : fill(template, (name) => filledIn(name, own(parameters, name)));
}

/** @param {string | number | Part[] | undefined} value of a parameter */
function textOf(value) {
  if (typeof value !== "string")
    return Array.isArray(value) ? translate(value).replace(/[.。]$/, "") : value?.toString();
  return translateSentence(value);
}
