/** The widget's controls, canvas and words for one node. What runs there are and how they are kept is its owner's business. */

import { Caption } from "./caption.js";
import { Compare } from "./compare.js";
import { make } from "./elements.js";
import { Legend } from "./legend.js";
import { FIGURES, range } from "./map_model.js";
import { draw, hit, layout, within, zoomed } from "./map_view.js";
import { picture } from "./pictures.js";
import { Replay, tried } from "./replay.js";
import { saveImage } from "./save_image.js";
import { caption, describe, numbers, sentence, summary, titleOf, tokenNumbers } from "./sentences.js";
import { placeTip } from "./tip.js";
import { words } from "./words.js";

const MOST_PIXELS = 4; // device pixels per CSS pixel, however far the page is zoomed in
const CLOSEST = 16; // times that the map can be enlarged
const WHOLE = { scale: 1, x: 0.5, y: 0.5 };
const DRAGGED = 4; // pixels that a pointer may move in a click

export class MapPanel {
  /**
   * @param {object} owner `choices()` -> [{ id, label }] of runs to compare with, `choose(id)` -> one of them or null,
   *   `differences(run)` -> what the node now has in place of what made the run, see caption.js, `off` -> why it does not run, `changed()` when a setting is to be
   *   remembered, `grow(pixels)` when it needs so much more room, `drawn()` when it shows something else
   * @param {{figure: string, opacity: number, over: boolean, difference: boolean}} settings the last two: see compare.js
   */
  constructor(owner, settings) {
    this.owner = owner;
    this.settings = { figure: "acceptance", opacity: 0.6, over: false, difference: false, ...settings };
    this.run = null;
    this.image = 0;
    this.pinned = null; // the token cursor of keyboard and click: { pane, cell }
    this.hovered = null;
    this.view = WHOLE; // the part of the grid that is shown
    this.panes = [];
    this.frame = 0;
    this.opened = 0; // pixels of the numbers, while they are open
    this.redraw = this.redraw.bind(this);
    this.#build();
    this.#listen();
    new ResizeObserver(this.redraw).observe(this.stage);
    this.refresh();
  }

  // ---- elements --------------------------------------------------------------------------

