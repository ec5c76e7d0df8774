/** Sentences and tables about a run and its tokens, from the phrases of texts.js. */

import { methodName, texts } from "./texts.js";

const FASTER = 1.05; // minimum estimated speed-up that is worth telling
const FEW = 0.1; // minimum share of passes with drafts; a run with fewer counts as a run without drafts
const THIRDS = 3; // regions along each side
const MIN_RATIO = 1.25; // minimum ratio of the fastest to the slowest region; smaller differences may be noise

/** The method of a run. For relaxed acceptance (LANTERN), it includes the share of replaced tokens. */
export function nameOf(run) {
  const name = methodName(run.method);
  return run.relaxed ? texts.relaxed(name, (100 * run.replaced).toFixed(1)) : name;
}

/** A shorter form of `nameOf`, for lists. */
export function shortName(run) {
  const name = methodName(run.method);
  return run.relaxed ? texts.relaxedShort(name, (100 * run.replaced).toFixed(1)) : name;
}

/** The label above a map if two maps are shown. It contains the seed if the seeds of both runs differ. */
export function titleOf(run, other) {
  return run.seed === other.seed ? shortName(run) : texts.seed(shortName(run), run.seed);
}

/**
 * One line about a run: during the run its progress and rate, after it how much faster it was than without drafts. If
 * another run `other` is shown beside it, the line of run A says whether both have the same image, and if they ran under
 * the same conditions, the speed-up over `other`.
 *
 * @param {boolean} isB whether the run is the second one of the two
 */
export function summary(run, other = null, isB = false) {
  const { done, total, rate, seconds } = run.figures();
  if (run.state !== "done") {
    const progress = texts.progress(done, total) + (run.state === "stopped" ? texts.stopped : "");
    return [progress, texts.rate(rate.toFixed(rate < 10 ? 1 : 0))].join(" · ");
  }
  if (isB) return [headline(run), atATime(run), texts.finished(total, seconds.toFixed(1))].filter(Boolean).join(" · ");
  const faster = run.against(other);
  const measured = faster && (faster.turns ? texts.fasterInTurns : texts.fasterInPrompt)(faster.ratio.toFixed(2));
  const equal = run.equals(other);
  const image = equal === null ? "" : texts.equal[Number(equal)];
  const parts = [image, measured ?? headline(run, other), atATime(run), texts.finished(total, seconds.toFixed(1))];
  return parts.filter(Boolean).join(" · ");
}

/** How many tokens a pass made on average, as a whole number; "" for one. */
function atATime(run) {
  const tokens = Math.round(run.figures().tau);
  return tokens > 1 ? texts.atATime(tokens) : "";
}

/** Estimated speed-up, and whether drafts change the image. The latter would be ambiguous beside another run's image. */
export function headline(run, other = null) {
  if (run.plain) return texts.plain;
  if (isUndrafted(run)) return texts.undrafted[Number(run.drafted > 0)];
  const image = run.lantern ? texts.changedImage : texts.sameImage;
  if (run.speedup <= FASTER) return other ? "" : image;
  return texts.faster(run.speedup.toFixed(1), other ? "" : texts.whileFaster[Number(run.lantern)]);
}

/** Whether Auto stopped drafting because drafts would not make the run faster. */
function isUndrafted(run) {
  return run.method === "auto" && run.drafted !== null && run.drafted < FEW;
}

/**
 * Sentences above a map: method and seed of the run, its place in a list, the values of the node that have changed since
 * the run, and `off`.
 *
 * @param {{name: string | symbol, now: string}[]} differences
 * @param {string} off sentence on why the map is from an earlier run, or ""
 */
export function caption(run, differences = [], off = "") {
  const own = (run.state === "done" ? texts.of : texts.at)(nameOf(run), run.seed);
  const place = run.listed > 1 ? texts.lastOfList(run.listed) : "";
  return [own, place, differences.length ? texts.now(differences) : "", off].filter(Boolean).join(" ");
}

/**
 * Statistics of the tokens per pass in each region of an image. Regions without generated tokens are left out.
 *
 * @returns {{region: number, rounds: number, mean: number}[]} `region` is the index of the region, row by row from the
 *   top left. `rounds` is its number of passes.
 */
