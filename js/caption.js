/** Text above a map: the server's message, what made the image, and how the node's values differ from that now. */

import { make, setText } from "./elements.js";
import { caption } from "./sentences.js";
import { texts } from "./texts.js";

/**
 * Difference between the node and what made its image; `restore` sets the node back to it.
 *
 * @typedef {{name: string | symbol, now: string, was?: string, restore?: () => void}} Difference
 */

export class Caption {
  #key = ""; // shown texts

  constructor() {
    this.line = make("div", { className: "adt-line", role: "status" });
    this.own = make("div", { role: "note" });
    const properties = { className: "adt-map-caption", dataset: { captureWheel: "true" } };
    this.element = make("div", properties, this.line, this.own);
  }

  /** The server's message, or "". */
  get message() {
    return this.line.textContent;
  }

  set message(text) {
    setText(this.line, text);
  }

  /**
   * @param {object | null} run
   * @param {Difference[]} differences
   * @param {string} off why the node does not run, or ""
   */
  show(run, differences, off) {
    const text = run ? caption(run, differences, off) : "";
    const key = [text, ...differences.map(({ was }) => was)].join("\n");
    if (key === this.#key) return;
    this.#key = key;
    this.own.replaceChildren(text, ...differences.filter(({ restore }) => restore).map(restoreButton));
  }
}

/** @param {Difference} difference */
function restoreButton({ name, was, restore }) {
  const properties = { type: "button", className: "adt-map-take", title: texts.restoreTitle(was) };
  const button = make("button", properties, texts.restore(name, was));
  button.onclick = restore;
  return button;
}
