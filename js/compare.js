/**
 * Which run the own one is compared with, and how: side by side, in the same place with a divider to drag between both, or as the difference of
 * their pictures.
 */

import { subtracted } from "./difference.js";
import { make } from "./elements.js";
import { words } from "./words.js";

const GAP = 8; // pixels between the labels of both
const STEP = 0.02; // of the picture's width that an arrow key moves the line

export class Compare {
  /** id of the other run; "" for none */
  other = "";
  /** the part of the picture's width that shows the own run */
  share = 0.5;
  #offered = null;
  #box = null; // of the picture, while both are in the same place

  /**
   * @param {() => { id: string, label: string }[]} choices the runs to compare with
   * @param {{ over: boolean, difference: boolean }} settings whether both are in the same place, and whether their difference is shown instead
   * @param {{ chosen: () => void, turned: () => void, moved: () => void }} told when another run is chosen, when a setting changes, and when the line moves
   */
  constructor(choices, settings, { chosen, turned, moved }) {
    Object.assign(this, { choices, settings, moved });
    this.select = make("select", { className: "adt-map-compare", "aria-label": words.compare, title: words.compare });
    this.button = make("button", { type: "button", className: "adt-map-over", title: words.overTitle }, words.over);
    this.apart = make("button", { type: "button", className: "adt-map-over", title: words.differenceTitle }, words.difference);
    this.line = make("div", { className: "adt-map-split", role: "slider", tabindex: 0, "aria-label": words.split, "aria-valuemin": 0, "aria-valuemax": 100 });
    this.line.hidden = this.button.hidden = this.apart.hidden = true;
    this.select.onpointerdown = this.select.onfocus = () => this.offer();
    this.select.onchange = () => {
      this.other = this.select.value;
      chosen();
    };
    const turn = (name, other) => () => {
      settings[name] = !settings[name];
      settings[other] = false;
      turned();
    };
    this.button.onclick = turn("over", "difference");
    this.apart.onclick = turn("difference", "over");
    this.line.onpointerdown = ({ pointerId }) => this.line.setPointerCapture(pointerId);
    this.line.onpointermove = (event) => this.line.hasPointerCapture(event.pointerId) && this.#drag(event);
    this.line.onkeydown = (event) => this.#key(event);
  }

  /** Offer the runs that there are now. */
  offer() {
    const choices = [{ id: "", label: words.compareWith }, ...this.choices()];
    const labels = choices.map(({ label }) => label).join("\n");
    if (labels !== this.#offered) {
      this.#offered = labels;
      this.select.replaceChildren(...choices.map(({ id, label }) => new Option(label, id)));
    }
    if (!choices.some(({ id }) => id === this.other)) this.other = "";
    this.select.value = this.other;
    this.select.hidden = choices.length === 1;
    this.select.classList.toggle("adt-map-chosen", this.other !== "");
  }

  /**
   * Show the controls for so many runs, and say where each is seen.
   *
   * @param {object[]} boxes of the runs, see `layout` in map_view.js
   * @returns {object[]} the part of each box that is shown; `label`, where its name stands if not at the left of that: { x, align }
   */
  clips(boxes) {
    const [box] = boxes;
    const over = boxes.length > 1 && this.settings.over && !this.settings.difference;
    this.#box = over ? box : null;
    this.line.hidden = !over;
    this.button.hidden = this.apart.hidden = boxes.length < 2;
    this.button.setAttribute("aria-pressed", String(over));
    this.apart.setAttribute("aria-pressed", String(this.settings.difference));
    if (!over) return boxes;
    const [left, middle] = [this.share * box.width, box.x + box.width / 2];
    Object.assign(this.line.style, { left: `${box.x + left}px`, top: `${box.y}px`, height: `${box.height}px` });
    this.line.setAttribute("aria-valuenow", Math.round(100 * this.share));
    return [
      { ...box, width: left, label: { x: middle - GAP / 2, align: "right" } },
      { ...box, x: box.x + left, width: box.width - left, label: { x: middle + GAP / 2, align: "left" } },
    ];
  }

  /** Whether both runs are shown in the same place. */
  get together() {
    return this.settings.over || this.settings.difference;
  }

  /** What is drawn of the panes of all runs. */
  drawn(panes) {
    return this.settings.difference && panes.length > 1 ? [subtracted(panes)] : panes;
  }

  #move(share) {
    this.share = Math.min(Math.max(share, 0), 1);
    this.moved();
  }

  /** ComfyUI's canvas may show the widget larger or smaller than its own pixels. */
  #drag({ clientX }) {
    const stage = this.line.parentElement;
    const { left, width } = stage.getBoundingClientRect();
    this.#move((((clientX - left) / width) * stage.clientWidth - this.#box.x) / this.#box.width);
  }

  #key(event) {
    const shares = { ArrowLeft: this.share - STEP, ArrowRight: this.share + STEP, Home: 0, End: 1 };
    if (!(event.key in shares)) return;
    this.#move(shares[event.key]);
    event.preventDefault();
    event.stopPropagation(); // arrows move the node otherwise
  }
}
