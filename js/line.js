/** Line of text of the server on a node: two lines of text, a button that shows the rest, and a tooltip with all. */

import { make, setText } from "./elements.js";
import { texts } from "./texts.js";

export class Line {
  /** @param {() => void} resized called when the height of the line has changed */
  constructor(resized) {
    this.content = make("div", { className: "adt-line-text", role: "status" });
    this.more = make("button", { type: "button", className: "adt-link", hidden: "" }, texts.more);
    this.more.onclick = () => this.#expand(!this.isExpanded);
    this.copy = make("button", { type: "button", className: "adt-link", hidden: "" }, texts.copy);
    this.copy.onclick = () => navigator.clipboard?.writeText(this.folder);
    this.element = make("div", { className: "adt-line" }, this.content, this.copy, this.more);
    this.observer = new ResizeObserver(() => {
      if (!this.element.offsetHeight) return; // the node is not visible
      const isCut = this.content.scrollHeight > this.content.clientHeight + 1;
      this.more.hidden = !isCut && !this.isExpanded;
      resized();
    });
    for (const one of [this.element, this.content]) this.observer.observe(one);
  }

  /** Whether the user has opened the complete text. */
  get isExpanded() {
    return this.element.classList.contains("adt-line-expanded");
  }

  #expand(on) {
    this.element.classList.toggle("adt-line-expanded", on);
    setText(this.more, on ? texts.less : texts.more);
  }

  get text() {
    return this.content.textContent;
  }

  /**
   * Show a text in the colour of its level, see `Level` in progress_text.js.
   *
   * @param {string} folder folder that the text names, which the user can copy; "" for none
   */
  show(text, level, folder = "") {
    this.element.dataset.level = level;
    this.folder = folder;
    this.copy.hidden = !folder;
    this.copy.title = folder;
    if (text === this.text) return;
    this.#expand(false);
    this.content.textContent = text;
    this.content.title = text;
    this.more.hidden = true; // until the new text has a size
  }
}
