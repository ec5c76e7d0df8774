/** The controls under a map with which a finished run is watched again, round by round. */

import { make } from "./elements.js";
import { words } from "./words.js";

const LONGEST = 12_000; // milliseconds that a replay takes at most,
const EACH = 80; // and a round of it, if there are few

export class Replay {
  #rounds = []; // numbers of the rounds that decided tokens of the image
  #shown = null; // rounds that are over; null shows the whole run, as it is
  #frame = 0;

  /** @param {() => void} redraw called when another moment is to be shown */
  constructor(redraw) {
    this.redraw = redraw;
    this.button = make("button", { type: "button", className: "adt-map-play" });
    this.button.onclick = () => (this.#frame ? this.stop() : this.#play());
    this.slider = make("input", { type: "range", min: 0, max: 0, "aria-label": words.replay, title: words.replay });
    this.slider.oninput = () => {
      const rounds = Number(this.slider.value);
      this.stop();
      this.#show(rounds);
    };
    this.said = make("div", { className: "adt-map-replayed" }); // over the map
  }

  /** Follow a run; a replay of another one ends. */
  follow(run, image) {
    if (run !== this.run || image !== this.image) {
      this.stop();
      this.#shown = null;
    }
    Object.assign(this, { run, image });
    this.#rounds = run && run.state !== "running" ? run.roundsOf(image) : [];
    this.slider.max = this.#rounds.length;
    this.button.disabled = this.slider.disabled = !this.#rounds.length;
    this.#say();
  }

  /** The number of the round that is tried at this moment; null while no moment but the whole run is shown. */
  get round() {
    return this.#shown === null ? null : this.#rounds[this.#shown];
  }

  stop() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#say();
  }

  #play() {
    const count = this.#rounds.length;
    const pace = count / Math.min(LONGEST, EACH * count); // rounds a millisecond
    const from = this.#shown ?? 0;
    let began;
    const step = (now) => {
      began ??= now;
      const at = Math.min(count, from + Math.floor((now - began) * pace));
      this.#frame = at < count ? requestAnimationFrame(step) : 0;
      if (at !== this.#shown) this.#show(at);
    };
    this.#frame = requestAnimationFrame(step);
    this.#show(from);
  }

  #show(rounds) {
    this.#shown = rounds < this.#rounds.length ? rounds : null;
    this.#say();
    this.redraw();
  }

  #say() {
    const count = this.#rounds.length;
    const playing = this.#frame !== 0;
    this.button.textContent = playing ? "❚❚" : "▶";
    this.button.title = playing ? words.pause : words.play;
    this.button.setAttribute("aria-label", this.button.title);
    this.slider.value = this.#shown ?? count;
    const share = this.#shown === null ? null : this.run.rounds[this.round].shares.get(this.image);
    const said = share ? words.tried(this.#shown + 1, count, share.nodes, share.accepted) : "";
    this.said.textContent = said;
    this.said.hidden = !said;
    this.slider.setAttribute("aria-valuetext", said || words.whole);
  }
}

/**
 * What a round tries, as cells: the drafts of each level of its tree, which stand for the tokens behind its root, one after the other.
 * @returns {{cell: number, drafts: number, accepted: boolean}[]}
 */
export function tried(run, image, round) {
  const share = run.rounds[round]?.shares.get(image);
  if (!share) return [];
  return share.levels.flatMap((drafts, level) => {
    const cell = run.cellAt(share.position + 1 + level);
    return cell === null ? [] : [{ cell, drafts, accepted: level < share.accepted }];
  });
}
