import assert from "node:assert/strict";
import test from "node:test";
import { range, Run } from "../../js/map_model.js";
import { describe, speak, summary, words } from "../../js/words.js";

const HEADER = { id: "a", node: "6", method: "adt-tree", seed: "1", comparable: "m", images: 1, grid: [2, 4], prefill: 50 };
// [ms, drafting, [image, position, depth asked, width asked, depth, width, nodes, accepted, substituted]]
const ROUNDS = [
  [20, 5, [0, 0, 3, 2, 3, 4, 6, 2, 0]],
  [10, 0, [0, 3, 0, 1, 0, 0, 0, 0, 0]],
  [24, 4, [0, 4, 4, 1, 3, 2, 5, 2, 1]],
];
const N = NaN;

function made(header = {}, rounds = ROUNDS) {
  const run = new Run({ ...HEADER, ...header });
  run.append(0, rounds);
  return run;
}

test("each token has the figures of the round that produced it, the first those of the prompt", () => {
  const run = made();
  assert.deepEqual([...run.values("acceptance", 0)], [1, 3, 3, 3, 1, 3, 3, 3]);
  assert.deepEqual([...run.values("depth", 0)], [0, 3, 3, 3, 0, 3, 3, 3]);
  assert.deepEqual([...run.values("width", 0)], [0, 4, 4, 4, 0, 2, 2, 2]);
  assert.deepEqual([...run.values("time", 0)].map(Math.round), [50, 7, 7, 7, 10, 8, 8, 8]);
});

test("increments give what the whole gives, in whatever pieces they come and however often", () => {
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

test("rounds that were missed stay unknown", () => {
  const run = new Run(HEADER);
  run.append(2, ROUNDS.slice(2));
  assert.deepEqual([...run.values("acceptance", 0)], [N, N, N, N, N, 3, 3, 3]);
  assert.equal(run.token(0, 1), null);
});

test("images of a batch advance on their own, and one that is finished drops out", () => {
  const share = (image, position, accepted) => [image, position, 3, 1, 3, 1, 3, accepted, 0];
  const run = made({ images: 2 }, [
    [10, 1, share(0, 0, 3)],
    [10, 1, share(0, 4, 2), share(1, 0, 1)], // which entered later
    [10, 1, share(1, 2, 0)],
    [10, 1, share(1, 3, 3)],
  ]);
  assert.deepEqual([...run.values("acceptance", 0)], [1, 4, 4, 4, 4, 3, 3, 3]);
  assert.deepEqual([...run.values("acceptance", 1)], [1, 2, 2, 1, 4, 4, 4, 4]);
  assert.equal(run.done, 16);
  assert.equal(run.figures().tau, (4 + 3 + 2 + 1 + 4) / 5);
});

test("tokens that were given with an image to continue are neither coloured nor counted", () => {
  const run = made({ start: 3 }, [[10, 1, [0, 3, 3, 1, 3, 1, 3, 3, 0]]]);
  assert.deepEqual([...run.values("acceptance", 0)], [N, N, N, 1, 4, 4, 4, 4]);
  assert.equal(run.done, 5);
  assert.equal(run.total, 5);
});

test("tokens of one round belong together", () => {
  assert.deepEqual(made().together(0, 2), [1, 3]);
  assert.deepEqual(made().together(0, 4), [4, 4]);
});

test("the speed-up is measured against a run of plain decoding, and an estimate without one", () => {
  const plain = made({ method: "autoregressive", prefill: 46 }, Array.from({ length: 7 }, (_, i) => [22, 0, [0, i, 0, 1, 0, 0, 0, 0, 0]]));
  assert.equal(plain.plainRound, null);
  plain.state = "done";
  const run = made();
  const measured = run.figures(plain);
  assert.equal(measured.measured, true);
  assert.equal(measured.speedup, (46 + 7 * 22) / (50 + 54));
  const estimate = run.figures();
  assert.equal(estimate.measured, false);
  assert.equal(estimate.speedup, (50 + 7 * 15) / (50 + 54));
  assert.match(summary(run, plain), /1\.92× plain \(measured\)/);
  assert.match(summary(run, null), /≈ 1\.49× plain \(estimate\)/);
  assert.match(summary(plain, plain), /plain decoding/);
});

test("the words about a token name everything that is known of its round", () => {
  const run = made();
  const words = describe([run.token(0, 6)], 6, 4);
  for (const part of ["Token 7", "row 2, column 3", "round 3", "depth 4 asked, 3 built", "width 1 asked, 2 built", "nodes 5", "accepted 2 (1 look-alikes)", "alpha 0.67", "24.0 ms"]) {
    assert.ok(words.includes(part), `${part} in ${words}`);
  }
  assert.match(describe([run.token(0, 6), null], 6, 4), /nodes 5 \| –/);
  assert.match(describe([null], 6, 4), /not decided yet/);
});

test("the map speaks the languages of the pack, and English otherwise", () => {
  const run = made();
  const keys = Object.keys(words);
  speak("zh");
  assert.deepEqual(Object.keys(words), keys);
  assert.match(describe([run.token(0, 6)], 6, 4), /第 7 个 token · 第 2 行第 3 列\n轮次 3\n深度 要求 4，实际 3/);
  assert.match(summary(run, null), /约为普通解码的 1\.49 倍（估计）/);
  speak("fr");
  assert.match(describe([null], 6, 4), /not decided yet/);
});

test("the scale starts where the figure does and one slow token does not stretch it", () => {
  assert.deepEqual(range("acceptance", [1, 3, N]), [1, 3]);
  assert.deepEqual(range("acceptance", [1, 1]), [1, 2]);
  assert.deepEqual(range("depth", [2], [5]), [0, 5]);
  const times = [900, ...new Array(99).fill(5)];
  assert.deepEqual(range("time", times), [0, 5]);
});

test("a token that ends a row is no cell, but counts as a token", () => {
  const run = made({ grid: [2, 3], ends: 1 }, ROUNDS); // tokens 3 and 7 end rows
  assert.deepEqual([...run.values("acceptance", 0)], [1, 3, 3, 1, 3, 3]);
  assert.deepEqual([run.done, run.total], [8, 8]);
  assert.deepEqual([0, 2, 3].map((cell) => run.token(0, cell).round), [null, 0, 1]);
});
