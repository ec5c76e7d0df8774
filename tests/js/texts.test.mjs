import assert from "node:assert/strict";
import test from "node:test";
import { downloadLabel, methodName, setLanguage } from "../../js/texts.js";

test("methods have displayed names in both languages, and unknown ones keep their own", () => {
  const methods = ["auto", "adt-tree", "eagle2", "no-drafting", "static:mc_sim_7b_63", "mine", null];
  assert.deepEqual(methods.map(methodName), [
    "Auto",
    "ADT-Tree",
    "EAGLE-2",
    "No drafting",
    "Static: mc_sim_7b_63",
    "mine",
    null,
  ]);
  setLanguage("zh");
  assert.deepEqual(methods.map(methodName), [
    "自动",
    "ADT-Tree",
    "EAGLE-2",
    "不起草",
    "固定树：mc_sim_7b_63",
    "mine",
    null,
  ]);
  setLanguage("en");
});

test("names that every object inherits have no texts", () => {
  for (const name of ["constructor", "__proto__", "toString", "hasOwnProperty"]) {
    assert.equal(methodName(name), name);
    assert.equal(downloadLabel("4 GB", name), "4 GB");
  }
});
