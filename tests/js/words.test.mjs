import assert from "node:assert/strict";
import test from "node:test";
import { methodName, speak } from "../../js/words.js";

test("methods have everyday names in both languages, and unknown ones keep theirs", () => {
  const methods = ["auto", "adt-tree", "eagle2", "autoregressive", "static:mc_sim_7b_63", "mine", null];
  assert.deepEqual(methods.map(methodName), ["Auto", "ADT-Tree", "EAGLE-2", "Plain", "Static: mc_sim_7b_63", "mine", null]);
  speak("zh");
  assert.deepEqual(methods.map(methodName), ["自动", "ADT-Tree", "EAGLE-2", "普通解码", "固定树：mc_sim_7b_63", "mine", null]);
  speak("en");
});