  #build() {
    this.buttons = Object.keys(FIGURES).map((figure) => {
      const [label, legend] = words.figures[figure];
      return make("button", { type: "button", title: `${words.colourBy} ${legend}`, dataset: { figure } }, label);
    });
    this.images = make("select", { "aria-label": words.image, title: words.image });
    this.canvas = make("canvas", { tabindex: 0, role: "application", "aria-roledescription": "token map" });
    this.tip = make("div", { className: "adt-map-tip", role: "status" });
    this.closer = make("button", { type: "button", "aria-label": words.zoomIn, title: words.zoomIn }, "+");
    this.farther = make("button", { type: "button", "aria-label": words.zoomOut, title: words.zoomOut }, "−");
    this.zoom = make("div", { className: "adt-map-zoom" }, this.closer, this.farther);
    this.compare = new Compare(() => this.owner.choices(), this.settings, {
      chosen: () => this.refresh(),
      turned: () => this.#set({}),
      moved: this.redraw,
    });
    this.caption = new Caption();
    this.replay = new Replay(this.redraw);
    this.stage = make("div", { className: "adt-map-stage" }, this.canvas, this.compare.line, this.zoom, this.replay.said, this.tip);
    this.legend = new Legend();
    this.opacity = make("input", { type: "range", min: 0, max: 100, "aria-label": words.opacity, title: words.opacity });
    this.line = make("div", { className: "adt-map-line" });
    this.sentence = make("summary", { title: words.numbers });
    this.table = make("table", { "aria-label": words.numbers });
    this.details = make("details", { className: "adt-map-details" }, this.sentence, make("div", { tabindex: 0, dataset: { captureWheel: "true" } }, this.table));
    this.text = make("div", { className: "adt-map-text", dataset: { captureWheel: "true" } }, this.line, this.details);
    const figures = make("div", { className: "adt-map-figures", role: "group", "aria-label": words.colourBy }, ...this.buttons);
    this.element = make(
      "div",
      { className: "adt-map", role: "group", "aria-label": words.map },
      make("div", { className: "adt-map-bar" }, figures, this.images),
      this.caption.element,
      this.stage,
      make("div", { className: "adt-map-bar adt-map-replay" }, this.replay.button, this.replay.slider, this.compare.select, this.compare.button, this.compare.apart),
      make("div", { className: "adt-map-bar" }, make("label", { className: "adt-map-opacity" }, words.overlay, this.opacity), this.legend.element),
      this.text,
    );
  }

  #listen() {
    for (const button of this.buttons) button.onclick = () => this.#set({ figure: button.dataset.figure });
    this.images.onchange = () => this.showImage(Number(this.images.value));
    this.closer.onclick = () => this.#zoom(2);
    this.farther.onclick = () => this.#zoom(0.5);
    this.opacity.oninput = () => this.#set({ opacity: this.opacity.value / 100 });
    this.details.ontoggle = () => this.#makeRoom();
    this.element.onpointerenter = () => this.compare.offer(); // other nodes may have runs by now
    const { canvas } = this;
    canvas.onpointerdown = (event) => event.button === 0 && this.#grab(event);
    canvas.onpointermove = (event) => this.#move(event);
    canvas.onpointerup = canvas.onpointercancel = () => (this.grabbed = null);
    canvas.onpointerleave = () => this.#hover(null);
    canvas.onclick = () => this.dragged || this.#pin(this.hovered);
    canvas.ondblclick = ({ offsetX, offsetY }) => this.#zoom(2, this.#pointAt(offsetX, offsetY));
    canvas.onkeydown = (event) => this.#key(event);
  }

  // ---- what is shown ---------------------------------------------------------------------

  /** Show another run, or more of the same. */
  show(run) {
    if (this.run && run && run.grid !== this.run.grid) this.pinned = null;
    if (run?.grid !== this.run?.grid) this.view = WHOLE;
    this.run = run;
    if (run && this.image >= run.count) this.image = 0;
    this.refresh();
  }

  showImage(image) {
    this.image = image;
    this.refresh();
  }

  #set(settings) {
    Object.assign(this.settings, settings);
    this.refresh();
    this.owner.changed();
  }

  /** The runs shown: the own one, and the one it is compared with if their grids are the same. */
  get runs() {
    const other = this.run && this.compare.other ? this.owner.choose(this.compare.other) : null;
    return !this.run ? [] : other && other.grid === this.run.grid ? [this.run, other] : [this.run];
  }

  /** Bring the controls up to date, and draw soon. */
  refresh() {
    const { figure, opacity } = this.settings;
    this.element.classList.toggle("adt-map-idle", !this.run);
    this.element.classList.toggle("adt-map-two", this.runs.length > 1);
    for (const button of this.buttons) button.setAttribute("aria-pressed", String(button.dataset.figure === figure));
    this.opacity.value = Math.round(opacity * 100);
    const count = this.run?.count ?? 1;
    if (this.images.length !== count) this.images.replaceChildren(...Array.from({ length: count }, (_, i) => new Option(words.imageOf(i + 1, count), i)));
    this.images.value = String(this.image);
    this.images.hidden = count === 1;
    if (document.activeElement !== this.compare.select) this.compare.offer();
    this.replay.follow(this.run, this.image);
    this.redraw();
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
    const zooms = { "+": 2, "=": 2, "-": 0.5, 0: 0 };
    if (event.key === "Escape" && pinned) this.#pin(null);
    else if (event.key in zooms) this.#zoom(zooms[event.key], pinned ? this.#middleOf(pinned.cell) : undefined);
    else if (!(event.key in moves)) return;
    else if (!pinned) this.#pin({ pane: 0, cell: 0 });
    else if (moves[event.key] >= 0 && moves[event.key] < cells) this.#follow({ ...pinned, cell: moves[event.key] });
    this.hovered = null;
    event.preventDefault();
    event.stopPropagation(); // arrows move the node otherwise
  }

  // ---- zoom ------------------------------------------------------------------------------

  /** Enlarge the map so many times, about a point of the grid; 0 shows the whole of it. */
  #zoom(times, point = this.view) {
    const scale = Math.min(Math.max(this.view.scale * times, 1), CLOSEST);
    this.view = within({ scale, x: point.x, y: point.y });
    this.redraw();
  }

  #grab({ offsetX, offsetY, pointerId }) {
    this.dragged = false;
    if (this.view.scale === 1) return;
    this.grabbed = { x: offsetX, y: offsetY, view: this.view };
    this.canvas.setPointerCapture(pointerId);
  }

  #move({ offsetX, offsetY }) {
    const { grabbed } = this;
    if (!grabbed) return this.#hover(hit(this.panes, this.run?.rows, this.run?.columns, offsetX, offsetY));
    const [box] = this.panes;
    this.dragged ||= Math.hypot(offsetX - grabbed.x, offsetY - grabbed.y) > DRAGGED;
    const { scale, x, y } = grabbed.view;
    this.view = within({ scale, x: x - (offsetX - grabbed.x) / box.width, y: y - (offsetY - grabbed.y) / box.height });
    this.redraw();
  }

  /** A point of the stage as a point of the grid, 0..1. */
  #pointAt(x, y) {
    const box = this.panes.find(({ clip }) => x >= clip.x && x < clip.x + clip.width) ?? this.panes[0];
    return box ? { x: (x - box.x) / box.width, y: (y - box.y) / box.height } : this.view;
  }

  #middleOf(cell) {
    const { rows, columns } = this.run;
    return { x: ((cell % columns) + 0.5) / columns, y: (Math.floor(cell / columns) + 0.5) / rows };
  }

  /** Pin a token, and bring it into view. */
  #follow(spot) {
    const { x, y } = this.#middleOf(spot.cell);
    const [dx, dy, half] = [x - this.view.x, y - this.view.y, 0.5 / this.view.scale];
    if (Math.abs(dx) > half || Math.abs(dy) > half) this.view = within({ scale: this.view.scale, x, y });
    this.#pin(spot);
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
    const shown = this.#shown();
    if (this.stage.clientWidth && this.stage.clientHeight) this.#paint(shown); // a node out of sight has no size
    this.#words(shown);
    this.owner.drawn();
  }

  /** What is to be drawn: the runs, up to which round of each, the figure, its values, and the ends of the scale. */
  #shown() {
    const { runs } = this;
    const figures = runs.map((run) => run.figureShown(this.settings.figure));
    const figure = figures.every((one) => one === figures[0]) ? (figures[0] ?? this.settings.figure) : this.settings.figure;
    const untils = this.#moment(runs);
    runs.forEach((run, i) => run.look(this.#imageOf(run), untils[i]));
    const none = (run) => new Float32Array(run.cells).fill(NaN); // plain decoding beside drafts: its picture alone
    const values = (run, i, until) => (figures[i] === figure ? run.values(figure, this.#imageOf(run), until) : none(run));
    const maps = runs.map((run, i) => values(run, i, untils[i]));
    const ends = range(figure, ...(untils[0] === Infinity ? maps : runs.map((run, i) => values(run, i))));
    return { runs, untils, figure, maps, ends };
  }

  /** The rounds that are tried at the moment of the replay; Infinity while there is none. */
  #moment(runs) {
    const { round } = this.replay;
    if (round === null || round === undefined) return runs.map(() => Infinity);
    const now = runs[0].clock[round - 1] ?? runs[0].prefill;
    return runs.map((run, i) => (i ? run.roundAt(now) : round));
  }

  /** The image shown of a run; the one compared with may have fewer. */
  #imageOf(run) {
    return Math.min(this.image, run.count - 1);
  }

  #paint(shown) {
    const { canvas, stage } = this;
    const [width, height] = [stage.clientWidth, stage.clientHeight];
    const zoom = Math.max(1, canvas.getBoundingClientRect().width / (canvas.clientWidth || 1)); // of ComfyUI's canvas
    const pixels = Math.min(MOST_PIXELS, devicePixelRatio * zoom);
    const backing = [Math.round(width * pixels), Math.round(height * pixels)];
    if (canvas.width !== backing[0]) canvas.width = backing[0];
    if (canvas.height !== backing[1]) canvas.height = backing[1];
    const context = canvas.getContext("2d");
    context.setTransform(pixels, 0, 0, pixels, 0, 0);
    const boxes = shown.runs.length ? layout(width, height, this.run.rows, this.run.columns, shown.runs.length, this.compare.together) : [];
    const clips = this.compare.clips(boxes);
    this.panes = boxes.map((box, i) => ({ ...zoomed(box, this.view), clip: clips[i] }));
    draw(context, { width, height }, this.compare.drawn(this.#panes(shown, this.panes, this.cursor, getComputedStyle(stage).color)));
  }

  #panes({ runs, untils, maps, ends }, boxes, cursor, ink) {
    return runs.map((run, i) => {
      const image = this.#imageOf(run);
      const replayed = untils[i] !== Infinity;
      const later = replayed ? [...run.roundOf[image].keys()].filter((cell) => run.roundOf[image][cell] >= untils[i]) : [];
      const hidden = [...later, ...run.pending(image)];
      return {
        box: boxes[i],
        rows: run.rows,
        columns: run.columns,
        values: maps[i],
        range: ends,
        ink,
        picture: picture(run, image, this.redraw),
        opacity: this.settings.opacity,
        label: runs.length > 1 ? `${"AB"[i]}: ${titleOf(run, runs[1 - i])}` : "",
        cursor: cursor ? cursor.cell : null,
        together: cursor ? run.together(image, cursor.cell) : null,
        hidden: hidden.length ? hidden : null,
        tried: replayed ? tried(run, image, untils[i]) : [],
      };
    });
  }

  /** Offer what is shown as an image file. */
  async save() {
    const shown = this.#shown();
    if (!shown.runs.length) return;
    const lines = [...shown.runs.map((run) => caption(run)), ...[sentence(this.run, this.#imageOf(this.run))].filter(Boolean)];
    const { rows, columns, seed } = this.run;
    const scale = { figure: shown.figure, range: shown.ends };
    await saveImage(`acceptance-map-seed-${seed}.png`, { rows, columns, count: shown.runs.length }, (clips) => this.panesIn(clips), scale, lines);
  }

  /** What is shown, whole, in these boxes. */
  panesIn(clips) {
    return this.#panes(this.#shown(), clips.map((clip) => ({ ...clip, clip })), null, "#eee");
  }

  // ---- words -----------------------------------------------------------------------------

  #words({ runs, figure, ends }) {
    const [run] = runs;
    this.legend.show(figure, ends, runs.some((one) => one.state !== "done"));
    const text = runs.map((one, i) => (runs.length > 1 ? `${"AB"[i]}: ` : "") + summary(one, i === 0 ? runs[1] : null)).join("\n");
    say(this.line, text || words.empty);
    this.recaption();
    this.canvas.setAttribute("aria-label", run ? words.keys(words.figures[figure][0], run.rows, run.columns) : words.noRun);
    this.zoom.hidden = !run;
    this.farther.disabled = this.view.scale === 1;
    this.closer.disabled = this.view.scale === CLOSEST;
    const tokens = this.cursor ? runs.map((one) => one.token(this.#imageOf(one), this.cursor.cell)) : [];
    this.#explain(run, tokens);
    this.tip.hidden = !this.panes.length || !this.cursor;
    if (this.tip.hidden) return;
    const { pane, cell } = this.cursor;
    say(this.tip, describe(tokens, cell, run.columns));
    placeTip(this.tip, this.stage, this.panes[pane] ?? this.panes[0], run, run.together(this.#imageOf(run), cell), cell);
  }

  /** Say of which image the map is, and what its node has now in place of what made it. */
  recaption() {
    const { run, owner } = this;
    this.caption.show(run, run && run.state !== "running" ? owner.differences(run) : [], owner.off);
    this.element.classList.toggle("adt-map-off", owner.off !== "");
  }

  /** The sentence, once the run is over, and below it the numbers if they are asked for. */
  #explain(run, tokens) {
    const over = run && run.state !== "running";
    this.details.hidden = !over;
    if (!over) return;
    const image = this.#imageOf(run);
    say(this.sentence, sentence(run, image) || words.numbers);
    if (!this.details.open) return;
    const rows = [...(this.cursor ? tokenNumbers(tokens, this.cursor.cell) : []), ...numbers(run, image)];
    if (rows.join() === this.tabled) return;
    this.tabled = rows.join();
    this.table.replaceChildren(...rows.map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, String(value)))));
  }

  /** The numbers take no room from the map: the node becomes higher by them, and lower again. */
  #makeRoom() {
    this.draw();
    const height = this.details.open ? this.text.offsetHeight - parseFloat(getComputedStyle(this.text).minHeight) : 0;
    this.owner.grow(height - this.opened);
    this.opened = height;
  }
}

/** Set a text only where it differs: a page that changes is laid out anew. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