function regions(run, image) {
  const found = Array.from({ length: THIRDS * THIRDS }, () => new Map()); // pass -> tokens
  run.roundOf[image].forEach((round, cell) => {
    if (round < 0) return;
    const row = Math.floor((THIRDS * Math.floor(cell / run.columns)) / run.rows);
    const column = Math.floor((THIRDS * (cell % run.columns)) / run.columns);
    found[THIRDS * row + column].set(round, run.rounds[round].records.get(image).accepted + 1);
  });
  return found.flatMap((rounds, region) =>
    rounds.size ? [{ region, rounds: rounds.size, mean: mean([...rounds.values()]) }] : [],
  );
}

/** The fastest and the slowest region as { fastest, slowest }. null if their speeds are similar or nothing is known. */
function contrast(run, image) {
  const sorted = regions(run, image).sort((a, b) => b.mean - a.mean);
  const fastest = sorted[0];
  const slowest = sorted.at(-1);
  return fastest?.mean > MIN_RATIO * slowest?.mean ? { fastest, slowest } : null;
}

function mean(values) {
  return values.reduce((a, b) => a + b) / values.length;
}

/** One sentence about the fastest and the slowest region of an image. "" if their speeds are similar. */
export function sentence(run, image) {
  if (isUndrafted(run)) return texts.unpaid(run.drafted > 0, run.count);
  const found = contrast(run, image);
  if (!found) return "";
  const { fastest, slowest } = found;
  return texts.contrast(
    [texts.thirds[fastest.region], fastest.mean.toFixed(1)],
    [texts.thirds[slowest.region], slowest.mean.toFixed(1)],
  );
}

/** Table of a run's measurements and inputs, [[name, value]]. */
export function numbers(run, image) {
  const records = run.roundsOf(image).map((index) => run.rounds[index].records.get(image));
  if (!records.length) return [];
  const sum = (name) => records.reduce((total, record) => total + record[name], 0);
  const speed = ({ region, mean, rounds }) => [texts.thirds[region], texts.meanOf(mean.toFixed(2), rounds)];
  const { rate, tau } = run.figures();
  return [
    [texts.counts.tau, tau.toFixed(2)],
    [texts.counts.rate, rate.toFixed(1)],
    ...regions(run, image).map(speed),
    [texts.counts.rounds, records.length],
    [texts.counts.drafts, sum("drafts")],
    [texts.counts.right, sum("accepted")],
    [texts.counts.depth, (sum("depth") / records.length).toFixed(2)],
    ...Object.entries(run.inputs),
  ];
}

/** Lines of the tooltip about a token. @param {(object | null)[]} tokens token of each run, from Run.token */
export function describe(tokens, cell, columns) {
  const lines = tokens.flatMap((token, i) => {
    const [first, ...others] = about(token);
    return tokens.length > 1 ? [`${"AB"[i]}: ${first}`, ...others] : [first, ...others];
  });
  return [texts.place(Math.floor(cell / columns) + 1, (cell % columns) + 1), ...lines].join("\n");
}

function about(token) {
  if (!token) return [texts.undecided];
  if (token.round === null) return [texts.withPrompt];
  const count = token.acceptance === 1 ? texts.alone : texts.together(token.acceptance);
  const certain = token.certainty ? [texts.certain(token.certainty)] : [];
  return [count, texts.guessed(token.drafts, token.accepted), `${token.ms.toFixed(1)} ms`, ...certain];
}

/** Table about the round of a token, [[name, value]]. With two runs, each value has the form "A | B". */
export function tokenNumbers(tokens, cell) {
  const each = (show) => tokens.map((token) => (token ? show(token) : "–")).join(" | ");
  return [
    [texts.token(cell + 1), `${texts.round} ${each((t) => (t.round === null ? texts.prompt : t.round + 1))}`],
    [texts.depth, each((t) => texts.built(t.depthAsked, t.depth))],
    [texts.width, each((t) => texts.built(t.widthAsked, t.width))],
    [texts.drafts, each((t) => t.drafts)],
    [texts.accepted, each((t) => t.accepted + (t.substituted ? texts.lookAlikes(t.substituted) : ""))],
    ["alpha", each((t) => t.alpha.toFixed(2))],
  ];
}
