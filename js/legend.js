/** Legend of the colours of an acceptance map. */

import { cssColour } from "./colours.js";
import { make } from "./elements.js";
import { scaleOf } from "./map_model.js";
import { texts } from "./texts.js";

const MAX_SWATCHES = 9; // maximum number of boxes; if there are more integers, the legend is a gradient
const STOPS = 17; // colours of a gradient
const DARK = 0.45; // position on the scale; on darker colours, text is white

/** Colours of a gradient, dark to light. */
export const RAMP = Array.from({ length: STOPS }, (_, i) => cssColour(i / (STOPS - 1)));

/**
 * Labels for the dark and the light end of the colour scale.
 *
 * @param {string} figure name of the shown quantity, a key of `FIGURES`
 * @param {number[]} range values at both ends
 * @param {boolean} brief whether to omit the unit
 */
export function ends(figure, range, brief = false) {
  const { whole } = scaleOf(figure);
  const values = range.map((value) => (whole ? String(value) : value.toFixed(value < 10 ? 1 : 0)));
  return brief ? values : texts.ends[figure].map((label, i) => label(values[i]));
}

export class Legend {
  #drawn = ""; // the labels that are shown, to find out whether they have changed

  constructor() {
    this.element = make("div", { className: "adt-map-legend" });
  }

  /**
   * Show the legend of a figure.
   *
   * @param {string} figure name of the shown quantity
   * @param {number[]} range values at both ends of the scale
   * @param {boolean} pending whether some tokens are not generated yet. The legend then shows the colour of these
   *   tokens, and omits the unit.
   */
  show(figure, [low, high], pending = false) {
    const [, legend] = texts.figures[figure];
    const [dark, light] = ends(figure, [low, high], pending);
    const key = `${dark} ${light} ${pending}`;
    if (key === this.#drawn) return;
    this.#drawn = key;
    this.element.title = legend;
    const none = pending ? [make("span", { className: "adt-map-none" }), make("span", {}, texts.pending)] : [];
    const isSwatches = scaleOf(figure).whole && high - low < MAX_SWATCHES;
    const colours = isSwatches ? swatches(low, high) : gradient();
    const first = isSwatches ? [] : [make("span", {}, dark)]; // swatches have their numbers
    this.element.replaceChildren(...none, ...first, colours, make("span", {}, light));
  }
}

/** A row of boxes in the colours of the scale, one for each integer from `low` to `high`. */
function swatches(low, high) {
  const ramp = make("span", { className: "adt-map-ramp" });
  for (let value = low; value <= high; value++) {
    const swatch = make("span", { className: "adt-map-swatch" }, value < high ? String(value) : "");
    const share = (value - low) / (high - low);
    swatch.style.background = cssColour(share);
    swatch.style.color = share > DARK ? "#111" : "#fff";
    ramp.append(swatch);
  }
  return ramp;
}

function gradient() {
  const ramp = make("span", { className: "adt-map-ramp" });
  ramp.style.background = `linear-gradient(to right, ${RAMP.join(", ")})`;
  return ramp;
}
