/** What the colours of a map mean. */

import { cssColour } from "./colours.js";
import { make } from "./elements.js";
import { scaleOf } from "./map_model.js";
import { words } from "./words.js";

const SWATCHES = 9; // a legend of more whole numbers is a ramp
const STOPS = 17; // colours of a ramp

/** The colours of a ramp, dark to light. */
export const RAMP = Array.from({ length: STOPS }, (_, i) => cssColour(i / (STOPS - 1)));

/**
 * The values at the dark and the light end of a figure's scale, with their unit.
 * @param {[number, number]} range values at the ends
 * @param {boolean} brief leave out the unit
 */
export function ends(figure, range, brief = false) {
  const { whole } = scaleOf(figure);
  const values = range.map((value) => (whole ? String(value) : value.toFixed(value < 10 ? 1 : 0)));
  return brief ? values : words.ends[figure].map((said, i) => said(values[i]));
}

export class Legend {
  constructor() {
    this.element = make("div", { className: "adt-map-legend" });
  }

  /** @param {boolean} pending whether tokens are missing, which are dark; their label has the place of the unit */
  show(figure, [low, high], pending = false) {
    const [, legend] = words.figures[figure];
    const [dark, light] = ends(figure, [low, high], pending);
    const key = `${dark} ${light} ${pending}`;
    if (key === this.drawn) return;
    this.drawn = key;
    const ramp = make("span", { className: "adt-map-ramp" });
    if (scaleOf(figure).whole && high - low < SWATCHES) {
      for (let value = low; value <= high; value++) {
        const swatch = make("span", { className: "adt-map-swatch" }, String(value));
        const share = (value - low) / (high - low);
        swatch.style.cssText = `background: ${cssColour(share)}; color: ${share > 0.45 ? "#111" : "#fff"}`;
        ramp.append(swatch);
      }
    } else {
      ramp.style.background = `linear-gradient(to right, ${RAMP.join(", ")})`;
    }
    this.element.title = legend;
    const none = pending ? [make("span", { className: "adt-map-none" }), make("span", {}, words.pending)] : [];
    this.element.replaceChildren(...none, make("span", {}, dark), ramp, make("span", {}, light));
  }
}
