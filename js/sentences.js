/** What the map says about a run and its tokens, put together from words.js. */

import { contrast, places } from "./places.js";
import { methodName, words } from "./words.js";

const FEW = 0.1; // share of passes that had drafts, below which they are worth no word

const unit = (value, digits) => value.toFixed(digits);

/** What people call how a run was drawn; if it was relaxed, that it was, and the share of tokens that it replaced. */
export function nameOf(run) {
  const name = methodName(run.method);
  return run.relaxed ? words.relaxed(name, unit(100 * run.replaced, 1)) : name;
}

/** The same in fewer words, for lists. */
export function shortName(run) {
  const name = methodName(run.method);
  return run.relaxed ? words.relaxedShort(name, unit(100 * run.replaced, 1)) : name;
}

/** What stands above a small map beside that of another run; with the seed if the other's is another. */
export function titleOf(run, other) {
  return run.seed === other.seed ? shortName(run) : words.seed(shortName(run), run.seed);
}

/** One line about a run: what was measured of it. With `other`, B beside it, how much faster it was, if that was measured. */
export function summary(run, other = null) {
  const { done, total, rate, tau, seconds } = run.figures();
  const faster = run.against(other);
  const drafting = undrafted(run) ? words.undrafted[Number(run.drafted > 0)] : words.tau(unit(tau, 2));
  const parts = [run.plain ? words.plain : drafting];
  parts.push(words.rate(unit(rate, rate < 10 ? 1 : 0)));
  if (faster) parts.push((faster.turns ? words.fasterInTurns : words.fasterInPrompt)(unit(faster.ratio, 2)));
  parts.push(run.state === "done" ? words.finished(total, unit(seconds, 1)) : words.progress(done, total) + (run.state === "stopped" ? words.stopped : ""));
  return parts.join(" · ");
}

/** Whether Auto left drafts out, as it does where they don't pay. */
function undrafted(run) {
  return run.method === "auto" && run.drafted !== null && run.drafted < FEW;
}

/**
 * What made the map; with `differences`, { name, now }, what the node has now in place of it; with `off`, why it does not run.
 */
export function caption(run, differences = [], off = "") {
  const own = words.of(nameOf(run), run.seed);
  return [own, ...(differences.length ? [words.now(differences)] : []), ...(off ? [off] : [])].join(" ");
}

/** One sentence about where an image was fast and where it was slow; "" where all of it was about the same, or nothing is known. */
export function sentence(run, image) {
  if (undrafted(run)) return words.unpaid(run.drafted > 0, run.count);
  const found = contrast(run, image);
  if (!found) return "";
  const { easy, hard } = found;
  return words.contrast([words.thirds[easy.place], easy.most], [words.thirds[hard.place], words.range(hard.low, hard.high)]);
}

/** The numbers behind the sentence, [[what, value]]. */
export function numbers(run, image) {
  const shares = run.roundsOf(image).map((index) => run.rounds[index].shares.get(image));
  if (!shares.length) return [];
  const sum = (name) => shares.reduce((total, share) => total + share[name], 0);
  return [
    ...places(run, image).map(({ place, mean, rounds }) => [words.thirds[place], words.meanOf(unit(mean, 2), rounds)]),
    [words.counts.rounds, shares.length],
    [words.counts.nodes, sum("nodes")],
    [words.counts.right, sum("accepted")],
    [words.counts.depth, unit(sum("depth") / shares.length, 2)],
    ...Object.entries(run.inputs),
  ];
}

/** What an artist may want to know of a token, in lines. @param {(object | null)[]} tokens of each run, from Run.token */
export function describe(tokens, cell, columns) {
  const lines = tokens.flatMap((token, i) => {
    const [first, ...others] = about(token);
    return tokens.length > 1 ? [`${"AB"[i]}: ${first}`, ...others] : [first, ...others];
  });
  return [words.place(Math.floor(cell / columns) + 1, (cell % columns) + 1), ...lines].join("\n");
}

function about(token) {
  if (!token) return [words.undecided];
  if (token.round === null) return [words.withPrompt];
  return [token.acceptance === 1 ? words.alone : words.together(token.acceptance), words.guessed(token.nodes, token.accepted), `${unit(token.ms, 1)} ms`];
}

/** Everything that is known of a token's round, [[what, value]]; with two runs, their values stand side by side. */
export function tokenNumbers(tokens, cell) {
  const side = (show) => tokens.map((token) => (token ? show(token) : "–")).join(" | ");
  return [
    [words.token(cell + 1), `${words.round} ${side((t) => (t.round === null ? words.prompt : t.round + 1))}`],
    [words.depth, side((t) => words.built(t.depthAsked, t.depth))],
    [words.width, side((t) => words.built(t.widthAsked, t.width))],
    [words.nodes, side((t) => t.nodes)],
    [words.accepted, side((t) => t.accepted + (t.substituted ? words.lookAlikes(t.substituted) : ""))],
    ["alpha", side((t) => unit(t.alpha, 2))],
  ];
}
