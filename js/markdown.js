/** Convert the Markdown of this pack's reports to elements: headings, tables, lists, blocks of code, bold and code. */

import { make } from "./elements.js";

const SEPARATOR = /^\|[-| :]+\|$/; // line below the headings of a table
const INLINE = /\*\*(.+?)\*\*|`([^`]+)`/g;

/** Text with bold parts and code, as a list of nodes and strings. @returns {(string | HTMLElement)[]} */
function inline(text) {
  const parts = [];
  let end = 0;
  for (const { 0: match, 1: bold, 2: code, index } of text.matchAll(INLINE)) {
    parts.push(text.slice(end, index), bold ? make("strong", {}, bold) : make("code", {}, code));
    end = index + match.length;
  }
  return [...parts, text.slice(end)];
}

function row(line, tag) {
  const cells = line.slice(1, -1).split("|");
  return make("tr", {}, ...cells.map((cell) => make(tag, {}, ...inline(cell.trim()))));
}

function table(lines) {
  const hasHead = SEPARATOR.test(lines[1] ?? "");
  const rows = lines.filter((line) => !SEPARATOR.test(line)).map((line, i) => row(line, i || !hasHead ? "td" : "th"));
  return make("div", { className: "adt-table" }, make("table", {}, ...rows));
}

/** Kinds of blocks: pattern of their lines, and the element for lines of the kind. */
const BLOCKS = [
  { of: /^\|.*\|$/, make: table },
  { of: /^- /, make: (lines) => make("ul", {}, ...lines.map((line) => make("li", {}, ...inline(line.slice(2))))) },
  { of: /^#+ /, make: ([line]) => make("h3", {}, ...inline(line.replace(/^#+ /, ""))) },
  { of: /./, make: (lines) => make("p", {}, ...inline(lines.join("\n"))) },
];

/** The elements of a text in Markdown. @param {string} text @returns {HTMLElement[]} */
export function render(text) {
  return text.split(/^```\n?/m).flatMap((part, i) => (i % 2 ? [make("pre", {}, part.trimEnd())] : blocks(part)));
}

function blocks(text) {
  const groups = [];
  for (const line of text.split("\n")) {
    const kind = BLOCKS.find(({ of }) => of.test(line)) ?? null;
    const last = groups.at(-1);
    if (last && last.kind === kind) last.lines.push(line);
    else groups.push({ kind, lines: [line] });
  }
  return groups.filter(({ kind }) => kind).map(({ kind, lines }) => kind.make(lines));
}
