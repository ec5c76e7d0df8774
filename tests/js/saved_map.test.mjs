import assert from "node:assert/strict";
import test from "node:test";
import { deflateSync } from "node:zlib";
import { FIGURES } from "../../js/map_model.js";
import { Budget, checkMap, checkProperty, unpack } from "../../js/saved_map.js";

const CELLS = 8;
const TEXTS = { id: "a", node: "6", method: "adt-tree", seed: "1", comparable: "m", data: "" };
const MAP = { ...TEXTS, images: 1, grid: [2, 4], start: 0, part: 0, parts: 1 };

/** A saved map of two images with these columns as its data. */
function saved(columns) {
  return { ...MAP, images: 2, data: deflateSync(JSON.stringify(columns)).toString("base64") };
}

const EMPTY = Array.from({ length: 14 }, () => []);

test("a saved map is unpacked into the rounds of the live messages", async () => {
  const columns = [
    [2000, 100], // times of the rounds in 0.01 ms
    [0, 50], // drafting times of the rounds in 0.01 ms
    [2, 1], // number of records of each round; the columns below have one value per record
    [0, 1, 0], // image
    [0, 3, -1], // distance; image 1 starts at position 3, and the last record one token early
    [4, 1, 3], // depth asked
    [2, 1, 1], // width asked
    [2, 0, 1], // depth
    [3, 0, 1], // width
    [4, 0, 1], // drafts
    [1, 0, 1], // accepted
    [0, 0, 1], // substituted
    [3, 1, 1], // drafts on each level: 3 and 1 of the first record, none of the second record, 1 of the third record
    [90, 100, 0, 7, 100], // percent of the most probable value of each token; 0 if it is not known
  ];
  assert.deepEqual(await unpack(saved(columns)), [
    [20, 0, [0, 0, 4, 2, 2, 3, 4, 1, 0, [90, 100], [3, 1]], [1, 3, 1, 1, 0, 0, 0, 0, 0, [0], []]],
    [1, 0.5, [0, 1, 3, 1, 1, 1, 1, 1, 1, [7, 100], [1]]],
  ]);
});

test("the tokens of a smaller image precede the image", async () => {
  const record = [0, 8, 1, 1, 1, 1, 1, 1, 0]; // position 8 is outside 2 by 4 tokens
  await assert.rejects(unpack(oneRound([record], [1])), RangeError);
  assert.equal((await unpack({ ...oneRound([record], [1]), small: [2, 2] }))[0][2][1], 8);
  assert.deepEqual(checkMap({ ...MAP, small: [2, 2], start: 9 }, new Budget()).small, [2, 2]);
  assert.throws(() => checkMap({ ...MAP, small: [2, 2 ** 40] }, new Budget()), RangeError);
});

test("a map without rounds is valid", async () => assert.deepEqual(await unpack(saved(EMPTY)), []));

test("damaged numbers are rejected without using much memory", async () => {
  await assert.rejects(unpack({ ...MAP, data: "AAAA" }));
  const round = (...columns) => [...columns, ...EMPTY.slice(3)];
  const wrong = [round(["1"], [1], [0]), round([1.5], [1], [0]), round([1], [1], []), round([1], [1], [2 ** 40])];
  for (const odd of [null, 5, "x", {}, [[1]], ...wrong])
    await assert.rejects(unpack(saved(odd)), RangeError, JSON.stringify(odd));
  await assert.rejects(unpack(saved("x".repeat(2 ** 26))), /too many numbers/);
});

/**
 * A saved map of one round. A record is [image, distance, depth asked, width asked, depth, width, drafts, accepted,
 * substituted]. `levels` are the numbers of drafts on the levels of all records.
 */
const oneRound = (records, levels = []) =>
  saved([
    [0],
    [0],
    [records.length],
    ...Array.from({ length: 9 }, (_, i) => records.map((record) => record[i])),
    levels,
    records.flatMap((record) => Array(Math.min(record[7], CELLS) + 1).fill(50)),
  ]);

