import assert from "node:assert/strict";
import test from "node:test";
import { ends } from "../../js/legend.js";
import { Run, range } from "../../js/map_model.js";
import { draftTree } from "../../js/replay.js";
import { caption, describe, nameOf, numbers, sentence, summary, titleOf, tokenNumbers } from "../../js/sentences.js";
import { PROMPT, setLanguage, texts } from "../../js/texts.js";

const HEADER = {
  id: "a",
  node: "6",
  method: "adt-tree",
  seed: "1",
  comparable: "m",
  images: 1,
  grid: [2, 4],
  prefill: 50,
};
/**
 * Rounds of a run, in the format of nodes/live_map.py: [milliseconds, drafting milliseconds, record, ...]. A record is
 * the part of one image in a round: [image, position, depth asked, width asked, depth, width, drafts, accepted,
 * substituted, [certainty of each token], [drafts on each level]].
 *
 * The grid has 2 by 4 tokens. The pass of the prompt generates token 0. A round generates one token more than it
 * accepts. The first round generates the tokens 1 to 3, the second round token 4, and the third round the tokens 5 to 7.
 */
const ROUNDS = [
  [20, 5, [0, 0, 3, 2, 3, 4, 6, 2, 0, [], [1, 4, 1]]],
  [10, 0, [0, 3, 0, 1, 0, 0, 0, 0, 0, [], []]],
  [24, 4, [0, 4, 4, 1, 3, 2, 5, 2, 1, [], [2, 2, 1]]],
];
const N = NaN;

/** A run with these rounds, and with changes to `HEADER`. */
function made(header = {}, rounds = ROUNDS) {
  const run = new Run({ ...HEADER, ...header });
  run.append(0, rounds);
  return run;
}

const finished = (run) => Object.assign(run, { state: "done" });

/** Rounds of plain decoding, each of this many milliseconds. */
const plainRounds = (ms) => Array.from({ length: 7 }, (_, i) => [ms, 0, [0, i, 0, 1, 0, 0, 0, 0, 0, [], []]]);

test("each token has the figures of its round, and the first token the figures of the prompt", () => {
  const run = made();
  assert.deepEqual([...run.values("acceptance", 0)], [1, 3, 3, 3, 1, 3, 3, 3]);
  assert.deepEqual([...run.values("depth", 0)], [0, 3, 3, 3, 0, 3, 3, 3]);
  assert.deepEqual([...run.values("width", 0)], [0, 4, 4, 4, 0, 2, 2, 2]);
  assert.deepEqual([...run.values("time", 0)].map(Math.round), [50, 7, 7, 7, 10, 8, 8, 8]);
});

test("rounds may be appended in several messages, and rounds that are sent again are ignored", () => {
  const run = new Run(HEADER);
  run.append(0, ROUNDS.slice(0, 1));
  assert.deepEqual([...run.values("acceptance", 0)], [1, 3, 3, 3, N, N, N, N]);
  assert.equal(run.done, 4);
  run.append(1, ROUNDS.slice(1));
  run.append(0, ROUNDS);
  assert.deepEqual(run.values("acceptance", 0), made().values("acceptance", 0));
  assert.deepEqual(run.figures(), made().figures());
  assert.equal(run.done, run.total);
});

test("the tokens of rounds that were never received stay unknown", () => {
  const run = new Run(HEADER);
  run.append(2, ROUNDS.slice(2));
  assert.deepEqual([...run.values("acceptance", 0)], [N, N, N, N, N, 3, 3, 3]);
  assert.equal(run.token(0, 1), null);
});

