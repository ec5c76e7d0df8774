import assert from "node:assert/strict";
import test from "node:test";
import { isNote, line, methodName, setLanguage } from "../../js/texts.js";

test("methods have everyday names in both languages, and unknown ones keep theirs", () => {
  const methods = ["auto", "adt-tree", "eagle2", "autoregressive", "static:mc_sim_7b_63", "mine", null];
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

test("what the server says of progress and of unknown prompts is said in Chinese, and everything else is left as it is", () => {
  const said = {
    "3 of 8 images, 700 of 2048 tokens": "8 张图像中的 3 张，2048 个 token 中的 700 个",
    "8 images, 1 of them made before; they are in output/x": "8 张图像，其中 1 张是之前生成的；位于 output/x",
    "0 of 4 prompts, 3 methods each": "4 个提示词中的 0 个，每个用 3 种方法",
    "4 prompts; the results are in output/x": "4 个提示词；结果位于 output/x",
    "3 of 8 images, 700 of 2048 tokens; Relaxed: 3.1 % of the tokens replaced":
      "8 张图像中的 3 张，2048 个 token 中的 700 个；放宽：3.1% 的 token 被替换",
    "This small model knows houses, boats, balloons, mugs and the like, and drew something else for 'a cat'.":
      "这个小模型只认识房子、船、热气球、杯子等的英文词，没有画 'a cat'，画了别的。",
    "This small model knows houses, boats, balloons, mugs and the like, and drew something else for 'St. Peter'. Unknown words: st, peter.":
      "这个小模型只认识房子、船、热气球、杯子等的英文词，没有画 'St. Peter'，画了别的。不认识的词：st, peter。",
    "This small model knows houses, boats, balloons, mugs and the like, and drew something else for 2 of 3 prompts: 'a cat', 'a dog'. Unknown words: cat, dog and others.":
      "这个小模型只认识房子、船、热气球、杯子等的英文词，3 个提示词中有 2 个画成了别的：'a cat', 'a dog'。不认识的词：cat, dog 等。",
    "The images are in output/x. This small model knows houses, boats, balloons, mugs and the like, and drew something else for 4 of 8 prompts: 'a', 'b', 'c' and others.":
      "图像位于 output/x。这个小模型只认识房子、船、热气球、杯子等的英文词，8 个提示词中有 4 个画成了别的：'a', 'b', 'c' 等。",
    "The images are in output/x. 1 of 9 prompts are left out. This small model knows houses, boats, balloons, mugs and the like, and drew something else for 1 of 8 prompts: 'a'.":
      "图像位于 output/x。1 of 9 prompts are left out. 这个小模型只认识房子、船、热气球、杯子等的英文词，8 个提示词中有 1 个画成了别的：'a'。",
    "The images are in output/x. 1 of 3 prompts are left out.":
      "The images are in output/x. 1 of 3 prompts are left out.",
    "8 of 400 pictures; about 12 min in all": "400 张图像中的 8 张；总共约 12 分钟",
    "90 steps; about 1.5 min in all": "90 步；总共约 1.5 分钟",
    "300 steps, 2.31 tokens a pass; about 12 min in all": "300 步，每次前向 2.31 个 token；总共约 12 分钟",
    "The training takes about 12 min (3.0 to generate, 9.1 to train), 1.2 GB of memory and 0.4 GB of disk.":
      "训练约需 12 分钟（生成图像 3.0，学习 9.1）、1.2 GB 内存和 0.4 GB 磁盘空间。",
    "'mine' drafts 2.31 tokens a pass after 300 steps; the Drafter Loader has it.":
      "“mine”在 300 步后每次前向得到 2.31 个 token；草稿模型加载器中已有它。",
    "GLM-Image was trained for images of about as many pixels as 1024x1024 to 2048x2048; 512x512 is outside of that, so the image may look worse.":
      "GLM-Image 是用像素数约为 1024x1024 至 2048x2048 的图像训练的；512x512 不在此范围内，图像质量可能较差。",
    "The images are in output/x. Lumina-mGPT-7B-768 was trained for images of about as many pixels as 768x768; 256x256 is outside of that, so the image may look worse.":
      "图像位于 output/x。Lumina-mGPT-7B-768 是用像素数约为 768x768 的图像训练的；256x256 与此相差较大，图像质量可能较差。",
    "LlamaGen-T2I is not installed; set if_missing to 'download' and run again":
      "LlamaGen-T2I 尚未安装；请将“缺失时”设为“下载”并重新运行",
    "Downloading: 0.12 of 4.10 GB": "正在下载：0.12 / 4.10 GB",
    "Downloading: 0.12 of 4.10 GB, 85.3 MB/s, 0:47 left": "正在下载：0.12 / 4.10 GB，85.3 MB/s，剩余 0:47",
    "Waiting for another download to the same folder": "正在等待另一个下载到同一文件夹的任务",
    "Asking the Hub for the list of files": "正在向 Hub 查询文件列表",
    "Checking files that are already there": "正在检查已有的文件",
    "Janus-Pro-1B is downloaded": "Janus-Pro-1B 已下载",
    "1 of 4 methods, now auto": "4 种方法中的 1 种，正在检查 auto",
    "Checked; the report is on this node": "检查完成；报告显示在此节点上",
    "The images are in output/x. 1 duplicate (same prompt and seed), generated once.":
      "图像位于 output/x。有 1 个重复项（提示词和种子相同），只生成一次。",
    "Ignored, because preset is 'model default': guidance 9.0, top_k 5. Set preset to 'custom' to use your own values.":
      "预设为 model default，因此忽略了 guidance 9.0, top_k 5；要使用自己的数值，请将预设设为 custom。",
    "Prompt truncated to its first 480 of 1990 characters: 444 tokens; the bundled model accepts 125. Negative prompt truncated to its first 1 of 2 characters: 9 tokens; M 1.5 accepts 5.":
      "提示词截短为 1990 个字符中的前 480 个：共 444 个 token，the bundled model 最多接受 125 个。 负面提示词截短为 2 个字符中的前 1 个：共 9 个 token，M 1.5 最多接受 5 个。",
    "a note": "a note",
  };
  assert.deepEqual(Object.keys(said).map(line), Object.keys(said));
  setLanguage("zh");
  assert.deepEqual(Object.keys(said).map(line), Object.values(said));
  setLanguage("en");
});

test("how far a run is, is no note to be read after it", () => {
  const progress = [
    "3 of 8 images, 700 of 2048 tokens",
    "8 images, 1 of them made before; they are in output/x",
    "0 of 4 prompts, 3 methods each",
    "4 prompts; the results are in output/x",
    "8 of 400 pictures; about 12 min in all",
    "300 steps, 2.31 tokens a pass; about 12 min in all",
    "1 of 4 methods, now auto",
    "Downloading: 0.12 of 4.10 GB, 85.3 MB/s, 0:47 left",
    "Waiting for another download to the same folder",
    "Asking the Hub for the list of files",
    "Checking files that are already there",
    "Janus-Pro-1B is downloaded",
  ];
  assert.deepEqual(
    progress.map(isNote),
    progress.map(() => false),
  );
  const notes = [
    "1 of 4 prompts are blank and were left out: '2'.",
    "The images are in output/x. 1 of 3 prompts are left out.",
    "LlamaGen is not installed; set if_missing to 'download' and run again",
    "This small model knows houses, and drew something else for 'a cat'.",
  ];
  assert.deepEqual(notes.map(isNote), [true, true, true, true]);
});
