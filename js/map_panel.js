/**
 * HTML element of a node's acceptance map: controls, canvas and texts. Its owner is a NodeMap, which stores the runs.
 *
 * A run is one decoding of a batch of images, see map_model.js. A figure is a quantity by which tokens are coloured.
 */

import { Caption } from "./caption.js";
import { Compare } from "./compare.js";
import { make, setText } from "./elements.js";
import { bitmapOf } from "./images.js";
import { Legend } from "./legend.js";
import { FIGURES, range } from "./map_model.js";
import { draw, hit, imagesAcross, layout, sheetBoxes, within, zoomed } from "./map_view.js";
import { draftTree, Replay } from "./replay.js";
import { saveReplay } from "./replay_file.js";
import { saveImage } from "./save_image.js";
import { caption, describe, headline, numbers, sentence, summary, titleOf, tokenNumbers } from "./sentences.js";
import { texts } from "./texts.js";
import { placeTip } from "./tooltip.js";

const MAX_PIXELS = 4; // maximum number of device pixels per CSS pixel, for a page or canvas that is zoomed in
const MAX_ZOOM = 16;
const UNZOOMED = { scale: 1, x: 0.5, y: 0.5 };
const ALL = "all"; // value of the list of images that shows the contact sheet
const COMPARISON_HEIGHT = 60; // pixels of the labels, the controls and the additional text of two runs
const ABREAST_HEIGHT = 30; // the same in the node Compare, which must fit a small screen in Nodes 2.0
const MAX_CLICK = 4; // pixels; if the pointer moves further while it is pressed, it drags the map

export class MapPanel {
  /**
   * @param {import("./node_map.js").NodeMap} owner the node's map; see "interface for the panel" there
   * @param {{cells: boolean, opacity: number}} settings initial settings: whether to draw the cells over the image
   */
  constructor(owner, settings) {
    this.owner = owner;
    this.settings = { figure: "acceptance", cells: false, over: false, difference: false, ...settings };
    this.run = null;
    this.image = 0;
    this.isSheet = false; // whether all images of the batch are shown
    this.pinned = null; // token that the user has selected by keyboard or click: { pane, cell }
    this.hovered = null; // token under the pointer: { pane, cell }
    this.view = UNZOOMED; // part of the grid that is shown
    this.panes = []; // boxes of the grids, see map_view.js
    this.frame = 0; // id of the requested animation frame, 0 for none
    this.detailsHeight = 0; // additional height in pixels of the details while they are open
    this.captionHeight = 0; // additional height in pixels of a message while it is open
    this.#buildMap();
    this.#buildControls();
    this.#buildElement();
    this.#listen();
    new ResizeObserver(this.redraw).observe(this.stage);
    this.refresh();
  }

  // ---- elements ----------------------------------------------------------------------------