test("with a mask, the pass of the prompt generates the first token only if it is not kept", () => {
  // Lengths of stretches: kept, generated, kept, ... The first record begins after the kept tokens that follow token 0.
  const record = [10, 0, [0, 3, 0, 1, 0, 0, 0, 0, 0, [], []]];
  const values = (given, first = 0) => {
    const run = new Run({ ...HEADER, given: [given] });
    run.append(first, [record]);
    return [...run.values("acceptance", 0)];
  };
  assert.deepEqual(values([0, 1, 3, 4]), [1, N, N, N, 1, N, N, N]);
  assert.deepEqual(values([4, 4]), [N, N, N, N, 1, N, N, N]);
  assert.deepEqual(values([0, 2, 2, 4], 1), [N, N, N, N, 1, N, N, N], "an earlier round was never received");
});

test("certainty differs between the tokens of a round, and 0 stands for a value that is not known", () => {
  const [record] = ROUNDS[0].slice(2);
  const run = new Run(HEADER);
  run.append(0, [[20, 5, [...record.slice(0, 9), [90, 0, 40]]], ROUNDS[1]]);
  assert.deepEqual([...run.values("certainty", 0)], [N, 90, N, 40, N, N, N, N]);
  assert.match(describe([run.token(0, 1)], 1, 4), /\n90 % certain$/);
  assert.doesNotMatch(describe([run.token(0, 2)], 2, 4), /certain/);
  const plain = made({ method: "no-drafting" });
  const shown = ["depth", "time", "certainty"].map((figure) => plain.figureShown(figure));
  assert.deepEqual(shown, ["moment", "time", "certainty"]);
});

test("if a smaller image precedes the image, the map shows the one that is generated, and the image at the end", () => {
  const header = { small: [2, 2], grid: [1, 4] };
  const run = made(header, ROUNDS.slice(0, 1));
  const shown = (until, one = run) => {
    one.look(0, until);
    return [one.rows, one.columns, ...one.values("acceptance", 0, until)];
  };
  assert.deepEqual(shown(Infinity), [2, 2, 1, 3, 3, 3]);
  assert.deepEqual([run.cellAt(3), run.cellAt(4)], [3, null]);
  run.append(1, ROUNDS.slice(1));
  assert.deepEqual(shown(Infinity), [1, 4, 1, 3, 3, 3]);
  assert.deepEqual([run.cellAt(3), run.cellAt(4)], [null, 0]);
  assert.deepEqual(shown(1), [2, 2, 1, 3, 3, 3], "of a replay");
  assert.deepEqual(shown(2), [1, 4, 1, N, N, N]);
  assert.equal(run.done, run.total);
  const stopped = made(header, ROUNDS.slice(0, 1));
  stopped.state = "stopped";
  assert.deepEqual(shown(Infinity, stopped), [1, 4, N, N, N, N]);
});

test("images of a batch progress independently", () => {
  const record = (image, position, accepted) => [image, position, 3, 1, 3, 1, 3, accepted, 0, [1, 1, 1]];
  const run = made({ images: 2 }, [
    [10, 1, record(0, 0, 3)],
    [10, 1, record(0, 4, 2), record(1, 0, 1)], // image 1 starts in this round
    [10, 1, record(1, 2, 0)],
    [10, 1, record(1, 3, 3)],
  ]);
  assert.deepEqual([...run.values("acceptance", 0)], [1, 4, 4, 4, 4, 3, 3, 3]);
  assert.deepEqual([...run.values("acceptance", 1)], [1, 2, 2, 1, 4, 4, 4, 4]);
  assert.equal(run.done, 16);
  assert.equal(run.figures().tau, (4 + 3 + 2 + 1 + 4) / 5);
});

test("tokens of an image to continue are neither coloured nor counted", () => {
  const run = made({ start: 3 }, [[10, 1, [0, 3, 3, 1, 3, 1, 3, 3, 0, [], [1, 1, 1]]]]);
  assert.deepEqual([...run.values("acceptance", 0)], [N, N, N, 1, 4, 4, 4, 4]);
  assert.equal(run.done, 5);
  assert.equal(run.total, 5);
});

test("tokens of one round belong together", () => {
  assert.deepEqual(made().together(0, 2), [1, 3]);
  assert.deepEqual(made().together(0, 4), [4, 4]);
});

