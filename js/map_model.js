/**
 * Data of one run of a sampler, from the messages of nodes/live_map.py. A run is one decoding of a batch of images.
 * This file does not use the page.
 *
 * A round is one pass of the model. A record is the part of one image in a round: its draft tree and accepted tokens. A
 * cell is a place in the grid of an image's tokens. Cells are numbered row by row, from 0.
 */

import { KeptTokens } from "./kept_tokens.js";

/** Figures (quantities) by which tokens are coloured. `whole`: the values are integers. `least`: the minimum. */
export const FIGURES = {
  acceptance: { whole: true, least: 1 },
  depth: { whole: true, least: 0 },
  width: { whole: true, least: 0 },
  time: { whole: false, least: 0 },
  certainty: { whole: true, least: 0 },
};

/** Figures that differ between runs without drafts. */
const ALWAYS = ["time", "certainty"];

/** Figure "moment": seconds from the start of the run to a token. It replaces figures that are constant without drafts. */
const MOMENT = { whole: false, least: 0 };

/** The kind of values of a figure, see `FIGURES`. */
export function scaleOf(figure) {
  return FIGURES[figure] ?? MOMENT;
}

/** Values of `roundOf` for a token that is not generated yet, and for a token that the pass of the prompt generated. */
const NONE = -1;
const PREFILL = -2;

/**
 * Grid of consecutive tokens, row by row. `first` is the position of its first token in the token sequence. If `ends`
 * is 1, each row is followed by an end-of-row token, which has no cell. Example: in a grid of 2 rows and 3 columns with
 * `first` 0 and `ends` 1, position 3 is the end of the first row, and position 4 has cell 3.
 */
class Grid {
  constructor([rows, columns], first, ends, images) {
    this.rows = rows;
    this.columns = columns;
    this.first = first;
    this.ends = ends;
    this.cells = rows * columns;
    this.end = first + rows * (columns + ends); // position after the last token of the grid
    this.roundOf = Array.from({ length: images }, () => new Int32Array(this.cells).fill(NONE));
  }

  /** The cell of the token at a position; null if the token ends a row or is outside the grid. */
  cellAt(position) {
    const column = (position - this.first) % (this.columns + this.ends);
    const isOutside = position < this.first || position >= this.end;
    return isOutside || column === this.columns ? null : this.cellsBefore(position);
  }

  /** The number of cells before the token at a position. If the token has a cell, the cell has this number. */
  cellsBefore(position) {
    const at = Math.min(Math.max(position, this.first), this.end) - this.first;
    const row = Math.floor(at / (this.columns + this.ends));
    return row * this.columns + Math.min(at - row * (this.columns + this.ends), this.columns);
  }

  /** The position of the token in a cell. */
  positionOf(cell) {
    return this.first + cell + this.ends * Math.floor(cell / this.columns);
  }

  /** Store that a round generated the tokens from `begin` to `end` - 1. Tokens outside this grid are ignored. */
  enter(image, round, begin, end) {
    this.roundOf[image].fill(round, this.cellsBefore(begin), this.cellsBefore(end));
  }
}

export class Run {
  /** @param {any} header live message or saved map; its rounds are added by {@link append} */
  constructor(header) {
    this.id = header.id;
    this.node = header.node;
    this.prompt = header.prompt;
    this.method = header.method;
    this.seed = header.seed;
    this.comparable = header.comparable; // equal for runs whose times can be compared
    this.prefill = header.prefill; // milliseconds
    this.digest = header.tokens ?? null; // of the generated tokens, after the run: runs with the same images have the same
    this.speedup = header.speedup ?? 0; // estimated speed-up over decoding without drafts; 0 if it is not known
    this.start = header.start ?? 0; // number of first tokens that all images keep from another image
    this.lantern = header.relaxed ?? false; // whether LANTERN was on
    this.inputs = header.inputs ?? {}; // values of the node when it was queued
    this.texts = header.texts ?? {}; // texts of the node's prompts: node id -> input id -> text
    this.files = header.pictures ?? []; // parameters of `/view` for the finished images
    this.thumbnails = header.thumbnails ?? []; // data URLs
    this.abreast = header.parts ?? 1; // number of runs that the node makes side by side
    this.count = header.images; // number of images
    this.listed = header.listed ?? 1; // number of items of a list for which the node ran; this run is for the last one
    this.grid = String(header.grid);
    this.#setGrids(header);
    this.rounds = []; // { ms, drafting (milliseconds), records: Map image -> record }
    this.done = 0; // generated tokens of all images
    this.kept = new KeptTokens(header.given ?? null, this.start, this.count, this.tokens);
    // Sums over the rounds: milliseconds; number of generated tokens, records and rounds; number of tokens that LANTERN
    // replaced; number of records with drafts.
    this.known = { ms: 0, emitted: 0, records: 0, rounds: 0, substituted: 0, drafted: 0 };
    this.state = "running"; // then "done" or "stopped"
    /** @type {import("./runs.js").Reference | undefined} */
    this.reference = undefined; // only of a finished run
  }

