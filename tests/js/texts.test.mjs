import assert from "node:assert/strict";
import test from "node:test";
import { downloadLabel, methodName, setLanguage } from "../../js/texts.js";

test("methods have displayed names in both languages, and unknown ones keep their own", () => {
  const methods = ["auto", "adt-tree", "eagle2", "no-drafting", "static:mc_sim_7b_63", "mine"];
  const english = ["Auto", "ADT-Tree", "EAGLE-2", "No drafting", "Static: mc_sim_7b_63", "mine"];
  const chinese = ["自动", "ADT-Tree", "EAGLE-2", "不起草", "固定树：mc_sim_7b_63", "mine"];
  for (const [language, names] of Object.entries({ zh: chinese, en: english })) {
    setLanguage(language);
    assert.deepEqual(methods.map(methodName), names);
    assert.equal(methodName(null), null);
  }
});

test("names that every object inherits have no texts", () => {
  for (const name of ["constructor", "__proto__", "toString", "hasOwnProperty"]) {
    assert.equal(methodName(name), name);
    assert.equal(downloadLabel("4 GB", name), "4 GB");
  }
});
