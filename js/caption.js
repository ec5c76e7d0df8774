/** The text above a map: what the server says of the run, what made the image, and what its node has now instead. */

import { make } from "./elements.js";
import { caption } from "./sentences.js";
import { words } from "./words.js";

export class Caption {
  constructor() {
    this.line = make("div", { className: "adt-line", role: "status" });
    this.own = make("div", { role: "note" });
    this.element = make("div", { className: "adt-map-caption", dataset: { captureWheel: "true" } }, this.line, this.own);
  }

  /** Show a line of the server's; "" for none. */
  tell(text) {
    if (this.line.textContent !== text) this.line.textContent = text;
  }

  /** The server's line that is shown, or "". */
  get told() {
    return this.line.textContent;
  }

  /**
   * @param {object | null} run
   * @param {{name: string, now: string, was?: string, take?: () => void}[]} differences `take` sets the node back to what made the image
   * @param {string} off why the node does not run at all, or ""
   */
  show(run, differences, off) {
    const said = run ? caption(run, differences, off) : "";
    const key = [said, ...differences.map(({ was }) => was)].join("\n");
    if (key === this.said) return;
    this.said = key;
    this.own.replaceChildren(said, ...differences.filter(({ take }) => take).map(offer));
  }
}

/** A button that restores a value of the image. */
function offer({ name, was, take }) {
  const button = make("button", { type: "button", className: "adt-map-take", title: words.takeFrom(was) }, words.take(name, was));
  button.onclick = take;
  return button;
}