test("a speed-up is shown only for runs in turns or within one prompt", () => {
  const pair = (a, b) => [
    finished(made({ prompt: "p", ...a })),
    finished(made({ prompt: "p", method: "no-drafting", prefill: 46, ...b }, plainRounds(22))),
  ];
  const [a, b] = pair({ parts: 2 }, { parts: 2 });
  assert.deepEqual(a.against(b), { ratio: 0.2 / 0.104, turns: true });
  const measured = "1.92× as fast as B (measured in turns) · 2 tokens at a time · 8 tokens drawn in 0.1 s";
  assert.equal(summary(a, b), measured);
  assert.match(summary(b, a, true), /^No drafting · 8 tokens/);
  const undrafted = summary(...pair({ speedup: 2.21 }, { prompt: "q" }));
  assert.match(undrafted, /^About 2\.2 times as fast as without drafts · /, "'same image' would mean image B");
  assert.match(summary(...pair({ tokens: "1f" }, { tokens: "1f" })), /^Same image as B · 1\.92× as fast as B/);
  assert.match(summary(...pair({ tokens: "1f" }, { tokens: "2e" })), /^Other image than B · 1\.92× as fast as B/);
  assert.match(summary(...pair({ tokens: "1f" }, {})), /^1\.92× as fast as B/, "a run whose tokens are not known");
  const [first, second] = pair({}, { node: "7" });
  assert.match(summary(first, second), /1\.92× as fast as B \(measured one after the other\)/);
  for (const [one, other] of [
    pair({}, { prompt: "q" }),
    pair({ prompt: undefined }, { prompt: undefined }),
    pair({}, { comparable: "n" }),
    [a, null],
  ])
    assert.equal(one.against(other), null);
  assert.doesNotMatch(summary(...pair({}, { prompt: "q" })), /fast|plain/);
  b.state = "running";
  assert.equal(a.against(b), null);
});

test("the headline says how much faster a run was, in estimated times, and whether its image is the same", () => {
  const done = (header) => finished(made(header));
  const faster = /^About 2\.2 times as fast as without drafts, same image · 2 tokens at a time · 8 tokens/;
  assert.match(summary(done({ speedup: 2.21 })), faster);
  assert.match(summary(done({ speedup: 2.21, relaxed: true })), /without drafts, image slightly changed ·/);
  const unknown = /^Same image as without drafts · 2 tokens at a time · 8 tokens/;
  assert.match(summary(done({})), unknown, "the speed is not known");
  assert.match(summary(done({ speedup: 0.9 })), /^Same image as without drafts ·/);
  assert.equal(summary(made({ speedup: 2.21 })), "8 of 8 tokens · 77 tokens/s", "during the run");
  const details = Object.fromEntries(numbers(done({}), 0));
  assert.deepEqual([details["Tokens per pass"], details["Tokens per second"]], ["2.33", "76.9"]);
});

test("every name of a relaxed run has the share of replaced tokens", () => {
  const run = made({ relaxed: true });
  assert.equal(run.replaced, 1 / 7);
  assert.equal(nameOf(run), "ADT-Tree, Relaxed, 14.3 % of tokens replaced");
  assert.equal(caption(finished(run), []), "Made with seed 1 (ADT-Tree, Relaxed, 14.3 % of tokens replaced).");
  assert.equal(titleOf(run, made()), "ADT-Tree, Relaxed 14.3 %");
  assert.equal(titleOf(run, made({ seed: "2" })), "ADT-Tree, Relaxed 14.3 %, seed 1", "beside another seed");
  const untouched = made({ relaxed: true }, ROUNDS.slice(0, 2));
  assert.equal(nameOf(untouched), "ADT-Tree, Relaxed, 0.0 % of tokens replaced");
  assert.equal(nameOf(made({}, ROUNDS.slice(0, 2))), "ADT-Tree");
  assert.match(nameOf(made()), /Relaxed, 14\.3 %/, "an older map, which shows it only in its rounds");
});