  /** Create the grids. In GLM-Image, the tokens of a smaller image precede the tokens of the image. */
  #setGrids({ grid, small, ends, images }) {
    const first = small ? new Grid(small, 0, 0, images) : null;
    const last = new Grid(grid, first?.end ?? 0, ends ?? 0, images);
    this.grids = first ? [first, last] : [last];
    this.shown = last;
    this.tokens = last.end;
  }

  /** The finished run of a saved map and its rounds. */
  static stored(map, rounds) {
    const run = new Run(map);
    run.append(0, rounds);
    run.state = "done";
    return run;
  }

  /**
   * Add rounds. Rounds that were added before are ignored. If the page was loaded during the run, the earlier rounds
   * are missing, and their tokens stay unknown.
   *
   * @param {number} first index in the run of the first of these rounds
   * @param {any[][]} rounds in the format of nodes/live_map.py
   */
  append(first, rounds) {
    rounds.forEach(([ms, drafting, ...records], i) => {
      const index = first + i;
      if (this.rounds[index]) return;
      this.rounds[index] = { ms, drafting, records: new Map(records.map((record) => [record[0], named(record)])) };
      this.known.ms += ms;
      this.known.rounds += 1;
      for (const [image, record] of this.rounds[index].records) this.#enter(index, image, record);
    });
  }

  #enter(index, image, { position, drafts, accepted, substituted }) {
    const next = Math.min(position + accepted + 2, this.tokens);
    const isFirst = !this.kept.has(image, this.start) && this.kept.hasAll(image, this.start + 1, position + 1);
    for (const grid of this.grids) {
      if (isFirst) grid.enter(image, PREFILL, this.start, this.start + 1); // the prompt's pass generates the first token
      grid.enter(image, index, position + 1, next);
    }
    this.done += next - 1 - position + Number(isFirst);
    this.known.emitted += accepted + 1;
    this.known.records += 1;
    this.known.substituted += substituted;
    this.known.drafted += Number(drafts > 0);
  }

  /** The cell of the token at a position; null if the token ends a row or is in another grid. */
  cellAt(position) {
    return this.shown.cellAt(position);
  }

  /** The cells after the last generated token of an image. The list is empty if the run is finished. */
  pending(image) {
    if (this.state === "done") return [];
    const known = this.roundOf[image].findLastIndex((round) => round !== NONE) + 1;
    const cells = Array.from({ length: this.cells - known }, (_, i) => known + i);
    const kept = this.keptCells(image);
    return cells.filter((cell) => !kept[cell]);
  }

  /** For each cell of an image, whether its token was kept. */
  keptCells(image) {
    return Array.from({ length: this.cells }, (_, cell) => this.kept.has(image, this.shown.positionOf(cell)));
  }

  /** Choose the grid to show: the grid that is being generated before round `until`, or the image's grid at the end. */
  look(image, until) {
    const first = this.grids[0];
    const last = this.grids.at(-1);
    const isOver = first === last || (until === Infinity && this.state !== "running");
    const isLast = isOver || last.roundOf[image].some((round) => round !== NONE && round < until);
    this.shown = isLast ? last : first;
  }

  get rows() {
    return this.shown.rows;
  }

  get columns() {
    return this.shown.columns;
  }

  get cells() {
    return this.shown.cells;
  }

  /** For each image, the index of the round that generated the token of each cell, or NONE or PREFILL. */
  get roundOf() {
    return this.shown.roundOf;
  }

  /** Whether the run is plain decoding, without drafts. */
  get plain() {
    return this.method === "no-drafting";
  }

  /** Share of passes in which drafts were verified, over all images. null if no pass is known. */
  get drafted() {
    return this.known.records ? this.known.drafted / this.known.records : null;
  }

  /** Whether acceptance was relaxed (LANTERN). The image may then differ from the exact image of the seed. */
  get relaxed() {
    return this.lantern || this.known.substituted > 0;
  }

  /** Share of the tokens that LANTERN replaced by similar tokens. */
  get replaced() {
    return this.known.emitted ? this.known.substituted / this.known.emitted : 0;
  }

  /** The figure to show if the user chooses `figure`. Without drafts, "moment" replaces the figures that are constant. */
  figureShown(figure) {
    return (this.plain || this.drafted === 0) && !ALWAYS.includes(figure) ? "moment" : figure;
  }

  /** Indices of the rounds that generated tokens of an image. */
  roundsOf(image) {
    return [...this.rounds.keys()].filter((index) => this.rounds[index]?.records.has(image));
  }

  /** The end of each round, in milliseconds since the start of the run. */
  get clock() {
    if (this.times?.length !== this.rounds.length) {
      let time = this.prefill;
      this.times = Array.from(this.rounds, (round) => {
        time += round?.ms ?? 0;
        return time;
      });
    }
    return this.times;
  }

  /** The index of the round at a time in milliseconds since the start. After the last round, the number of rounds. */
  roundAt(ms) {
    const index = this.clock.findIndex((end) => end > ms);
    return index < 0 ? this.rounds.length : index;
  }

  /** Number of tokens to generate, over all images. */
  get total() {
    return this.count * this.tokens - this.kept.count;
  }

  /** All data of the token in a cell of an image, or null if the token is not generated yet. */
  token(image, cell) {
    const index = this.roundOf[image]?.[cell] ?? NONE;
    if (index === NONE) return null;
    if (index === PREFILL) return this.#prefillToken();
    const { ms, records } = this.rounds[index];
    const record = records.get(image);
    const emitted = record.accepted + 1;
    return {
      ...record,
      round: index,
      alpha: record.depth ? record.accepted / record.depth : 0,
      ms,
      acceptance: emitted,
      time: ms / emitted,
      moment: this.clock[index] / 1000,
      certainty: record.certainties[this.shown.positionOf(cell) - record.position - 1] || NaN,
    };
  }

  #prefillToken() {
    const { prefill: ms } = this;
    const tree = {
      depthAsked: 0,
      widthAsked: 0,
      depth: 0,
      width: 0,
      drafts: 0,
      accepted: 0,
      substituted: 0,
      levels: [],
    };
    return { ...tree, round: null, alpha: 0, ms, acceptance: 1, time: ms, moment: ms / 1000, certainty: NaN };
  }

  /** First and last cell of the tokens that were generated in the same round as the token of a cell. */
  together(image, cell) {
    const rounds = this.roundOf[image];
    let first = cell;
    let last = cell;
    while (first > 0 && rounds[first - 1] === rounds[cell]) first--;
    while (last < this.cells - 1 && rounds[last + 1] === rounds[cell]) last++;
    return [first, last];
  }

  /** A Float32Array with a figure of each cell of an image; NaN for tokens not generated before round `until`. */
  values(figure, image, until = Infinity) {
    const values = new Float32Array(this.cells).fill(NaN);
    const ofRound = figure === "certainty" ? null : new Map(); // other figures are equal for all tokens of a round
    this.roundOf[image]?.forEach((round, cell) => {
      if (round === NONE || round >= until) return;
      values[cell] = ofRound?.get(round) ?? this.token(image, cell)[figure];
      ofRound?.set(round, values[cell]);
    });
    return values;
  }

  /** Seconds of the prompt and of the known rounds. */
  get seconds() {
    return (this.prefill + this.known.ms) / 1000;
  }

  /** `done` and `total` in tokens, `rate` in tokens per second, `tau` in tokens of an image per pass. */
  figures() {
    const { emitted, records } = this.known;
    const { done, seconds } = this;
    const rate = seconds ? done / seconds : 0;
    return { done, total: this.total, seconds, rate, tau: records ? emitted / records : 0 };
  }

  /** Whether another run has the same images. null if it is not known. @param {Run | null} other */
  equals(other) {
    return this.digest && other?.digest ? this.digest === other.digest : null;
  }

  /**
   * The speed of this run divided by the speed of another run of the same size. null unless both runs took turns or
   * belong to the same prompt. For other runs, the load of the machine may have been different.
   *
   * @param {Run | null} other
   * @returns {{ratio: number, turns: boolean} | null} `turns` is true if both runs took turns
   */
  against(other) {
    const same = (...names) => names.every((name) => this[name] === other[name]);
    if (!other || ![this, other].every(({ state, seconds }) => state === "done" && seconds > 0)) return null;
    if (!same("comparable", "total", "count", "grid")) return null;
    const turns = this.abreast > 1 && same("abreast", "prompt", "node");
    return turns || (this.prompt && same("prompt")) ? { ratio: other.seconds / this.seconds, turns } : null;
  }
}

function named(record) {
  const [image, position, depthAsked, widthAsked, depth, width, drafts, accepted, substituted] = record;
  // For each token, percent of its most probable value, 0 if it is not known; and the drafts on each level of the tree.
  const [certainties = [], levels = []] = record.slice(9);
  return { image, position, depthAsked, widthAsked, depth, width, drafts, accepted, substituted, levels, certainties };
}

/**
 * The values at the dark and the light end of the colour scale for one or two maps. The light end is the maximum. For
 * the figure "time", it is the 98th percentile, because the first token is much slower than the others.
 */
export function range(figure, ...maps) {
  const values = maps.flatMap((map) => Array.from(map)).filter((value) => !Number.isNaN(value));
  values.sort((a, b) => a - b);
  const { whole, least } = scaleOf(figure);
  const quantile = figure === "time" ? 0.98 : 1;
  const last = Math.min(values.length - 1, Math.floor(values.length * quantile));
  const top = values.length ? values[last] : least + 1;
  return [least, Math.max(top, least + (whole ? 1 : 0.01))];
}
