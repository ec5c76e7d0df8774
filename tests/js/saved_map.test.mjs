import assert from "node:assert/strict";
import test from "node:test";
import { deflateSync } from "node:zlib";
import { sound, unpack } from "../../js/saved_map.js";

const saved = (numbers) => ({ data: deflateSync(Buffer.from(numbers)).toString("base64") });

test("a saved map is unpacked into the rounds of the live messages", async () => {
  const columns = [
    [2], // rounds
    [0xd0, 0x0f, 100], // 20 ms and 1 ms, in hundredths
    [0, 50],
    [2, 1], // shares
    [0, 1, 0], // images
    [0, 6, 1], // image 1 starts at 3; image 0 begins one token earlier than expected
    [4, 1, 3], // depth asked
    [2, 1, 1],
    [2, 0, 1], // depth
    [3, 0, 1],
    [4, 0, 1], // nodes
    [1, 0, 1], // accepted
    [0, 0, 1],
    [3, 1, 1], // drafts on each level
  ];
  assert.deepEqual(await unpack(saved(columns.flat())), [
    [20, 0, [0, 0, 4, 2, 2, 3, 4, 1, 0, [3, 1]], [1, 3, 1, 1, 0, 0, 0, 0, 0, []]],
    [1, 0.5, [0, 1, 3, 1, 1, 1, 1, 1, 1, [1]]],
  ]);
});

test("no rounds are no rounds", async () => assert.deepEqual(await unpack(saved([0])), []));

test("damaged numbers are refused, and do not fill the memory", async () => {
  await assert.rejects(unpack({ data: "AAAA" }));
  await assert.rejects(unpack(saved([200, 200, 200, 200, 100])));
  await assert.rejects(unpack({ data: deflateSync(Buffer.alloc(2 ** 26)).toString("base64") }), /too many numbers/);
});

const MAP = { id: "a", node: "6", method: "adt-tree", seed: "1", comparable: "m", data: "", images: 1, grid: [2, 4], start: 0, part: 0, parts: 1 };

test("of a map from a file only what belongs to a map is taken, and nothing is fetched from elsewhere", () => {
  const thumbnails = ["https://example.org/seen.png", "data:image/svg+xml,<svg/>", "data:image/jpeg;base64,AA"];
  const taken = sound({ ...MAP, thumbnails, pictures: [{ filename: "x" }], inputs: { seed: 5 }, __proto__: { evil: 1 } });
  assert.deepEqual(taken.thumbnails, ["data:image/jpeg;base64,AA"]);
  assert.deepEqual(taken.inputs, { seed: "5" });
  assert.ok(!("pictures" in taken) && !("evil" in taken));
  for (const wrong of [{ grid: [1e6, 1e6] }, { grid: null }, { images: 1e9 }, { images: "x" }, { start: -1 }]) assert.throws(() => sound({ ...MAP, ...wrong }));
});