  #buildMap() {
    this.canvas = make("canvas", { tabindex: 0, role: "application", "aria-roledescription": "token map" });
    this.tip = make("div", { className: "adt-map-tip", role: "status" });
    const button = (title, label) => make("button", { type: "button", "aria-label": title, title }, label);
    this.zoomInButton = button(texts.zoomIn, "+");
    this.zoomOutButton = button(texts.zoomOut, "−");
    this.zoom = make("div", { className: "adt-map-zoom" }, this.zoomInButton, this.zoomOutButton);
    this.compare = new Compare(() => this.owner.choices(), this.settings, {
      chosen: () => this.#resizeForComparison(),
      turned: () => this.#set({}),
      moved: this.redraw,
    });
    this.replay = new Replay(this.redraw);
    const layers = [this.canvas, this.compare.line, this.zoom, this.tip];
    this.stage = make("div", { className: "adt-map-stage" }, ...layers);
  }

  #buildControls() {
    this.buttons = Object.keys(FIGURES).map((figure) => {
      const [label, legend] = texts.figures[figure];
      return make("button", { type: "button", title: `${texts.colourBy} ${legend}`, dataset: { figure } }, label);
    });
    this.images = make("select", { "aria-label": texts.image, title: texts.image });
    this.caption = new Caption(() => this.#resizeForCaption());
    this.legend = new Legend();
    const { opacity: title } = texts;
    const slider = { type: "range", min: 0, max: 100, "aria-label": title, title };
    this.opacity = make("input", { className: "adt-map-opacity", ...slider });
    this.cells = make("input", { type: "checkbox", "aria-label": texts.cells });
    this.line = make("div", { className: "adt-map-line" });
    this.sentence = make("summary", { title: texts.numbers });
    this.table = make("table", { "aria-label": texts.numbers });
    const scrolled = make("div", { tabindex: 0, dataset: { captureWheel: "true" } }, this.table);
    this.details = make("details", { className: "adt-map-details" }, this.sentence, scrolled);
    const text = { className: "adt-map-text", dataset: { captureWheel: "true" } };
    const measure = { type: "button", className: "adt-link adt-map-measure", title: texts.measureTitle };
    this.measure = make("button", measure, texts.measure);
    this.about = make("div", {}, this.line, " ", this.measure);
    this.text = make("div", text, this.replay.label, this.about, this.details);
  }

  #buildElement() {
    const { replay, compare } = this;
    const bar = (name, ...children) => make("div", { className: `adt-map-bar ${name}`.trim() }, ...children);
    const group = { className: "adt-map-figures", role: "group", "aria-label": texts.colourBy };
    const cells = make("label", { className: "adt-map-cells", title: texts.cells }, this.cells, texts.overlay);
    this.element = make(
      "div",
      { className: "adt-map", role: "group", "aria-label": texts.map },
      bar("", make("div", group, ...this.buttons), this.images),
      this.caption.element,
      this.stage,
      bar("adt-map-replay", replay.button, replay.slider, compare.select, compare.button, compare.apart),
      bar("", cells, this.opacity, this.legend.element),
      this.text,
    );
  }

  #listen() {
    for (const button of this.buttons) button.onclick = () => this.#set({ figure: button.dataset.figure, cells: true });
    this.images.onchange = () => (this.images.value === ALL ? this.showSheet() : this.showImage(+this.images.value));
    this.zoomInButton.onclick = () => this.#zoom(2);
    this.zoomOutButton.onclick = () => this.#zoom(0.5);
    this.measure.onclick = () => this.owner.measure();
    this.cells.onchange = () => this.#set({ cells: this.cells.checked });
    this.opacity.oninput = () => this.#set({ opacity: this.opacity.value / 100, cells: true });
    this.details.ontoggle = () => this.#resizeForDetails();
    this.element.onpointerenter = () => this.compare.offer(); // other nodes may have new runs
    const { canvas } = this;
    const release = () => {
      this.grabbed = null;
    };
    canvas.onpointerdown = (event) => event.button === 0 && this.#grab(event);
    canvas.onpointermove = (event) => this.#move(event);
    canvas.onpointerup = release;
    canvas.onpointercancel = release;
    canvas.onpointerleave = () => this.#hover(null);
    canvas.onclick = (event) => this.isDragged || this.#click(event);
    canvas.ondblclick = ({ offsetX, offsetY }) => this.#zoom(2, this.#pointAt(offsetX, offsetY));
    canvas.onkeydown = (event) => this.#key(event);
  }

  // ---- runs and images -----------------------------------------------------------------------

  /** Show another run, or new rounds of the current one. */
  show(run) {
    if (this.run && run && run.grid !== this.run.grid) this.#pin(null);
    if (run?.grid !== this.run?.grid) this.view = UNZOOMED;
    this.run = run;
    if (run && this.image >= run.count) this.image = 0;
    this.isSheet &&= run?.count > 1;
    this.refresh();
  }

  showImage(image) {
    this.image = image;
    this.isSheet = false;
    this.refresh();
  }

  /** Show all images of the batch. A click on an image opens it. */
  showSheet() {
    this.isSheet = true;
    this.view = UNZOOMED;
    this.hovered = null;
    this.#pin(null);
    this.refresh();
  }

  #set(settings) {
    Object.assign(this.settings, settings);
    this.refresh();
    this.owner.changed();
  }

  /** The runs that are shown: the node's own run, and the run to compare with if both have the same grid. */
  get runs() {
    if (!this.run) return [];
    const other = this.compare.other && !this.isSheet ? this.owner.choose(this.compare.other) : null;
    return other && other.grid === this.run.grid ? [this.run, other] : [this.run];
  }

  /** The additional height in pixels that a second run needs; the node Compare always has one. */
  get comparisonHeight() {
    if (this.run?.abreast > 1) return ABREAST_HEIGHT;
    return this.runs.length > 1 ? COMPARISON_HEIGHT : 0;
  }

  /** What is drawn: the runs with their images, or in a contact sheet all images of the run. */
  get #subjects() {
    if (!this.isSheet) return this.runs.map((run) => ({ run, image: this.#imageOf(run) }));
    return Array.from({ length: this.run.count }, (_, image) => ({ run: this.run, image }));
  }

  /** Update the controls, and draw with the next frame. */
  refresh() {
    const { figure, cells, opacity } = this.settings;
    this.element.classList.toggle("adt-map-idle", !this.run);
    this.element.classList.toggle("adt-map-two", this.runs.length > 1);
    this.element.style.setProperty("--adt-comparison", `${this.comparisonHeight}px`);
    for (const button of this.buttons) {
      button.setAttribute("aria-pressed", String(cells && button.dataset.figure === figure));
    }
    this.cells.checked = cells;
    this.opacity.value = Math.round(opacity * 100);
    this.#refreshImages();
    if (document.activeElement !== this.compare.select) this.compare.offer();
    this.replay.follow(this.run, this.image);
    this.redraw();
  }

  #refreshImages() {
    const count = this.run?.count ?? 1;
    if (this.images.length !== count + 1) {
      const options = Array.from({ length: count }, (_, i) => new Option(texts.imageOf(i + 1, count), String(i)));
      this.images.replaceChildren(new Option(texts.allImages(count), ALL), ...options);
    }
    this.images.value = this.isSheet ? ALL : String(this.image);
    this.canvas.classList.toggle("adt-map-sheet", this.isSheet);
    this.images.hidden = count === 1;
  }

  // ---- cursor ------------------------------------------------------------------------------

  get cursor() {
    return this.hovered ?? this.pinned;
  }

  #hover(spot) {
    if (spot?.cell === this.hovered?.cell && spot?.pane === this.hovered?.pane) return;
    this.hovered = spot;
    this.redraw();
  }

  /**
   * Pin the token under the pointer. Another click on it removes the pin, so a double-click only zooms. In a contact
   * sheet, open the image under the pointer.
   */
  #click({ offsetX, offsetY }) {
    if (this.isSheet) {
      const found = this.#tokenAt(offsetX, offsetY);
      return found && this.showImage(found.pane);
    }
    const { hovered, pinned } = this;
    const isSame = hovered?.cell === pinned?.cell && hovered?.pane === pinned?.pane;
    this.#pin(isSame ? null : hovered);
  }

  /** Remove the pin after a press outside of the panel. */
  #pressed = ({ target }) => this.element.contains(target) || this.#pin(null);

  #pin(spot) {
    if (spot) addEventListener("pointerdown", this.#pressed, true);
    else removeEventListener("pointerdown", this.#pressed, true);
    this.pinned = spot;
    this.redraw();
  }

  #key(event) {
    const { run, pinned } = this;
    if (!run || this.isSheet || event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = this.#moves(event.shiftKey);
    const zooms = { "+": 2, "=": 2, "-": 0.5, 0: 0 };
    if (event.key === "Escape" && pinned) this.#pin(null);
    else if (event.key in zooms) this.#zoom(zooms[event.key], pinned ? this.#middleOf(pinned.cell) : undefined);
    else if (!(event.key in moves)) return;
    else if (!pinned) this.#pin({ pane: 0, cell: 0 });
    else if (moves[event.key] >= 0 && moves[event.key] < run.cells) this.#follow({ ...pinned, cell: moves[event.key] });
    this.hovered = null;
    event.preventDefault();
    event.stopPropagation(); // ComfyUI moves the node by arrow keys
  }

  /** The cell to which each key moves the cursor. */
  #moves(isShifted) {
    const { columns, cells } = this.run;
    const at = this.pinned?.cell ?? 0;
    const row = at - (at % columns);
    return {
      ArrowLeft: at - 1,
      ArrowRight: at + 1,
      ArrowUp: at - columns,
      ArrowDown: at + columns,
      Home: isShifted ? 0 : row,
      End: isShifted ? cells - 1 : row + columns - 1,
    };
  }

  // ---- zoom --------------------------------------------------------------------------------

  /**
   * Change the zoom, and move a point of the grid to the middle of the visible part.
   *
   * @param {number} factor the zoom is multiplied by this number; 0 resets the zoom to 1
   * @param {{x: number, y: number}} point point of the grid, 0..1
   */
  #zoom(factor, point = this.view) {
    if (this.isSheet) return;
    const scale = Math.min(Math.max(this.view.scale * factor, 1), MAX_ZOOM);
    this.view = within({ scale, x: point.x, y: point.y });
    this.redraw();
  }

  #grab({ offsetX, offsetY, pointerId }) {
    this.isDragged = false;
    if (this.view.scale === 1) return;
    this.grabbed = { x: offsetX, y: offsetY, view: this.view };
    this.canvas.setPointerCapture(pointerId);
  }

  #move({ offsetX, offsetY }) {
    const { grabbed } = this;
    if (this.isSheet) return;
    if (!grabbed) return this.#hover(this.#tokenAt(offsetX, offsetY));
    const [box] = this.panes;
    const dx = offsetX - grabbed.x;
    const dy = offsetY - grabbed.y;
    this.isDragged ||= Math.hypot(dx, dy) > MAX_CLICK;
    const { scale, x, y } = grabbed.view;
    this.view = within({ scale, x: x - dx / box.width, y: y - dy / box.height });
    this.redraw();
  }

  /** The pane and the cell at a point of the stage, or null. */
  #tokenAt(x, y) {
    return this.run && hit(this.panes, this.run.rows, this.run.columns, x, y);
  }

  /** Convert a point of the stage, in CSS pixels, to a point of the grid, 0..1. */
  #pointAt(x, y) {
    const box = this.panes.find(({ clip }) => x >= clip.x && x < clip.x + clip.width) ?? this.panes[0];
    return box ? { x: (x - box.x) / box.width, y: (y - box.y) / box.height } : this.view;
  }

  #middleOf(cell) {
    const { rows, columns } = this.run;
    return { x: ((cell % columns) + 0.5) / columns, y: (Math.floor(cell / columns) + 0.5) / rows };
  }

  /** Pin a token, and move the view to it if it is not visible. */
  #follow(spot) {
    const { x, y } = this.#middleOf(spot.cell);
    const { scale } = this.view;
    const half = 0.5 / scale;
    const isVisible = Math.abs(x - this.view.x) <= half && Math.abs(y - this.view.y) <= half;
    if (!isVisible) this.view = within({ scale, x, y });
    this.#pin(spot);
  }

  // ---- drawing -----------------------------------------------------------------------------

  /** Draw with the next frame. This is a property, because it is passed on as a callback. */
  redraw = () => {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  };

  draw() {
    const shown = this.#shown();
    if (this.stage.clientWidth && this.stage.clientHeight) this.#paint(shown); // a hidden node has no size
    this.#write(shown);
    this.owner.drawn();
  }

  /**
   * The data to draw:
   *
   * - `subjects`: the runs with their images;
   * - `untils`: for each of them, the index of the current round of the replay, or Infinity without a replay. The tokens of
   *   earlier rounds are drawn, and the draft tree of the current round;
   * - `figure`, and `maps`: the values of the figure for each of them;
   * - `ends`: the values at both ends of the colour scale.
   */
  #shown(round = this.replay.round, subjects = this.#subjects) {
    const runs = subjects.map(({ run }) => run);
    const figures = runs.map((run) => run.figureShown(this.settings.figure));
    const isSame = figures.length > 0 && figures.every((one) => one === figures[0]);
    const figure = isSame ? figures[0] : this.settings.figure;
    const untils = this.#untils(runs, round);
    subjects.forEach(({ run, image }, i) => {
      run.look(image, untils[i]);
    });
    // Plain decoding, compared with a run with drafts, has no values of the figure. Show only its image.
    const none = (run) => new Float32Array(run.cells).fill(NaN);
    const values = ({ run, image }, i, until) => (figures[i] === figure ? run.values(figure, image, until) : none(run));
    const maps = subjects.map((subject, i) => values(subject, i, untils[i]));
    const ends = range(figure, ...(untils[0] === Infinity ? maps : subjects.map((one, i) => values(one, i))));
    return { subjects, untils, figure, maps, ends };
  }

  /** For each run, the index of the current round of the replay; Infinity without a replay. */
  #untils(runs, round) {
    if (round === null || round === undefined) return runs.map(() => Infinity);
    const time = runs[0].clock[round - 1] ?? runs[0].prefill;
    return runs.map((run, i) => (i ? run.roundAt(time) : round));
  }

  /** The index of the image of a run that is shown. The run to compare with may have fewer images than the own run. */
  #imageOf(run) {
    return Math.min(this.image, run.count - 1);
  }

  #paint(shown) {
    const { stage, compare } = this;
    const { clientWidth: width, clientHeight: height } = stage;
    const context = this.#context(width, height);
    const boxes = this.boxes(width, height, compare.isTogether);
    const clips = compare.clips(this.isSheet ? [] : boxes);
    this.panes = boxes.map((box, i) => ({ ...zoomed(box, this.view), clip: clips[i] ?? box }));
    const panes = this.#panes(shown, this.panes, this.cursor, getComputedStyle(stage).color);
    draw(context, { width, height }, this.isSheet ? panes : compare.panes(panes));
  }

  /** The boxes of what is drawn, in a box of this size. @param {boolean} isTogether whether to overlay two runs */
  boxes(width, height, isTogether = false) {
    if (!this.run) return [];
    const { rows, columns, count } = this.run;
    if (!this.isSheet) return layout(width, height, rows, columns, this.runs.length, isTogether);
    return sheetBoxes(width, height, rows, columns, count, imagesAcross(width, height, rows, columns, count));
  }

  /** The drawing context of the canvas. Its bitmap gets as many pixels as the canvas occupies on the screen. */
  #context(width, height) {
    const { canvas } = this;
    const zoom = Math.max(1, canvas.getBoundingClientRect().width / (canvas.clientWidth || 1));
    const pixels = Math.min(MAX_PIXELS, devicePixelRatio * zoom);
    const w = Math.round(width * pixels);
    const h = Math.round(height * pixels);
    if (canvas.width !== w) canvas.width = w; // an assignment clears the canvas
    if (canvas.height !== h) canvas.height = h;
    const context = canvas.getContext("2d");
    context.setTransform(pixels, 0, 0, pixels, 0, 0);
    return context;
  }

  #panes({ subjects, untils, maps, ends }, boxes, cursor, ink) {
    const isCompared = subjects.length > 1 && !this.isSheet;
    return subjects.map(({ run, image }, i) => {
      const hidden = [...this.#later(run, image, untils[i]), ...run.pending(image)];
      return {
        box: boxes[i],
        rows: run.rows,
        columns: run.columns,
        values: maps[i],
        range: ends,
        ink,
        bitmap: bitmapOf(run, image, this.redraw),
        opacity: this.settings.cells ? this.settings.opacity : 0, // without an image, the cells are opaque
        label: isCompared ? `${"AB"[i]}: ${titleOf(run, subjects[1 - i].run)}` : "",
        cursor: cursor ? cursor.cell : null,
        together: cursor ? run.together(image, cursor.cell) : null,
        hidden: hidden.length ? hidden : null,
        kept: run.kept.isMask ? run.keptCells(image) : null,
        tree: untils[i] === Infinity || this.isSheet ? [] : draftTree(run, image, untils[i]),
      };
    });
  }

  /** The cells of the tokens that are generated in round `until` or later. */
  #later(run, image, until) {
    if (until === Infinity) return [];
    return [...run.roundOf[image].keys()].filter((cell) => run.roundOf[image][cell] >= until);
  }

  /** Download the shown maps as an image file. */
  async save() {
    const { subjects, figure, ends } = this.#shown();
    if (!subjects.length) return;
    const about = this.isSheet ? "" : sentence(this.run, this.#imageOf(this.run));
    const lines = [...this.runs.map((run) => caption(run)), ...(about ? [about] : [])];
    const { rows, columns, seed } = this.run;
    const across = this.isSheet ? imagesAcross(1, 1, rows, columns, subjects.length) : subjects.length;
    const grids = { rows, columns, across, down: Math.ceil(subjects.length / across) };
    const place = (width, height) => withCells(this.boxes(width, height));
    const name = `acceptance-map-seed-${seed}.png`;
    const { opacity } = this.settings;
    const withCells = (boxes) => this.panesIn(boxes).map((pane) => ({ ...pane, opacity }));
    await saveImage(name, grids, place, { figure, range: ends }, lines);
  }

  /**
   * Download the replay of the shown image as a file, with the image and its map side by side.
   *
   * @param {string} kind one of `KINDS` in replay_file.js
   */
  async saveReplay(kind) {
    const { run } = this;
    const rounds = run.roundsOf(this.#imageOf(run));
    const subjects = [{ run, image: this.#imageOf(run) }];
    const paint = (context, size, [left, right], share) => {
      const shown = this.#shown(share < 1 ? rounds[Math.floor(share * rounds.length)] : null, subjects);
      const [pane] = this.#panes(shown, [left], null, "#eee");
      const map = { ...pane, box: right, bitmap: null };
      draw(context, size, [{ ...pane, opacity: 0, values: pane.values.map(() => NaN), label: "" }, map]);
    };
    const title = [caption(run), headline(run)].join(" ");
    await saveReplay(`replay-seed-${run.seed}`, kind, run, paint, title);
    this.redraw();
  }

  /** The panes to draw in these boxes, unzoomed and without a cursor. */
  panesIn(boxes) {
    const clipped = boxes.map((box) => ({ ...box, clip: box }));
    return this.#panes(this.#shown(), clipped, null, "#eee");
  }

  // ---- texts -------------------------------------------------------------------------------

  #write({ figure, ends }) {
    const { runs, run } = this;
    const isPending = runs.some((one) => one.state !== "done");
    this.legend.show(figure, ends, isPending);
    const isBare = !this.settings.cells && runs.every((one) => bitmapOf(one, this.#imageOf(one), this.redraw));
    this.legend.element.style.visibility = isBare ? "hidden" : "";
    const line = (one, i) => (runs.length > 1 ? `${"AB"[i]}: ` : "") + summary(one, runs[1 - i] ?? null, i === 1);
    setText(this.line, this.owner.preparing || runs.map(line).join("\n") || texts.empty);
    this.about.hidden = !this.replay.label.hidden; // the label takes its place
    this.measure.hidden = run?.state !== "done" || run.plain || !this.owner.canMeasure();
    this.refreshCaption();
    const keys = run ? texts.keys(texts.figures[figure][0], run.rows, run.columns) : texts.noRun;
    this.canvas.setAttribute("aria-label", keys);
    this.zoom.hidden = !run || this.isSheet;
    this.zoomOutButton.disabled = this.view.scale === 1;
    this.zoomInButton.disabled = this.view.scale === MAX_ZOOM;
    const tokens = this.cursor ? runs.map((one) => one.token(this.#imageOf(one), this.cursor.cell)) : [];
    this.#writeDetails(run, tokens);
    this.#showTip(run, tokens);
  }

  #showTip(run, tokens) {
    this.tip.hidden = !this.panes.length || !this.cursor;
    if (this.tip.hidden) return;
    const { pane, cell } = this.cursor;
    setText(this.tip, describe(tokens, cell, run.columns));
    const together = run.together(this.#imageOf(run), cell);
    placeTip(this.tip, this.stage, this.panes[pane] ?? this.panes[0], run, together, cell);
  }

  /** Show the seed and method that made the image, and the values of the node that have changed since the run. */
  refreshCaption() {
    const { run, owner } = this;
    this.caption.show(run, run && run.state !== "running" ? owner.differences(run) : [], owner.off);
    this.element.classList.toggle("adt-map-off", owner.off !== "");
  }

  /** After a run, show a sentence about it. If the user has opened the details, also update the table. */
  #writeDetails(run, tokens) {
    this.details.hidden = !run || run.state === "running";
    if (this.details.hidden) return;
    const image = this.#imageOf(run);
    setText(this.sentence, sentence(run, image) || texts.numbers);
    if (!this.details.open) return;
    const rows = [...(this.cursor ? tokenNumbers(tokens, this.cursor.cell) : []), ...numbers(run, image)];
    if (rows.join() === this.tableKey) return;
    this.tableKey = rows.join();
    const row = (/** @type {any[]} */ [name, value]) =>
      make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, String(value)));
    this.table.replaceChildren(...rows.map(row));
  }

  /** Make the node higher while a long message is open, so that the map keeps its size. */
  #resizeForCaption() {
    const height = this.caption.addedHeight;
    const added = height - this.captionHeight;
    this.captionHeight = height;
    if (added) this.#grow(added);
  }

  #grow(pixels) {
    this.element.style.setProperty("--adt-added", `${this.captionHeight + this.detailsHeight}px`);
    this.owner.grow(pixels);
  }

  /** Make the node higher while the user compares two runs. */
  #resizeForComparison() {
    const before = parseFloat(this.element.style.getPropertyValue("--adt-comparison"));
    this.refresh();
    if (this.comparisonHeight !== before) this.owner.grow(this.comparisonHeight - before);
  }

  /** Make the node higher while the details are open, so that the map keeps its size. */
  #resizeForDetails() {
    this.draw();
    const { open } = this.details;
    const height = open ? this.text.offsetHeight - parseFloat(getComputedStyle(this.text).minHeight) : 0;
    const added = height - this.detailsHeight;
    this.detailsHeight = height;
    this.#grow(added);
  }
}
