import assert from "node:assert/strict";
import test from "node:test";
import { mark, nearest } from "../../js/batch_image.js";

/** An opaque image, like ImageData. @param {(x: number, y: number) => number[]} colour returns [red, green, blue] */
function picture(width, height, colour) {
  const data = new Uint8ClampedArray(4 * width * height);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) data.set([...colour(x, y), 255], 4 * (y * width + x));
  return { data, width, height };
}

test("a mark has the mean colours of 8 by 8 regions, row by row, as in nodes/map_marks.py", () => {
  const found = mark(picture(28, 40, (x, y) => [x, y, 7]));
  assert.equal(found.length, 192);
  // A region is 28 / 8 = 3.5 pixels wide and 40 / 8 = 5 pixels high. The first region has the columns 0 to 3 and the
  // rows 0 to 4. The second region has the columns 3 to 6: column 3 is partly in both regions, so both include it.
  assert.deepEqual(found.slice(0, 3), [1.5, 2, 7]);
  assert.deepEqual(found.slice(3, 6), [4.5, 2, 7]);
  assert.deepEqual(found.slice(3 * (7 * 8 + 3), 3 * (7 * 8 + 3) + 3), [11.5, 37, 7]);
  assert.equal(
    mark(picture(3, 2, () => [9, 9, 9])).every((value) => value === 9),
    true,
  );
});

test("an image is identified by the nearest mark, unless the second nearest mark is almost as near", () => {
  const flat = (value) => Array(192).fill(value);
  assert.equal(nearest([flat(10), flat(60), flat(90)], flat(62)), 1);
  assert.equal(nearest([null, null, flat(90)], flat(90)), 2);
  assert.equal(nearest([flat(10), flat(60)], flat(34)), null);
  assert.equal(nearest([flat(50), flat(55)], flat(52)), null);
  assert.equal(nearest([flat(50), flat(50)], flat(50)), 0);
  assert.equal(nearest([[50], null], flat(50)), null);
  assert.equal(nearest([], flat(50)), null);
});
