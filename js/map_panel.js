/** The widget's controls, canvas and words for one node. What runs there are and how they are kept is its owner's business. */

import { cssColour } from "./colours.js";
import { FIGURES, range } from "./map_model.js";
import { draw, hit, layout } from "./map_view.js";
import { picture } from "./pictures.js";
import { describe, methodName, summary, words } from "./words.js";

const SWATCHES = 9; // a legend of more whole numbers is a ramp
const MOST_PIXELS = 4; // device pixels per CSS pixel, however far the page is zoomed in

function make(tag, properties = {}, ...children) {
  const { className, dataset, ...attributes } = properties;
  const element = document.createElement(tag);
  if (className) element.className = className;
  Object.assign(element.dataset, dataset);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export class MapPanel {
  /**
   * @param {object} owner `choices()` -> [{ id, label }] of runs to compare with, `choose(id)` -> one of them or null,
   *   `plain(run)` -> a run of plain decoding to measure it by, or null, `changed()` when a setting is to be remembered
   * @param {{figure: string, opacity: number}} settings
   */
  constructor(owner, settings) {
    this.owner = owner;
    this.settings = { figure: "acceptance", opacity: 0.6, ...settings };
    this.run = null;
    this.image = 0;
    this.other = ""; // id of the run compared with
    this.pinned = null; // the token cursor of keyboard and click: { pane, cell }
    this.hovered = null;
    this.panes = [];
    this.frame = 0;
    this.#build();
    this.redraw = this.redraw.bind(this);
    new ResizeObserver(this.redraw).observe(this.stage);
    this.refresh();
  }

  // ---- elements --------------------------------------------------------------------------

  #build() {
    this.buttons = Object.keys(FIGURES).map((figure) => {
      const [label, legend] = words.figures[figure];
      const button = make("button", { type: "button", title: `${words.colourBy} ${legend}`, dataset: { figure } }, label);
      button.onclick = () => this.#set({ figure });
      return button;
    });
    this.images = make("select", { "aria-label": words.image, title: words.image });
    this.images.onchange = () => this.showImage(Number(this.images.value));
    this.canvas = make("canvas", { tabindex: 0, role: "application", "aria-roledescription": "token map" });
    this.tip = make("div", { className: "adt-map-tip", role: "status" });
    this.stage = make("div", { className: "adt-map-stage" }, this.canvas, this.tip);
    this.legend = make("div", { className: "adt-map-legend" });
    this.opacity = make("input", { type: "range", min: 0, max: 100, "aria-label": words.opacity, title: words.opacity });
    this.opacity.oninput = () => this.#set({ opacity: this.opacity.value / 100 });
    this.compare = make("select", { "aria-label": words.compare, title: words.compare });
    this.compare.onpointerdown = this.compare.onfocus = () => this.#offer();
    this.compare.onchange = () => this.compareWith(this.compare.value);
    this.line = make("div", { className: "adt-map-line" });
    this.element = make(
      "div",
      { className: "adt-map", role: "group", "aria-label": words.map },
      make("div", { className: "adt-map-bar" }, make("div", { className: "adt-map-figures", role: "group", "aria-label": words.colourBy }, ...this.buttons), this.images),
      this.stage,
      this.legend,
      make("div", { className: "adt-map-bar" }, make("label", { className: "adt-map-opacity" }, words.overlay, this.opacity), this.compare),
      this.line,
    );
    this.canvas.onpointermove = (event) => this.#hover(hit(this.panes, this.run?.rows, this.run?.columns, event.offsetX, event.offsetY));
    this.canvas.onpointerleave = () => this.#hover(null);
    this.canvas.onclick = () => this.#pin(this.hovered);
    this.canvas.onkeydown = (event) => this.#key(event);
  }

  // ---- what is shown ---------------------------------------------------------------------

  /** Show another run, or more of the same. */
  show(run) {
    if (this.run && run && (run.rows !== this.run.rows || run.columns !== this.run.columns)) this.pinned = null;
    this.run = run;
    if (run && this.image >= run.count) this.image = 0;
    this.refresh();
  }

  showImage(image) {
    this.image = image;
    this.refresh();
  }

  /** Show the run of this id beside the own one; "" for none. */
  compareWith(id) {
    this.other = id;
    this.refresh();
  }

  #set(settings) {
    Object.assign(this.settings, settings);
    this.refresh();
    this.owner.changed();
  }

  /** The runs shown: the own one, and the one it is compared with if their grids are the same. */
  get runs() {
    const other = this.run && this.other ? this.owner.choose(this.other) : null;
    return !this.run ? [] : other && other.rows === this.run.rows && other.columns === this.run.columns ? [this.run, other] : [this.run];
  }

  /** Bring the controls up to date, and draw soon. */
  refresh() {
    const { figure, opacity } = this.settings;
    for (const button of this.buttons) button.setAttribute("aria-pressed", String(button.dataset.figure === figure));
    this.opacity.value = Math.round(opacity * 100);
    const count = this.run?.count ?? 1;
    if (this.images.length !== count) this.images.replaceChildren(...Array.from({ length: count }, (_, i) => new Option(words.imageOf(i + 1, count), i)));
    this.images.value = String(this.image);
    this.images.hidden = count === 1;
    if (document.activeElement !== this.compare) this.#offer();
    this.redraw();
  }

  #offer() {
    const choices = [{ id: "", label: words.compareWith }, ...this.owner.choices()];
    const labels = choices.map(({ label }) => label).join("\n");
    if (labels !== this.offered) {
      this.offered = labels;
      this.compare.replaceChildren(...choices.map(({ id, label }) => new Option(label, id)));
    }
    if (!choices.some(({ id }) => id === this.other)) this.other = "";
    this.compare.value = this.other;
  }

  // ---- cursor ----------------------------------------------------------------------------

  get cursor() {
    return this.hovered ?? this.pinned;
  }

  #hover(spot) {
    if (spot?.cell === this.hovered?.cell && spot?.pane === this.hovered?.pane) return;
    this.hovered = spot;
    this.redraw();
  }

  #pin(spot) {
    this.pinned = spot;
    this.redraw();
  }

  #key(event) {
    const { run, pinned } = this;
    if (!run || event.ctrlKey || event.metaKey || event.altKey) return;
    const { columns, cells } = run;
    const at = pinned?.cell ?? 0;
    const row = at - (at % columns);
    const moves = {
      ArrowLeft: at - 1,
      ArrowRight: at + 1,
      ArrowUp: at - columns,
      ArrowDown: at + columns,
      Home: event.shiftKey ? 0 : row,
      End: event.shiftKey ? cells - 1 : row + columns - 1,
    };
    if (event.key === "Escape" && pinned) this.#pin(null);
    else if (!(event.key in moves)) return;
    else if (!pinned) this.#pin({ pane: 0, cell: 0 });
    else if (moves[event.key] >= 0 && moves[event.key] < cells) this.#pin({ ...pinned, cell: moves[event.key] });
    this.hovered = null;
    event.preventDefault();
    event.stopPropagation(); // arrows move the node otherwise
  }

  // ---- drawing ---------------------------------------------------------------------------

  /** Draw with the next frame. */
  redraw() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  draw() {
    const { runs, settings } = this;
    const maps = runs.map((run) => run.values(settings.figure, this.#imageOf(run)));
    const ends = range(settings.figure, ...maps);
    if (this.stage.clientWidth && this.stage.clientHeight) this.#paint(runs, maps, ends); // a node out of sight has no size
    this.#words(runs, ends);
  }

  /** The image shown of a run; the one compared with may have fewer. */
  #imageOf(run) {
    return Math.min(this.image, run.count - 1);
  }

  #paint(runs, maps, ends) {
    const { canvas, stage, settings, cursor } = this;
    const [width, height] = [stage.clientWidth, stage.clientHeight];
    const zoom = Math.max(1, canvas.getBoundingClientRect().width / (canvas.clientWidth || 1)); // of ComfyUI's canvas
    const pixels = Math.min(MOST_PIXELS, devicePixelRatio * zoom);
    const backing = [Math.round(width * pixels), Math.round(height * pixels)];
    if (canvas.width !== backing[0]) canvas.width = backing[0];
    if (canvas.height !== backing[1]) canvas.height = backing[1];
    const context = canvas.getContext("2d");
    context.setTransform(pixels, 0, 0, pixels, 0, 0);
    const ink = getComputedStyle(stage).color;
    this.panes = runs.length ? layout(width, height, this.run.rows, this.run.columns, runs.length) : [];
    const panes = runs.map((run, i) => ({
      box: this.panes[i],
      rows: run.rows,
      columns: run.columns,
      values: maps[i],
      range: ends,
      ink,
      picture: picture(run, this.#imageOf(run), this.redraw),
      opacity: settings.opacity,
      label: runs.length > 1 ? `${"AB"[i]}: ${words.seed(methodName(run.method), run.seed)}` : "",
      cursor: cursor ? cursor.cell : null,
      together: cursor ? run.together(this.#imageOf(run), cursor.cell) : null,
    }));
    draw(context, { width, height }, panes);
  }

  #words(runs, ends) {
    this.#drawLegend(ends);
    const text = runs.map((run, i) => (runs.length > 1 ? `${"AB"[i]}: ` : "") + summary(run, this.owner.plain(run))).join("\n");
    this.line.textContent = text || words.empty;
    const [run] = runs;
    this.canvas.setAttribute("aria-label", run ? words.keys(words.figures[this.settings.figure][0], run.rows, run.columns) : words.noRun);
    this.tip.hidden = !this.panes.length || !this.cursor;
    if (this.tip.hidden) return;
    const { pane, cell } = this.cursor;
    const tip = describe(runs.map((one) => one.token(this.#imageOf(one), cell)), cell, run.columns);
    if (this.tip.textContent !== tip) this.tip.textContent = tip;
    const box = this.panes[pane] ?? this.panes[0];
    this.tip.classList.toggle("adt-map-tip-left", box.x + ((cell % run.columns) / run.columns) * box.width > this.stage.clientWidth / 2);
    this.tip.classList.toggle("adt-map-tip-low", cell < run.cells / 2);
  }

  #drawLegend([low, high]) {
    const { whole } = FIGURES[this.settings.figure];
    const [, legend] = words.figures[this.settings.figure];
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
    this.legend.replaceChildren(make("span", {}, legend), ...ends[0], ramp, ...ends[1]);
  }
}