test("more records, depths or positions than a map can have are rejected", async () => {
  const record = [0, 0, 1, 1, 1, 1, 1, 1, 0];
  const other = (changes) => record.map((value, i) => changes[i] ?? value);
  assert.equal((await unpack(oneRound([record], [1])))[0].length, 3);
  const wrong = {
    "of a missing image": [[other({ 0: 2 })], [1]],
    "before the image": [[other({ 1: -1 })], [1]],
    "after the image": [[other({ 1: 8 })], [1]],
    "far after the image": [[other({ 1: 2 ** 60 })], [1]],
    "more tokens than an image has": [[other({ 7: 8 })], [1]],
    "the same tokens again and again": [Array.from({ length: 5 }, (_, i) => other({ 1: i ? -2 : 0 })), [1, 1, 1, 1, 1]],
    "deeper than the data": [[other({ 4: 3 })], [1]],
    "deeper than the largest number": [[other({ 4: 2 ** 60 })], [1]],
  };
  for (const [what, [records, levels]] of Object.entries(wrong))
    await assert.rejects(unpack(oneRound(records, levels)), RangeError, what);
});

test("the maps of a file share one budget for numbers and cells", async () => {
  const budget = new Budget();
  const large = () => checkMap({ ...MAP, grid: [1024, 1024] }, budget);
  for (let i = 0; i < 2; i++) large();
  assert.throws(large, /too many numbers/);
  await assert.rejects(unpack(saved(EMPTY), budget), /too many numbers/);
});

test("a property of any type gives only valid settings and references", () => {
  const usual = { figure: "acceptance", opacity: 0.6 };
  const none = { settings: {}, tag: undefined, runs: [] };
  const wrong = { runs: "x", tag: 5, opacity: "1", figure: 7, evil: 1 };
  const inherited = { figure: "toString", runs: { 0: "a" } };
  for (const odd of [undefined, null, 0, "", "text", [], [1], true, wrong, inherited])
    assert.deepEqual(checkProperty(odd, usual, FIGURES), none);
  const references = [
    [null, []],
    [5, []],
    ["id", []],
    [{}, []],
    [{ id: 5 }, []],
    [{ id: "a", prompt: 7, part: "0" }, [{ id: "a", part: 0 }]],
    [{ id: "b", prompt: "\ud800" }, [{ id: "b", part: 0 }]],
    [{ id: "d", prompt: "p", node: { toString: null } }, [{ id: "d", part: 0 }]],
    [{ id: "c", prompt: "p", node: 6, part: 1 }, [{ id: "c", part: 1, prompt: "p", node: "6" }]],
  ];
  const runs = references.map(([run]) => run);
  const settings = { figure: "time", opacity: 0 };
  const expected = { settings, tag: "t", runs: references.flatMap(([, found]) => found) };
  assert.deepEqual(checkProperty({ ...settings, tag: "t", runs }, usual, FIGURES), expected);
});

test("a map from a file gives only known fields, and nothing is fetched from the network", () => {
  const thumbnails = ["https://example.org/seen.png", "data:image/svg+xml,<svg/>", "data:image/jpeg;base64,AA"];
  const taken = checkMap(
    { ...MAP, thumbnails, pictures: [{ filename: "x" }], inputs: { seed: 5 }, __proto__: { evil: 1 } },
    new Budget(),
  );
  assert.deepEqual(taken.thumbnails, ["data:image/jpeg;base64,AA"]);
  assert.deepEqual(taken.inputs, { seed: "5" });
  assert.deepEqual(
    [true, "yes", undefined].map((relaxed) => checkMap({ ...MAP, relaxed }, new Budget()).relaxed),
    [true, false, false],
  );
  const texts = { 4: { text: "a cat", long: "x".repeat(2 ** 15), odd: 5 } };
  assert.deepEqual(checkMap({ ...MAP, texts }, new Budget()).texts, { 4: { text: "a cat" } });
  assert.ok(!("pictures" in taken) && !("evil" in taken));
  const wrong = { grid: [[1e6, 1e6], null], images: [1e9, "x"], start: [-1, 10], part: [2], parts: [9] };
  const cases = Object.entries(wrong).flatMap(([name, values]) => values.map((value) => ({ [name]: value })));
  for (const one of [...cases, { images: 2 ** 13, grid: [1, 1] }])
    assert.throws(() => checkMap({ ...MAP, ...one }, new Budget()), JSON.stringify(one));
  for (const odd of [null, 5, "map", [], {}]) assert.throws(() => checkMap(odd, new Budget()));
  for (const odd of [5, "data:image/jpeg;base64,", { 0: "x" }, null])
    assert.deepEqual(checkMap({ ...MAP, thumbnails: odd }, new Budget()).thumbnails, []);
});