test("plain decoding shows the time of each token, because its other figures are constant", () => {
  const plain = made({ method: "no-drafting" }, plainRounds(20));
  assert.equal(plain.figureShown("acceptance"), "moment");
  assert.equal(plain.figureShown("time"), "time");
  assert.equal(made().figureShown("acceptance"), "acceptance");
  const moments = [...plain.values("moment", 0)].map((value) => Math.round(1000 * value));
  assert.deepEqual(moments, [50, 70, 90, 110, 130, 150, 170, 190]);
  assert.equal(sentence(plain, 0), "", "no place is faster than another");
});

test("a run for which Auto stopped drafting has a sentence about it, and shows the time of each token", () => {
  const auto = (draftsAt, images = 1) => {
    const tree = (drafts) => [drafts, drafts, drafts, drafts, drafts, 0, 0, [], drafts ? [1] : []];
    const rounds = Array.from({ length: 15 }, (_, i) => [20, 0, [0, i, ...tree(Number(draftsAt(i)))]]);
    return made({ method: "auto", images, grid: [4, 4] }, rounds);
  };
  const none = auto(() => false);
  assert.equal(none.figureShown("acceptance"), "moment");
  none.state = "done";
  assert.match(summary(none), /^No drafts · \d+ tokens/);
  assert.equal(sentence(none, 0), "Drafting would not be faster here: one token per pass.");
  const few = auto((i) => i === 3, 4);
  assert.equal(few.figureShown("acceptance"), "acceptance");
  few.state = "done";
  assert.match(summary(few), /^Hardly any drafts · \d+ tokens/);
  assert.equal(sentence(few, 0), "Drafting would not be faster for a batch of 4 images: mostly one token per pass.");
  const missed = auto(() => true);
  assert.equal(sentence(missed, 0), "", "drafts were made, and all of them refused");
});

test("both ends of the scale have a number, and the last one has the unit", () => {
  assert.deepEqual(ends("acceptance", [1, 12]), ["1", "12 tokens per pass"]);
  assert.deepEqual(ends("acceptance", [1, 12], true), ["1", "12"]);
  assert.deepEqual(ends("time", [0, 12.34]), ["0.0", "12 ms per token"]);
});

test("a replay shows the tokens of earlier rounds and the draft tree of the current one", () => {
  const run = made();
  assert.deepEqual(run.roundsOf(0), [0, 1, 2]);
  assert.deepEqual([...run.values("acceptance", 0, 2)], [1, 3, 3, 3, 1, N, N, N]);
  assert.deepEqual(draftTree(run, 0, 2), [
    { cell: 5, drafts: 2, accepted: true },
    { cell: 6, drafts: 2, accepted: true },
    { cell: 7, drafts: 1, accepted: false },
  ]);
  assert.deepEqual(run.clock, [70, 80, 104]);
  assert.deepEqual([run.roundAt(0), run.roundAt(75), run.roundAt(80), run.roundAt(104)], [0, 1, 2, 3]);
});

test("a sentence names the fastest and the slowest region, if they differ", () => {
  // 6 by 6 tokens. The prompt's pass generates token 0. Two rounds generate 5 and 6 tokens, which completes the upper
  // third. All other rounds generate one token.
  const rounds = [
    [10, 0, [0, 0, 5, 1, 5, 1, 5, 4, 0, [], [1, 1, 1, 1, 1]]],
    [10, 0, [0, 5, 6, 1, 6, 1, 6, 5, 0, [], [1, 1, 1, 1, 1, 1]]],
  ];
  for (let at = 11; at < 35; at++) rounds.push([10, 0, [0, at, 1, 1, 1, 1, 1, 0, 0, [], [1]]]);
  const run = made({ grid: [6, 6] }, rounds);
  assert.match(sentence(run, 0), /^Fastest: top( left| right)? \([\d.]+ per pass\)\. Slowest: [a-z ]+ \(1\.0\)\.$/);
  const table = Object.fromEntries(numbers(run, 0));
  assert.deepEqual([table["Passes of the model"], table["Drafted tokens"]], [26, 5 + 6 + 24]);
  const even = Array.from({ length: 12 }, (_, i) => [10, 0, [0, 3 * i, 2, 1, 2, 1, 2, i < 11 ? 2 : 1, 0, [1, 1]]]);
  assert.equal(sentence(made({ grid: [6, 6] }, even), 0), "");
});

