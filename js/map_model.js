/**
 * One run of a sampler as data: what is known of each round and each token, from what nodes/live_map.py sends. Knows no page.
 */

/** What a token can be coloured by: whether its values are whole numbers, and the least of them. */
export const FIGURES = {
  acceptance: { whole: true, least: 1 },
  depth: { whole: true, least: 0 },
  width: { whole: true, least: 0 },
  time: { whole: false, least: 0 },
};

/** In place of a figure that is the same for every token where nothing is drafted: when the token came. */
const MOMENT = { whole: false, least: 0 };

export function scaleOf(figure) {
  return FIGURES[figure] ?? MOMENT;
}

/** In place of a round's number: nothing decided, and decided with the prompt. */
const NONE = -1;
const PREFILL = -2;

/** A picture whose tokens follow one another, row by row; behind each row may stand a token that is no cell. */
class Picture {
  constructor([rows, columns], first, ends, images) {
    Object.assign(this, { rows, columns, first, ends, cells: rows * columns });
    this.end = first + rows * (columns + ends); // behind its last token
    this.roundOf = Array.from({ length: images }, () => new Int32Array(this.cells).fill(NONE));
  }

  /** The cell of a token; null if it ends a row, or lies before or behind the picture. */
  cellAt(position) {
    const column = (position - this.first) % (this.columns + this.ends);
    return position < this.first || position >= this.end || column === this.columns ? null : this.#cell(position);
  }

  /** How many cells lie before a token. */
  cellsBefore(position) {
    return this.#cell(position);
  }

  /** The tokens from `begin` to before `end` came in this round; those of other pictures don't count. */
  enter(image, round, begin, end) {
    this.roundOf[image].fill(round, this.#cell(begin), this.#cell(end));
  }

  /** The cell of a token, or that behind it if it ends a row. Of a token before or behind the picture its first cell, or that behind its last. */
  #cell(position) {
    const at = Math.min(Math.max(position, this.first), this.end) - this.first;
    const row = Math.floor(at / (this.columns + this.ends));
    return row * this.columns + Math.min(at - row * (this.columns + this.ends), this.columns);
  }
}

export class Run {
  /** @param {object} header a message or a stored map; its rounds are taken by {@link append} */
  constructor(header) {
    const { id, node, prompt, method, relaxed, seed, inputs, texts, comparable, images, grid, ends, small, start, prefill, pictures, thumbnails, parts } = header;
    Object.assign(this, { id, node, prompt, method, seed, comparable, prefill, start: start ?? 0 });
    this.lantern = relaxed ?? false; // maps of before this was told have it in their rounds alone
    this.inputs = inputs ?? {}; // the node's own values, as they were queued
    this.texts = texts ?? {}; // those that its prompts are made of, by node and input
    this.pictures = pictures ?? []; // files of this server
    this.thumbnails = thumbnails ?? []; // small pictures that came with the map
    this.abreast = parts ?? 1; // runs that the node makes side by side
    this.count = images;
    const first = small ? new Picture(small, 0, 0, images) : null;
    const last = new Picture(grid, first?.end ?? 0, ends ?? 0, images);
    this.pieces = first ? [first, last] : [last]; // what the tokens are of, in their order: a smaller picture may come first
    this.shown = last;
    this.grid = String(grid);
    this.tokens = last.end;
    this.rounds = []; // { ms, drafting, shares: Map image -> share }
    this.done = 0; // tokens decided, of all images
    this.kept = images * this.start; // tokens that were given, as when an image is continued
    this.known = { ms: 0, emitted: 0, shares: 0, rounds: 0, substituted: 0, drafted: 0 };
    this.state = "running"; // then "done" or "stopped"
  }

  /** The whole run from a saved map and its rounds. */
  static stored(map, rounds) {
    const run = new Run(map);
    run.append(0, rounds);
    run.state = "done";
    return run;
  }

  /** Enter rounds; `first` is the number of the first of them. Rounds that were missed, as when the page was reloaded, stay unknown. */
  append(first, rounds) {
    rounds.forEach(([ms, drafting, ...shares], i) => {
      const index = first + i;
      if (this.rounds[index]) return;
      this.rounds[index] = { ms, drafting, shares: new Map(shares.map((share) => [share[0], named(share)])) };
      this.known.ms += ms;
      this.known.rounds += 1;
      for (const [image, share] of this.rounds[index].shares) this.#enter(index, image, share);
    });
  }

