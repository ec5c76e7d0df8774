/** Texts of the acceptance map, the Settings node and the context menus, in the languages of the folder `locales`. */

import { own } from "./own.js";

/** `name` of a `Difference` (see caption.js) in a prompt's text. For other differences, `name` is the input's name. */
export const PROMPT = Symbol("prompt");

const sentenceCase = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

const ENGLISH = {
  methods: { auto: "Auto", "adt-tree": "ADT-Tree", eagle2: "EAGLE-2", "no-drafting": "No drafting" },
  staticTree: (name) => `Static: ${name}`,
  setByPreset: " (set by preset)", // after the name of an input
  setBySettings: " (from settings)", // after the name of the input drafting
  map: "Acceptance map",
  result: "Result",
  line: "Message",
  figures: {
    acceptance: ["Acceptance", "tokens accepted per pass"],
    depth: ["Depth", "depth of the draft tree"],
    width: ["Width", "width of the draft tree"],
    time: ["Time", "milliseconds per token"],
    moment: ["Elapsed", "seconds from the start of the run"],
  },
  ends: {
    acceptance: [(least) => least, (most) => `${most} tokens per pass`],
    depth: [(least) => least, (most) => `${most} levels deep`],
    width: [(least) => least, (most) => `${most} drafts wide`],
    time: [(least) => least, (most) => `${most} ms per token`],
    moment: [(least) => least, (most) => `${most} s elapsed`],
  },
  pending: "not generated",
  colourBy: "Color by",
  image: "Image of the batch",
  imageOf: (image, count) => `${image} of ${count}`,
  cells: "Show the map over the image",
  opacity: "Opacity of the map over the image",
  overlay: "Map",
  compare: "Compare with another run",
  compareWith: "Compare with …",
  over: "Slider",
  overTitle: "Overlay both images, with a divider that you can drag",
  split: "Divider between A and B",
  difference: "Difference",
  differenceTitle: "Show where both images differ",
  identical: "A − B: both images are identical",
  differs: "A − B: the brighter, the more they differ",
  beside: (method) => `B (${method})`,
  previous: (method) => `previous run (${method})`,
  seed: (method, seed) => `${method}, seed ${seed}`,
  empty: "Run the workflow to see its acceptance map here.",
  noRun: "No run yet",
  keys: (figure, rows, columns) =>
    `${figure} of ${rows} by ${columns} tokens. Use the arrow keys to move between tokens, + and - to zoom.`,
  at: (method, seed) => `Seed ${seed} (${method}).`,
  of: (method, seed) => `Made with seed ${seed} (${method}).`,
  now: (differences) =>
    sentenceCase(
      differences
        .map(({ name, now }) => (name === PROMPT ? "the prompt has changed" : `${name} is now ${now}`))
        .join(", "),
    ),
  restore: (name, was) => (name === PROMPT ? "Restore prompt" : `Restore ${name} ${was}`),
  restoreTitle: (was) => `Set the node back to the value that made this image: ${was}`,
  off: {
    2: "The node is muted, so the map is from an earlier run.",
    4: "The node is bypassed, so the map is from an earlier run.",
  },
  leftOut: "The node was not part of the last run, so the map is from an earlier run.",
  replay: "Replay the run pass by pass",
  play: "Play",
  pause: "Pause",
  finishedImage: "the finished image",
  replayed: (round, rounds) => `Pass ${round} of ${rounds}: `,
  verified: (accepted, rejected) => `${accepted} drafts accepted (green), ${rejected} rejected (orange)`,
  zoomIn: "Zoom in",
  zoomOut: "Zoom out",
  save: "Save map as image",
  thirds: ["Top left", "Top", "Top right", "Left", "Center", "Right", "Bottom left", "Bottom", "Bottom right"],
  contrast: ([easy, most], [hard, least]) =>
    `Fastest: ${easy.toLowerCase()} (${most} per pass). Slowest: ${hard.toLowerCase()} (${least}).`,
  numbers: "Details",
  counts: {
    tau: "Tokens per pass",
    rate: "Tokens per second",
    rounds: "Passes of the model",
    drafts: "Drafted tokens",
    right: "Accepted drafts",
    depth: "Mean tree depth",
  },
  meanOf: (mean, rounds) => `${mean} tokens per pass (${rounds} passes)`,
  rate: (rate) => `${rate} tokens/s`,
  faster: (ratio, image) => `About ${ratio} times as fast as without drafts${image && `, ${image}`}`,
  whileFaster: ["same image", "image slightly changed"],
  preparing: (seconds) => `Loading the model, measuring this device: ${seconds} s`,
  atATime: (tokens) => `${tokens} tokens at a time`,
  sameImage: "Same image as without drafts",
  equal: ["Other image than B", "Same image as B"],
  changedImage: "Image slightly changed",
  measure: "Measure",
  measureTitle: "Add the node ADT-Tree Compare and run it: it draws this image with and without drafting, in turns",
  plain: "No drafting",
  undrafted: ["No drafts", "Hardly any drafts"],
  unpaid: (few, images) =>
    `Drafting would not be faster ${images > 1 ? `for a batch of ${images} images` : "here"}: ${few ? "mostly " : ""}one token per pass.`,
  relaxed: (method, share) => `${method}, Relaxed, ${share} % of tokens replaced`,
  relaxedShort: (method, share) => `${method}, Relaxed ${share} %`,
  fasterInTurns: (ratio) => `${ratio}× as fast as B (measured in turns)`,
  fasterInPrompt: (ratio) => `${ratio}× as fast as B (measured one after the other)`,
  finished: (total, seconds) => `${total} tokens drawn in ${seconds} s`,
  progress: (done, total) => `${done} of ${total} tokens`,
  stopped: ", stopped",
  more: "more",
  less: "less",
  place: (row, column) => `Row ${row}, column ${column}`,
  undecided: "not generated yet",
  withPrompt: "generated with the prompt",
  alone: "1 token in this pass",
  together: (count) => `${count} tokens in this pass`,
  guessed: (drafts, accepted) => (drafts ? `${accepted} of ${drafts} drafts accepted` : "no drafts"),
  token: (number) => `Token ${number}`,
  round: "pass",
  prompt: "prompt",
  depth: "depth",
  width: "width",
  built: (asked, built) => `${built} (${asked} requested)`,
  drafts: "drafts",
  accepted: "accepted",
  lookAlikes: (count) => ` (${count} replaced)`,
  compareWithPlain: "ADT-Tree: compare with no drafting",
  openBatch: "ADT-Tree: open as a batch",
  download: {
    "": (size) => `download, ${size}`,
    int8: (size) => `download, ${size}; fits with int8 weights`,
    int4: (size) => `download, ${size}; fits with int4 weights`,
    no: (size) => `download, ${size}; too large for this GPU`,
  },
  unknownFormat: (found, own) =>
    `A node was saved with format ${found}, but this ADT-Tree reads format ${own}; open the workflow with the version that saved it. The node is muted, and its values are kept.`,
};