test("the caption shows what made the map, and which values differ now", () => {
  const exact = made({}, ROUNDS.slice(0, 2));
  assert.equal(caption(exact, []), "Seed 1 (ADT-Tree).", "during the run, or cancelled");
  exact.state = "done";
  assert.equal(caption(exact, []), "Made with seed 1 (ADT-Tree).");
  const differences = [
    { name: "seed", now: 2 },
    { name: "guidance", now: 4 },
    { name: PROMPT, now: "a cat" },
  ];
  const own = "Made with seed 1 (ADT-Tree).";
  assert.equal(caption(exact, differences), `${own} Seed is now 2, guidance is now 4, the prompt has changed.`);
  const muted = `${own} The node is muted, so the map is from an earlier run.`;
  assert.equal(caption(exact, [], texts.off[2]), muted);
});

test("a token has a tooltip, and a table with all data of its round", () => {
  const run = made();
  const seventh = "Row 2, column 3\n3 tokens in this pass\n2 of 5 drafts accepted\n24.0 ms";
  assert.equal(describe([run.token(0, 6)], 6, 4), seventh);
  assert.equal(describe([run.token(0, 4)], 4, 4), "Row 2, column 1\n1 token in this pass\nno drafts\n10.0 ms");
  assert.match(describe([run.token(0, 0), null], 0, 4), /A: generated with the prompt\nB: not generated yet/);
  const table = Object.fromEntries(tokenNumbers([run.token(0, 6)], 6));
  assert.deepEqual(table, {
    "Token 7": "pass 3",
    depth: "3 (4 requested)",
    width: "2 (1 requested)",
    drafts: "5",
    accepted: "2 (1 replaced)",
    alpha: "0.67",
  });
  assert.equal(Object.fromEntries(tokenNumbers([run.token(0, 6), null], 6)).drafts, "5 | –");
});

test("the map has texts in all languages of the pack, and uses English for others", () => {
  const run = made();
  const shape = (value) =>
    value && typeof value === "object" ? Object.entries(value).map(([key, one]) => [key, shape(one)]) : typeof value;
  const english = shape(texts);
  setLanguage("zh");
  assert.deepEqual(shape(texts), english);
  assert.match(describe([run.token(0, 6)], 6, 4), /第 2 行第 3 列\n本次前向生成 3 个 token/);
  run.state = "done";
  assert.match(summary(run), /^图像与不起草时相同 · 每次 2 个 token · 8 个 token，用时/);
  setLanguage("fr");
  assert.match(describe([null], 6, 4), /not generated yet/);
});

test("the scale starts at the minimum of the figure, and ignores a single slow token", () => {
  assert.deepEqual(range("acceptance", [1, 3, N]), [1, 3]);
  assert.deepEqual(range("acceptance", [1, 1]), [1, 2]);
  assert.deepEqual(range("depth", [2], [5]), [0, 5]);
  const times = [900, ...new Array(99).fill(5)];
  assert.deepEqual(range("time", times), [0, 5]);
});

test("a token that ends a row has no cell, but is counted", () => {
  const run = made({ grid: [2, 3], ends: 1 }, ROUNDS); // tokens 3 and 7 end rows
  assert.deepEqual([...run.values("acceptance", 0)], [1, 3, 3, 1, 3, 3]);
  assert.deepEqual([run.done, run.total], [8, 8]);
  const rounds = [0, 2, 3].map((cell) => run.token(0, cell).round);
  assert.deepEqual(rounds, [null, 0, 1]);
});
