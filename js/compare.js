/**
 * Controls to compare the run of an acceptance map with another run. A run is one decoding of a batch of images, and a
 * pane is the drawing of one run (see map_view.js). The images of both runs are shown side by side, or overlaid with a
 * divider that the user drags, or as their difference.
 */

import { subtracted } from "./difference.js";
import { make } from "./elements.js";
import { texts } from "./texts.js";

const GAP = 8; // pixels between the labels of two overlaid runs
const STEP = 0.02; // share of the image's width by which an arrow key moves the divider

export class Compare {
  /** Id of the other run, "" for none. */
  other = "";
  /** Position of the divider as a share of the image's width. The part on its left shows the map's own run. */
  share = 0.5;
  #offered = null; // labels of the choices
  #box = null; // position and size of the image while both runs are overlaid, otherwise null

  /**
   * @param {() => { id: string, label: string }[]} choices runs to compare with
   * @param {{ over: boolean, difference: boolean }} settings `over`: overlay both images, `difference`: subtract them
   * @param {{ chosen: () => void, turned: () => void, moved: () => void }} listeners `chosen` is called when the user
   *   chooses another run, `turned` when the user changes a setting, and `moved` when the user moves the divider
   */
  constructor(choices, settings, listeners) {
    this.choices = choices;
    this.settings = settings;
    this.listeners = listeners;
    this.#build();
    this.#listen();
  }

  #build() {
    const button = (title, label) => make("button", { type: "button", className: "adt-map-over", title }, label);
    const limits = { "aria-valuemin": 0, "aria-valuemax": 100 };
    const slider = { role: "slider", tabindex: 0, "aria-label": texts.split, ...limits };
    const title = texts.compare;
    this.select = make("select", { className: "adt-map-compare", "aria-label": title, title });
    this.button = button(texts.overTitle, texts.over);
    this.apart = button(texts.differenceTitle, texts.difference);
    this.line = make("div", { className: "adt-map-split", ...slider });
    for (const element of [this.line, this.button, this.apart]) element.hidden = true;
  }

  #listen() {
    const { select, line } = this;
    const offer = () => this.offer();
    select.onpointerdown = offer;
    select.onfocus = offer;
    select.onchange = () => {
      this.other = select.value;
      this.listeners.chosen();
    };
    this.button.onclick = () => this.#toggle("over", "difference");
    this.apart.onclick = () => this.#toggle("difference", "over");
    line.onpointerdown = ({ pointerId }) => line.setPointerCapture(pointerId);
    line.onpointermove = (event) => line.hasPointerCapture(event.pointerId) && this.#drag(event);
    line.onkeydown = (event) => this.#key(event);
  }

  #toggle(name, other) {
    this.settings[name] = !this.settings[name];
    this.settings[other] = false;
    this.listeners.turned();
  }

  /** Update the list of runs to compare with. */
  offer() {
    const choices = [{ id: "", label: texts.compareWith }, ...this.choices()];
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
   * Update the controls, and return the visible part of each run.
   *
   * @param {import("./map_view.js").Box[]} boxes boxes of the runs
   * @returns {import("./map_view.js").Box[]}
   */
  clips(boxes) {
    const [box] = boxes;
    const over = boxes.length > 1 && this.settings.over && !this.settings.difference;
    this.#box = over ? box : null;
    this.line.hidden = !over;
    this.button.hidden = boxes.length < 2;
    this.apart.hidden = boxes.length < 2;
    this.button.setAttribute("aria-pressed", String(over));
    this.apart.setAttribute("aria-pressed", String(this.settings.difference));
    if (!over) return boxes;
    const left = this.share * box.width;
    const middle = box.x + box.width / 2;
    Object.assign(this.line.style, { left: `${box.x + left}px`, top: `${box.y}px`, height: `${box.height}px` });
    this.line.setAttribute("aria-valuenow", String(Math.round(100 * this.share)));
    return [
      { ...box, width: left, label: { x: middle - GAP / 2, align: "right" } },
      { ...box, x: box.x + left, width: box.width - left, label: { x: middle + GAP / 2, align: "left" } },
    ];
  }

  /** Whether both runs are drawn at the same place. */
  get isTogether() {
    return this.settings.over || this.settings.difference;
  }

  /** The panes to draw: the panes of both runs, or only one pane with their difference. */
  panes(panes) {
    return this.settings.difference && panes.length > 1 ? [subtracted(panes)] : panes;
  }

  #move(share) {
    this.share = Math.min(Math.max(share, 0), 1);
    this.listeners.moved();
  }

  /** Move the divider to the pointer. ComfyUI's canvas may scale the widget, so client pixels are converted. */
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
    event.stopPropagation(); // ComfyUI moves the node by arrow keys
  }
}
