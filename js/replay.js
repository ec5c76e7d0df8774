/** Controls under an acceptance map to replay a finished run, pass by pass. A round is one pass of the model. */

import { make } from "./elements.js";
import { texts } from "./texts.js";

const MAX_DURATION = 12_000; // maximum milliseconds of a replay
const MAX_PASS = 80; // maximum milliseconds for which one pass is shown

export class Replay {
  #rounds = []; // indices of the rounds that generated tokens of the image
  #shown = null; // number of rounds whose tokens are shown; null for the finished image
  #frame = 0; // id of the requested animation frame, 0 if the replay is paused

  /** @param {() => void} redraw called when the replay shows another pass */
  constructor(redraw) {
    this.redraw = redraw;
    this.button = make("button", { type: "button", className: "adt-map-play" });
    this.button.onclick = () => (this.#frame ? this.stop() : this.#play());
    const { replay: title } = texts;
    this.slider = make("input", { type: "range", min: 0, max: 0, "aria-label": title, title });
    this.slider.oninput = () => {
      const rounds = Number(this.slider.value);
      this.stop();
      this.#show(rounds);
    };
    this.label = make("div", { className: "adt-map-replayed" }); // over the map
  }

  /** Set the run and the image to replay. If they change, the current replay ends. */
  follow(run, image) {
    if (run !== this.run || image !== this.image) {
      this.stop();
      this.#shown = null;
    }
    this.run = run;
    this.image = image;
    this.#rounds = run && run.state !== "running" ? run.roundsOf(image) : [];
    this.slider.max = this.#rounds.length;
    this.button.disabled = !this.#rounds.length;
    this.slider.disabled = !this.#rounds.length;
    this.#update();
  }

  /** The index in the run of the current round of the replay. null if the finished image is shown. */
  get round() {
    return this.#shown === null ? null : this.#rounds[this.#shown];
  }

  stop() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#update();
  }

  #play() {
    const count = this.#rounds.length;
    const speed = count / Math.min(MAX_DURATION, MAX_PASS * count); // rounds per millisecond
    const from = this.#shown ?? 0;
    let start;
    const step = (now) => {
      start ??= now;
      const at = Math.min(count, from + Math.floor((now - start) * speed));
      this.#frame = at < count ? requestAnimationFrame(step) : 0;
      if (at !== this.#shown) this.#show(at);
    };
    this.#frame = requestAnimationFrame(step);
    this.#show(from);
  }

  #show(rounds) {
    this.#shown = rounds < this.#rounds.length ? rounds : null;
    this.#update();
    this.redraw();
  }

  #update() {
    const isPlaying = this.#frame !== 0;
    this.button.textContent = isPlaying ? "❚❚" : "▶";
    this.button.title = isPlaying ? texts.pause : texts.play;
    this.button.setAttribute("aria-label", this.button.title);
    this.slider.value = this.#shown ?? this.#rounds.length;
    const label = this.#describe();
    this.label.textContent = label;
    this.label.hidden = !label;
    this.slider.setAttribute("aria-valuetext", label || texts.finishedImage);
  }

  #describe() {
    if (this.#shown === null) return "";
    const { drafts, accepted } = this.run.rounds[this.round].records.get(this.image);
    const counts = drafts ? texts.verified(accepted, drafts - accepted) : texts.guessed(0, 0);
    return texts.replayed(this.#shown + 1, this.#rounds.length) + counts;
  }
}

/**
 * The draft tree of a round. The result has one entry per level of the tree. All drafts of a level are proposals for
 * the same token. `cell` is the cell of this token, `drafts` is the number of proposals, and `accepted` is true if one
 * of them was accepted.
 *
 * @returns {{cell: number, drafts: number, accepted: boolean}[]}
 */
export function draftTree(run, image, round) {
  const record = run.rounds[round]?.records.get(image);
  if (!record) return [];
  return record.levels.flatMap((drafts, level) => {
    const cell = run.cellAt(record.position + 1 + level);
    return cell === null ? [] : [{ cell, drafts, accepted: level < record.accepted }];
  });
}