  #enter(index, image, { position, nodes, accepted, substituted }) {
    const next = Math.min(position + accepted + 2, this.tokens);
    for (const piece of this.pieces) {
      if (position === this.start) piece.enter(image, PREFILL, position, position + 1); // the token that came with the prompt
      piece.enter(image, index, position + 1, next);
    }
    this.done += next - 1 - position + (position === this.start);
    this.known.emitted += accepted + 1;
    this.known.shares += 1;
    this.known.substituted += substituted;
    this.known.drafted += nodes > 0;
  }

  /** The cell of a token; null if it ends a row, or is of another picture. */
  cellAt(position) {
    return this.shown.cellAt(position);
  }

  /** The cells that are still to be generated: those behind the last known one, and behind tokens that were given. None once the run is over. */
  pending(image) {
    if (this.state === "done") return [];
    const known = this.roundOf[image].findLastIndex((round) => round !== NONE) + 1;
    const first = Math.max(known, this.shown.cellsBefore(this.start));
    return Array.from({ length: this.cells - first }, (_, i) => first + i);
  }

  /** Show the picture that is drawn before round `until`; the whole image once the run is over. */
  look(image, until) {
    const [first, last] = [this.pieces[0], this.pieces.at(-1)];
    const over = first === last || (until === Infinity && this.state !== "running");
    this.shown = over || last.roundOf[image].some((round) => round !== NONE && round < until) ? last : first;
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

  get roundOf() {
    return this.shown.roundOf;
  }

  /** Whether every round decides one token, without drafts. */
  get plain() {
    return this.method === "autoregressive";
  }

  /** The share of passes, of all images, that had drafts to check; null while none is known. */
  get drafted() {
    return this.known.shares ? this.known.drafted / this.known.shares : null;
  }

  /** Whether look-alikes may stand for tokens (LANTERN): the image is not exactly the seed's. */
  get relaxed() {
    return this.lantern || this.known.substituted > 0;
  }

  /** The share of tokens that were replaced by look-alikes. */
  get replaced() {
    return this.known.emitted ? this.known.substituted / this.known.emitted : 0;
  }

  /** What is shown in place of a figure. */
  figureShown(figure) {
    return (this.plain || this.drafted === 0) && figure !== "time" ? "moment" : figure;
  }

  /** The numbers of the rounds that decided tokens of an image. */
  roundsOf(image) {
    return [...this.rounds.keys()].filter((index) => this.rounds[index]?.shares.has(image));
  }

  /** Milliseconds from the beginning to the end of each round. */
  get clock() {
    if (this.times?.length !== this.rounds.length) {
      let at = this.prefill;
      this.times = Array.from(this.rounds, (round) => (at += round?.ms ?? 0));
    }
    return this.times;
  }

  /** The first round that was not over so many milliseconds after the beginning; the number of rounds if there is none. */
  roundAt(ms) {
    const index = this.clock.findIndex((end) => end > ms);
    return index < 0 ? this.rounds.length : index;
  }

  /** Tokens to decide, of all images. */
  get total() {
    return this.count * this.tokens - this.kept;
  }

  /** Everything about a token of an image, or null while it is not decided. */
  token(image, cell) {
    const index = this.roundOf[image]?.[cell] ?? NONE;
    if (index === NONE) return null;
    if (index === PREFILL) {
      const none = { depthAsked: 0, widthAsked: 0, depth: 0, width: 0, nodes: 0, accepted: 0, substituted: 0, levels: [] };
      return { ...none, round: null, alpha: 0, ms: this.prefill, acceptance: 1, time: this.prefill, moment: this.prefill / 1000 };
    }
    const { ms, shares } = this.rounds[index];
    const share = shares.get(image);
    const emitted = share.accepted + 1;
    const alpha = share.depth ? share.accepted / share.depth : 0;
    return { ...share, round: index, alpha, ms, acceptance: emitted, time: ms / emitted, moment: this.clock[index] / 1000 };
  }

  /** First and last cell of the tokens that came in the same round. */
  together(image, cell) {
    const rounds = this.roundOf[image];
    let [first, last] = [cell, cell];
    while (first > 0 && rounds[first - 1] === rounds[cell]) first--;
    while (last < this.cells - 1 && rounds[last + 1] === rounds[cell]) last++;
    return [first, last];
  }

  /** A figure of every token of an image, Float32Array; NaN where nothing is decided, or only from round `until` on. */
  values(figure, image, until = Infinity) {
    const values = new Float32Array(this.cells).fill(NaN);
    const ofRound = new Map();
    this.roundOf[image]?.forEach((round, cell) => {
      if (round === NONE || round >= until) return;
      if (!ofRound.has(round)) ofRound.set(round, this.token(image, cell)[figure]);
      values[cell] = ofRound.get(round);
    });
    return values;
  }

  /** Decoding so far, in seconds: the prompt and the rounds that are known. */
  get seconds() {
    return (this.prefill + this.known.ms) / 1000;
  }

  /** Tokens a second, and tokens a pass (tau). */
  figures() {
    const { emitted, shares } = this.known;
    const { done, seconds } = this;
    return { done, total: this.total, seconds, rate: seconds ? done / seconds : 0, tau: shares ? emitted / shares : 0 };
  }

  /**
   * How many times as fast this run was as another that did the same work, and whether both took turns; null where that was not measured:
   * seconds of runs at other times say as much about the machine's other work.
   *
   * @param {Run | null} other
   * @returns {{ratio: number, turns: boolean} | null}
   */
  against(other) {
    const same = (...names) => names.every((name) => this[name] === other[name]);
    if (!other || ![this, other].every(({ state, seconds }) => state === "done" && seconds > 0)) return null;
    if (!same("comparable", "total", "count", "grid")) return null;
    const turns = this.abreast > 1 && same("abreast", "prompt", "node");
    return turns || (this.prompt && same("prompt")) ? { ratio: other.seconds / this.seconds, turns } : null;
  }
}

function named([image, position, depthAsked, widthAsked, depth, width, nodes, accepted, substituted, levels = []]) {
  return { image, position, depthAsked, widthAsked, depth, width, nodes, accepted, substituted, levels };
}

/** Ends of the scale for the values of one or two maps: whole numbers up to the largest; times up to the 98th percentile, for the first token is slow. */
export function range(figure, ...maps) {
  const values = maps.flatMap((map) => Array.from(map)).filter((value) => !Number.isNaN(value)).sort((a, b) => a - b);
  const { whole, least } = scaleOf(figure);
  const top = values.length ? values[Math.min(values.length - 1, Math.floor(values.length * (figure === "time" ? 0.98 : 1)))] : least + 1;
  return [least, Math.max(top, least + (whole ? 1 : 0.01))];
}
