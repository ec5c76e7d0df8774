/** What the colours of a map mean. */

import { cssColour } from "./colours.js";
import { make } from "./elements.js";
import { scaleOf } from "./map_model.js";
import { words } from "./words.js";

const SWATCHES = 9; // a legend of more whole numbers is a ramp

export class Legend {
  constructor() {
    this.element = make("div", { className: "adt-map-legend" });
  }

  show(figure, [low, high]) {
    const { whole } = scaleOf(figure);
    const [, legend] = words.figures[figure];
    const steps = high - low + 1;
    const key = `${legend} ${low} ${high}`;
    if (key === this.drawn) return;
    this.drawn = key;
    const ramp = make("span", { className: "adt-map-ramp" });
    if (whole && steps <= SWATCHES) {
      for (let value = low; value <= high; value++) {
        const swatch = make("span", { className: "adt-map-swatch" }, String(value));
        const share = (value - low) / (high - low);
        swatch.style.cssText = `background: ${cssColour(share)}; color: ${share > 0.45 ? "#111" : "#fff"}`;
        ramp.append(swatch);
      }
    } else {
      ramp.style.background = `linear-gradient(to right, ${Array.from({ length: 17 }, (_, i) => cssColour(i / 16)).join(", ")})`;
    }
    const digits = (value) => (whole ? String(value) : value.toFixed(value < 10 ? 1 : 0));
    const ends = whole && steps <= SWATCHES ? [[], []] : [[digits(low)], [digits(high)]];
    this.element.replaceChildren(make("span", {}, legend), ...ends[0], ramp, ...ends[1]);
  }
}
