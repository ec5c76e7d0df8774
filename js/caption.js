/**
 * Text above an acceptance map: the server's message, the seed and method that made the image, and the values of the
 * node that have changed since the run.
 */

import { make } from "./elements.js";
import { Line } from "./line.js";
import { caption } from "./sentences.js";
import { texts } from "./texts.js";

/**
 * Value of the node that has changed since the run: `now` is the current value, `was` the value in the run. `restore`
 * sets the node back to `was`. If `keeps` is true, it also sets the node to keep this seed.
 *
 * @typedef {{name: string | symbol, now: string, was?: string, restore?: () => void, keeps?: boolean}} Difference
 */

const LINE_HEIGHT = 30; // pixels of two lines of text

export class Caption {
  #key = ""; // the texts that are shown, to find out whether they have changed

  /** @param {() => void} resized called when the height of the server's message has changed */
  constructor(resized) {
    this.line = new Line(resized);
    this.own = make("div", { role: "note" });
    const properties = { className: "adt-map-caption", dataset: { captureWheel: "true" } };
    this.element = make("div", properties, this.line.element, this.own);
  }

  /** The height in pixels that the complete message needs in addition, while the user has opened it. */
  get addedHeight() {
    const { isExpanded, element } = this.line;
    return isExpanded ? Math.max(element.offsetHeight - LINE_HEIGHT, 0) : 0;
  }

  /** The server's message, or "". */
  get message() {
    return this.line.text;
  }

  /**
   * Show the caption of a run. Each difference that can be restored gets a button.
   *
   * @param {object | null} run
   * @param {Difference[]} differences
   * @param {string} off sentence on why the map is from an earlier run, or ""
   */
  show(run, differences, off) {
    const text = run ? caption(run, differences, off) : "";
    const key = [text, ...differences.map(({ was, keeps }) => `${was} ${keeps}`)].join("\n");
    if (key === this.#key) return;
    this.#key = key;
    this.own.replaceChildren(text, ...differences.filter(({ restore }) => restore).map(restoreButton));
  }
}

/** A button that sets the node back to the value in the run. @param {Difference} difference */
function restoreButton({ name, was, restore, keeps }) {
  const title = keeps ? texts.keepTitle : texts.restoreTitle(was);
  const properties = { type: "button", className: "adt-link adt-map-take", title };
  const button = make("button", properties, keeps ? texts.keep(was) : texts.restore(name, was));
  button.onclick = restore;
  return button;
}
