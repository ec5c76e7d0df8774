/** The line below a map that says of which image it is, and what its node has now in place of what made it. */

import { make } from "./elements.js";
import { caption } from "./sentences.js";
import { words } from "./words.js";

export class Caption {
  constructor() {
    this.element = make("div", { className: "adt-map-caption", role: "note" });
  }

  /**
   * @param {object | null} run
   * @param {{name: string, now: string, was?: string, take?: () => void}[]} differences `take` gives the node back what made the picture
   * @param {string} off why the node does not run at all, or ""
   */
  show(run, differences, off) {
    const said = run ? caption(run, differences, off) : "";
    const key = [said, ...differences.map(({ was }) => was)].join("\n");
    if (key === this.said) return;
    this.said = key;
    this.element.replaceChildren(said, ...differences.filter(({ take }) => take).map(offer));
  }
}

/** A button that takes a value of the picture. */
function offer({ name, was, take }) {
  const button = make("button", { type: "button", className: "adt-map-take", title: words.takeFrom(name, was) }, words.take(name, was));
  button.onclick = take;
  return button;
}