const CHINESE = {
  methods: { auto: "自动", "adt-tree": "ADT-Tree", eagle2: "EAGLE-2", "no-drafting": "不起草" },
  staticTree: (name) => `固定树：${name}`,
  setByPreset: "（由预设决定）",
  setBySettings: "（由设置决定）",
  map: "接受图",
  result: "结果",
  line: "消息",
  figures: {
    acceptance: ["接受数", "每次前向接受的 token 数"],
    depth: ["深度", "草稿树的深度"],
    width: ["宽度", "草稿树的宽度"],
    time: ["用时", "每个 token 的毫秒数"],
    moment: ["时刻", "从运行开始经过的秒数"],
  },
  ends: {
    acceptance: [(least) => least, (most) => `每次前向 ${most} 个 token`],
    depth: [(least) => least, (most) => `深 ${most} 层`],
    width: [(least) => least, (most) => `宽 ${most} 个草稿`],
    time: [(least) => least, (most) => `每个 token ${most} 毫秒`],
    moment: [(least) => least, (most) => `第 ${most} 秒`],
  },
  pending: "未生成",
  colourBy: "着色依据：",
  image: "批次中的图像",
  imageOf: (image, count) => `第 ${image} 张，共 ${count} 张`,
  cells: "在图像上显示接受图",
  opacity: "接受图覆盖在图像上的不透明度",
  overlay: "接受图",
  compare: "与另一次运行对比",
  compareWith: "对比 …",
  over: "滑块",
  overTitle: "叠放两张图像，可拖动分界线对比",
  split: "A 与 B 的分界线",
  difference: "差异",
  differenceTitle: "显示两张图像的不同之处",
  identical: "A − B：两张图像完全相同",
  differs: "A − B：越亮表示差异越大",
  beside: (method) => `B（${method}）`,
  previous: (method) => `上一次运行（${method}）`,
  seed: (method, seed) => `${method}，种子 ${seed}`,
  empty: "运行工作流后，这里会显示它的接受图。",
  noRun: "尚未运行",
  keys: (figure, rows, columns) => `${rows} 行 ${columns} 列 token 的${figure}。用方向键逐个移动，用 + 和 - 缩放。`,
  at: (method, seed) => `种子 ${seed}（${method}）。`,
  of: (method, seed) => `使用种子 ${seed} 生成（${method}）。`,
  now: (differences) =>
    `${differences.map(({ name, now }) => (name === PROMPT ? "提示词已更改" : `${name}现在为 ${now}`)).join("，")}。`,
  restore: (name, was) => (name === PROMPT ? "恢复提示词" : `恢复${name} ${was}`),
  restoreTitle: (was) => `将节点恢复为生成此图像时的值：${was}`,
  off: { 2: "节点已静音，接受图来自之前的运行。", 4: "节点已绕过，接受图来自之前的运行。" },
  leftOut: "上一次运行不包含此节点，接受图来自更早的运行。",
  replay: "逐次前向回放",
  play: "播放",
  pause: "暂停",
  finishedImage: "完成的图像",
  replayed: (round, rounds) => `第 ${round} 次前向，共 ${rounds} 次：`,
  verified: (accepted, rejected) => `接受 ${accepted} 个草稿（绿），拒绝 ${rejected} 个（橙）`,
  zoomIn: "放大",
  zoomOut: "缩小",
  save: "把接受图保存为图像",
  thirds: ["左上", "上方", "右上", "左侧", "中间", "右侧", "左下", "下方", "右下"],
  contrast: ([easy, most], [hard, least]) =>
    `最快：${easy}（每次前向 ${most} 个 token）。最慢：${hard}（${least} 个）。`,
  numbers: "详情",
  counts: {
    tau: "每次前向的 token 数",
    rate: "每秒 token 数",
    rounds: "模型的前向次数",
    drafts: "草稿 token 数",
    right: "接受的 token 数",
    depth: "草稿树平均深度",
  },
  meanOf: (mean, rounds) => `每次前向 ${mean} 个 token（${rounds} 次前向）`,
  rate: (rate) => `每秒 ${rate} 个 token`,
  faster: (ratio, image) => `速度约为无草稿时的 ${ratio} 倍${image && `，${image}`}`,
  whileFaster: ["图像相同", "图像略有不同"],
  preparing: (seconds) => `正在加载模型、测量设备：${seconds} 秒`,
  atATime: (tokens) => `每次 ${tokens} 个 token`,
  sameImage: "图像与不起草时相同",
  equal: ["图像与 B 不同", "图像与 B 相同"],
  changedImage: "图像略有不同",
  measure: "测量",
  measureTitle: "添加并运行“ADT-Tree 对比”节点：交替生成起草与不起草的同一图像",
  plain: "不起草",
  undrafted: ["没有草稿", "几乎没有草稿"],
  unpaid: (few, images) =>
    `${images > 1 ? `批次大小为 ${images} 时` : "在这里"}起草不会更快，因此${few ? "多数" : "每次"}前向只生成一个 token。`,
  relaxed: (method, share) => `${method}，放宽，${share}% 的 token 被替换`,
  relaxedShort: (method, share) => `${method}，放宽 ${share}%`,
  fasterInTurns: (ratio) => `速度是 B 的 ${ratio} 倍（交替运行）`,
  fasterInPrompt: (ratio) => `速度是 B 的 ${ratio} 倍（先后运行）`,
  finished: (total, seconds) => `${total} 个 token，用时 ${seconds} 秒`,
  progress: (done, total) => `${total} 个 token 中的 ${done} 个`,
  stopped: "，已停止",
  more: "更多",
  less: "收起",
  place: (row, column) => `第 ${row} 行第 ${column} 列`,
  undecided: "尚未生成",
  withPrompt: "与提示词一起生成",
  alone: "本次前向生成 1 个 token",
  together: (count) => `本次前向生成 ${count} 个 token`,
  guessed: (drafts, accepted) => (drafts ? `${drafts} 个草稿，接受 ${accepted} 个` : "没有草稿"),
  token: (number) => `第 ${number} 个 token`,
  round: "前向",
  prompt: "提示词",
  depth: "深度",
  width: "宽度",
  built: (asked, built) => `${built}（请求 ${asked}）`,
  drafts: "草稿数",
  accepted: "接受数",
  lookAlikes: (count) => `（替换 ${count} 个）`,
  compareWithPlain: "ADT-Tree：与不起草对比",
  openBatch: "ADT-Tree：作为批次打开",
  download: {
    "": (size) => `下载，${size}`,
    int8: (size) => `下载，${size}；int8 权重可放入显存`,
    int4: (size) => `下载，${size}；int4 权重可放入显存`,
    no: (size) => `下载，${size}；超出显存`,
  },
  unknownFormat: (found, own) =>
    `有一个节点以格式 ${found} 保存，而此 ADT-Tree 读取格式 ${own}；请用保存它的版本打开工作流。该节点已静音，其值保持不变。`,
};

/** Texts in the user's language. */
export let texts = ENGLISH;

/** Set the language, such as "zh". For a language without texts in this file, English is used. */
export function setLanguage(locale) {
  texts = locale === "zh" ? CHINESE : ENGLISH;
}

/** The displayed name of a method, or the method itself if it has none. */
export function methodName(method) {
  const [, tree] = /^static:(.+)/.exec(method) ?? [];
  return tree ? texts.staticTree(tree) : (own(texts.methods, method) ?? method);
}

/** The text after the name of a model that is not installed. @param {"" | "int8" | "int4" | "no"} fits see downloading.py */
export function downloadLabel(size, fits) {
  return own(texts.download, fits)?.(size) ?? size;
}
