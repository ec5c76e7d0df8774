import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { setTemplates, translate } from "../../js/messages.js";

const CHINESE = JSON.parse(readFileSync(new URL("../../locales/zh/main.json", import.meta.url), "utf8"));

/** The text of a message in Chinese. */
function chinese(parts) {
  setTemplates(CHINESE.adtTree.messages, CHINESE.adtTree.sentences, { filter: "筛选", keep_top: "保留上部" });
  const text = translate(parts);
  setTemplates({});
  return text;
}

const FOLDER = { text: "The images are in output/x.", key: "batch.folder", parameters: { folder: "output/x" } };
const SPACE = { text: " ", key: "space", parameters: {} };

test("a message is translated by its key, with its parameters", () => {
  const parameters = { done: "0.12", total: "4.10", unit: "GB", rate: "85.3", left: "0:47" };
  const parts = [{ text: "Downloading: 0.12 of 4.10 GB, 85.3 MB/s, 0:47 left", key: "download.rate", parameters }];
  assert.equal(translate(parts), parts[0].text);
  assert.equal(chinese(parts), "正在下载：0.12 / 4.10 GB，85.3 MB/s，剩余 0:47");
});

test("the parts of a message are translated one by one, and plain texts stay as they are", () => {
  const plain = { text: "1 of 3 prompts are left out.", key: null, parameters: {} };
  assert.equal(translate([FOLDER, SPACE, plain]), "The images are in output/x. 1 of 3 prompts are left out.");
  assert.equal(chinese([FOLDER, SPACE, plain]), "图像位于 output/x。1 of 3 prompts are left out.");
  assert.equal(chinese([{ text: "Text of another pack" }]), "Text of another pack");
});

test("a key or a parameter without a translation is shown in English", () => {
  assert.equal(chinese([{ text: "Something new", key: "new.key", parameters: {} }]), "Something new");
  assert.equal(chinese([{ text: "Something", key: "toString", parameters: {} }]), "Something");
  assert.equal(chinese([{ ...FOLDER, parameters: {} }]), "图像位于 {folder}。");
});

test("a parameter is text, whatever it contains", () => {
  assert.equal(chinese([{ ...FOLDER, parameters: { folder: "$& {folder} <b>" } }]), "图像位于 $& {folder} <b>。");
});

test("a parameter that is a message is translated, too", () => {
  const method = [
    { text: "No drafting", key: "method.no-drafting", parameters: {} },
    { text: " (depth=5)", key: null, parameters: {} },
  ];
  const parameters = { number: 1, count: 4, method };
  const part = { text: "1 of 4 methods, now No drafting (depth=5)", key: "diagnostics.progress", parameters };
  assert.equal(chinese([part]), "4 种方法中的 1 种，正在检查 不起草 (depth=5)");
});

test("an error in an error is translated, and the names of inputs", () => {
  const parameters = { tokens: 9, model: "the bundled model", limit: 5 };
  const long = [
    { text: "Prompt too long: 9 tokens; the bundled model accepts 5; shorten it.", key: "prompt.too_long", parameters },
  ];
  const error = { text: "prompts: ...", key: "prompts.one_invalid", parameters: { id: "7", error: long } };
  const translated = "提示词太长：9 个 token；内置模型 最多接受 5 个；请缩短它";
  assert.equal(chinese([error]), `提示词：编号为“7”的提示词：${translated}，或将“无效提示词”设为“截短”或“跳过”。`);
  const value = { text: "filter: 5 arrived", key: "input.unusable", parameters: { input: "filter", value: "5" } };
  assert.equal(chinese([value]), "筛选：收到 5，此输入无法使用；请为它连接节点。");
});

test("a sentence of ComfyUI is found by its English text", () => {
  assert.equal(chinese([{ text: "Value 5 bigger than max of 1.0: keep_top" }]), "保留上部：5 大于最大值 1.0");
  assert.equal(chinese([{ text: "Value 5 bigger than max of 1: constructor" }]), "constructor：5 大于最大值 1");
});

test("names that every object inherits are neither keys nor parameters", () => {
  for (const key of ["constructor", "__proto__", "hasOwnProperty"])
    assert.equal(chinese([{ text: "Something", key, parameters: {} }]), "Something");
  setTemplates({ "a.key": "{constructor} and {__proto__}" });
  assert.equal(translate([{ text: "Something", key: "a.key", parameters: {} }]), "{constructor} and {__proto__}");
  setTemplates({});
});
