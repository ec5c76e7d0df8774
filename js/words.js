/** All that the map and the Settings node say beside the schema, in the languages of locales/. */

const ENGLISH = {
  methods: { auto: "Auto", "adt-tree": "ADT-Tree", eagle2: "EAGLE-2", autoregressive: "Plain" },
  staticTree: (name) => `Static: ${name}`,
  map: "Acceptance map",
  figures: {
    acceptance: ["Acceptance", "tokens accepted at once"],
    depth: ["Depth", "depth of the draft tree"],
    width: ["Width", "width of the draft tree"],
    time: ["Time", "milliseconds per token"],
  },
  colourBy: "Colour by",
  image: "Image of the batch",
  imageOf: (image, count) => `${image} of ${count}`,
  opacity: "Opacity of the map over the image",
  overlay: "Map",
  compare: "Compare with another run",
  compareWith: "Compare with …",
  beside: (method) => `B (${method})`,
  previous: (method) => `previous run (${method})`,
  seed: (method, seed) => `${method}, seed ${seed}`,
  empty: "Run the workflow: the map of its tokens appears here.",
  noRun: "No run yet",
  keys: (figure, rows, columns) => `${figure} of ${rows} by ${columns} tokens. Arrow keys move from token to token.`,
  rate: (rate) => `${rate} tokens/s`,
  plain: "plain decoding",
  measured: (ratio) => `${ratio}× plain (measured)`,
  estimate: (ratio) => `≈ ${ratio}× plain (estimate)`,
  finished: (total, seconds) => `${total} tokens in ${seconds} s`,
  progress: (done, total) => `${done} of ${total} tokens`,
  stopped: ", stopped",
  token: (number, row, column) => `Token ${number} · row ${row}, column ${column}`,
  undecided: "not decided yet",
  round: "round",
  prompt: "prompt",
  depth: "depth",
  width: "width",
  built: (asked, built) => `${asked} asked, ${built} built`,
  nodes: "nodes",
  accepted: "accepted",
  lookAlikes: (count) => ` (${count} look-alikes)`,
  compareWithPlain: "ADT-Tree: compare with plain decoding",
  openBatch: "ADT-Tree: open as a batch",
};

const CHINESE = {
  methods: { auto: "自动", "adt-tree": "ADT-Tree", eagle2: "EAGLE-2", autoregressive: "普通解码" },
  staticTree: (name) => `固定树：${name}`,
  map: "接受图",
  figures: {
    acceptance: ["接受数", "一次接受的 token 数"],
    depth: ["深度", "草稿树的深度"],
    width: ["宽度", "草稿树的宽度"],
    time: ["用时", "每个 token 的毫秒数"],
  },
  colourBy: "着色依据：",
  image: "批次中的图像",
  imageOf: (image, count) => `第 ${image} 张，共 ${count} 张`,
  opacity: "接受图覆盖在图像上的不透明度",
  overlay: "接受图",
  compare: "与另一次运行对比",
  compareWith: "对比 …",
  beside: (method) => `B（${method}）`,
  previous: (method) => `上一次运行（${method}）`,
  seed: (method, seed) => `${method}，种子 ${seed}`,
  empty: "运行工作流后，这里会显示各个 token 的接受图。",
  noRun: "尚未运行",
  keys: (figure, rows, columns) => `${rows} 行 ${columns} 列 token 的${figure}。用方向键逐个移动。`,
  rate: (rate) => `每秒 ${rate} 个 token`,
  plain: "普通解码",
  measured: (ratio) => `普通解码的 ${ratio} 倍（实测）`,
  estimate: (ratio) => `约为普通解码的 ${ratio} 倍（估计）`,
  finished: (total, seconds) => `${total} 个 token，用时 ${seconds} 秒`,
  progress: (done, total) => `${total} 个 token 中的 ${done} 个`,
  stopped: "，已停止",
  token: (number, row, column) => `第 ${number} 个 token · 第 ${row} 行第 ${column} 列`,
  undecided: "尚未确定",
  round: "轮次",
  prompt: "提示词",
  depth: "深度",
  width: "宽度",
  built: (asked, built) => `要求 ${asked}，实际 ${built}`,
  nodes: "节点数",
  accepted: "接受数",
  lookAlikes: (count) => `（其中 ${count} 个相似替代）`,
  compareWithPlain: "ADT-Tree：与普通解码对比",
  openBatch: "ADT-Tree：作为批次打开",
};

/** The words in the user's language. */
export let words = ENGLISH;

/** Speak a language of ComfyUI's setting ("zh", "en", ...) from now on; English where the map doesn't know it. */
export function speak(locale) {
  words = locale === "zh" ? CHINESE : ENGLISH;
}

/** What people call a method; one that has no name here, by its own. */
export function methodName(method) {
  const [, tree] = /^static:(.+)/.exec(method) ?? [];
  return tree ? words.staticTree(tree) : (words.methods[method] ?? method);
}

const unit = (value, digits) => value.toFixed(digits);

/** One line about a run; `plain` is a run of plain decoding to measure it by, or null. */
export function summary(run, plain) {
  const { done, total, rate, tau, speedup, measured, seconds } = run.figures(plain);
  const parts = [words.rate(unit(rate, rate < 10 ? 1 : 0)), `τ ${unit(tau, 2)}`];
  if (run.method === "autoregressive") parts.push(words.plain);
  else if (speedup !== null) parts.push((measured ? words.measured : words.estimate)(unit(speedup, 2)));
  parts.push(run.state === "done" ? words.finished(total, unit(seconds, 1)) : words.progress(done, total) + (run.state === "stopped" ? words.stopped : ""));
  return parts.join(" · ");
}

/**
 * What is known of a token, in lines; with two runs, their values stand side by side.
 * @param {(object | null)[]} tokens of each run, from Run.token
 */
export function describe(tokens, cell, columns) {
  const side = (show) => tokens.map((token) => (token ? show(token) : "–")).join(" | ");
  const lines = [words.token(cell + 1, Math.floor(cell / columns) + 1, (cell % columns) + 1)];
  if (!tokens.some(Boolean)) return [...lines, words.undecided].join("\n");
  lines.push(
    `${words.round} ${side((t) => (t.round === null ? words.prompt : t.round + 1))}`,
    `${words.depth} ${side((t) => words.built(t.depthAsked, t.depth))}`,
    `${words.width} ${side((t) => words.built(t.widthAsked, t.width))}`,
    `${words.nodes} ${side((t) => t.nodes)}`,
    `${words.accepted} ${side((t) => t.accepted + (t.substituted ? words.lookAlikes(t.substituted) : ""))}`,
    `alpha ${side((t) => unit(t.alpha, 2))}`,
    `${side((t) => `${unit(t.ms, 1)} ms`)}`,
  );
  return lines.join("\n");
}
