/** Texts of the map, the Settings node and the context menus, in the languages of `locales`. */

/** What the server says, in English: of progress, of a model that is missing, of prompts and sizes that a model doesn't know, of what a device can't do, and of a training. A language's `lines` say the same, in this order. */
const LINES = [
  /^(\d+) of (\d+) images, (\d+) of (\d+) tokens$/,
  /^(\d+) images, (\d+) of them made before; they are in (.+)$/,
  /^(\d+) of (\d+) prompts, (\d+) methods each$/,
  /^(\d+) prompts; the results are in (.+)$/,
  /^(.+) is not installed; set if_missing to 'download' and run again$/,
  /^Downloading: (\S+) of (\S+) (GB|MB)$/,
  /^Downloading: (\S+) of (\S+) (GB|MB), (\S+) MB\/s, (\S+) left$/,
  /^Waiting for another download to the same folder$/,
  /^Asking the Hub for the list of files$/,
  /^Checking files that are already there$/,
  /^(.+) is downloaded$/,
  /This small model knows houses, boats, balloons, mugs and the like, and drew something else for (\d+) of (\d+) prompts: (.+?)( and others)?\.(?: Unknown words: (.+?)( and others)?\.)?$/,
  /This small model knows houses, boats, balloons, mugs and the like, and drew something else for (.+?)\.(?: Unknown words: (.+?)( and others)?\.)?$/,
  /^On this device, an image may depend on the other prompts in its batch; use a batch size of 1 to avoid this\.$/,
  /^To keep the image unchanged, this device uses smaller matrix products, which is slower\.$/,
  /^To keep the image unchanged, this device uses attention without the fast kernel, which is slower\.$/,
  /^To keep the image unchanged, this device uses smaller matrix products and attention without the fast kernel, which is slower\.$/,
  /^On this device, drafts would change the image in half precision, so drafting is off; use float32 to draft\.$/,
  /^This device has no batch-invariant mode: in half precision, drafts may change the image; use float32 to avoid this\.$/,
  /^This is a preview of the tokens; GLM-Image Decode makes the image from them\.$/,
  /^(\d+) of (\d+) pictures; about (\S+) min in all$/,
  /^(\d+) steps; about (\S+) min in all$/,
  /^(\d+) steps, (\S+) tokens a pass; about (\S+) min in all$/,
  /^The training takes about (\S+) min \((\S+) to generate, (\S+) to train\), (\S+) GB of memory and (\S+) GB of disk\.$/,
  /^'(.+)' drafts (\S+) tokens a pass after (\d+) steps; the Drafter Loader has it\.$/,
  /^(.+) was trained for images of about as many pixels as (\S+) to (\S+); (\S+) is outside of that, so the image may look worse\.$/,
  /^(.+) was trained for images of about as many pixels as (\S+); (\S+) is outside of that, so the image may look worse\.$/,
  /^(\d+) of (\d+) methods, now (.+)$/,
  /^Checked; the report is on this node$/,
  /(\d+) duplicates? \(same prompt and seed\), generated once\./,
  /Ignored, because preset is '(.+?)': (.+?)\. Set preset to '(.+?)' to use your own values\./,
  /(?<!Negative )Prompt truncated to its first (\d+) of (\d+) characters: (\d+) tokens; (.+?) accepts (\d+)\./,
  /Negative prompt truncated to its first (\d+) of (\d+) characters: (\d+) tokens; (.+?) accepts (\d+)\./,
];

/** What a batch says first, where there is more to say. */
const FOLDER = /^The images are in (\S+)\. (.+)$/;

/** What it says behind any of them, of images that are not exactly those of their seeds. */
const RELAXED = /^(.*); Relaxed: ([\d.]+) % of the tokens replaced$/;

/** How a line begins that says how far a run is. */
const PROGRESS =
  /^(\d+ (of \d+ )?(images|prompts|pictures|steps|methods)[,;]|Downloading: |Waiting for another |Asking the Hub |Checking files |\S+ is downloaded$)/;

/** Name of a difference in a prompt's text, see caption.js. */
export const PROMPT = Symbol("prompt");

const sentenceCase = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

const ENGLISH = {
  methods: { auto: "Auto", "adt-tree": "ADT-Tree", eagle2: "EAGLE-2", autoregressive: "No drafting" },
  staticTree: (name) => `Static: ${name}`,
  map: "Acceptance map",
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
  replay: "Replay the run pass by pass",
  play: "Play",
  pause: "Pause",
  finishedImage: "the finished image",
  replayed: (round, rounds, drafts, accepted) => `${round} / ${rounds}: ${accepted} of ${drafts} drafts accepted`,
  zoomIn: "Zoom in",
  zoomOut: "Zoom out",
  save: "Save map as image",
  thirds: ["Top left", "Top", "Top right", "Left", "Center", "Right", "Bottom left", "Bottom", "Bottom right"],
  contrast: ([easy, most], [hard, range]) =>
    `Fastest: ${easy.toLowerCase()} (up to ${most} tokens per pass). Slowest: ${hard.toLowerCase()} (${range}).`,
  range: (low, high) => (low === high ? `${low}` : `${low}–${high}`),
  numbers: "Details",
  counts: {
    rounds: "passes of the model",
    nodes: "drafted tokens",
    right: "accepted tokens",
    depth: "mean tree depth",
  },
  meanOf: (mean, rounds) => `${mean} tokens per pass (${rounds} passes)`,
  rate: (rate) => `${rate} tokens/s`,
  tau: (tau) => `${tau} tokens per pass`,
  plain: "no drafting",
  undrafted: ["no drafts", "hardly any drafts"],
  unpaid: (few, images) =>
    `Drafting would not be faster ${images > 1 ? `for a batch of ${images} images` : "here"}: ${few ? "mostly " : ""}one token per pass.`,
  relaxed: (method, share) => `${method}, Relaxed, ${share} % of tokens replaced`,
  relaxedShort: (method, share) => `${method}, Relaxed ${share} %`,
  fasterInTurns: (ratio) => `${ratio}× as fast as B (run in alternation)`,
  fasterInPrompt: (ratio) => `${ratio}× as fast as B (run one after the other)`,
  finished: (total, seconds) => `${total} tokens in ${seconds} s`,
  progress: (done, total) => `${done} of ${total} tokens`,
  stopped: ", stopped",
  place: (row, column) => `Row ${row}, column ${column}`,
  undecided: "not generated yet",
  withPrompt: "generated with the prompt",
  alone: "1 token in this pass",
  together: (count) => `${count} tokens in this pass`,
  guessed: (nodes, accepted) => (nodes ? `${accepted} of ${nodes} drafts accepted` : "no drafts"),
  token: (number) => `Token ${number}`,
  round: "pass",
  prompt: "prompt",
  depth: "depth",
  width: "width",
  built: (asked, built) => `${built} (${asked} requested)`,
  nodes: "drafts",
  accepted: "accepted",
  lookAlikes: (count) => ` (${count} replaced)`,
  compareWithPlain: "ADT-Tree: compare with no drafting",
  openBatch: "ADT-Tree: open as a batch",
  lines: /** @type {any[]} */ (LINES).map(({ source }) =>
    source.startsWith("This small model") ? (line) => line : "$&",
  ), // CHINESE has functions there, too
  download: {
    "": (size) => `download, ${size}`,
    int8: (size) => `download, ${size}; fits with int8 weights`,
    no: (size) => `download, ${size}; too large for this GPU`,
  },
  folderLine: (folder) => `The images are in ${folder}. `,
  relaxedLine: (share) => `; Relaxed: ${share} % of the tokens replaced`,
};

const unknownWords = (words, others) => (words ? `不认识的词：${words}${others ? " 等" : ""}。` : "");

const CHINESE = {
  methods: { auto: "自动", "adt-tree": "ADT-Tree", eagle2: "EAGLE-2", autoregressive: "不起草" },
  staticTree: (name) => `固定树：${name}`,
  map: "接受图",
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
  of: (method, seed) => `使用种子 ${seed} 生成（${method}）。`,
  now: (differences) =>
    `${differences.map(({ name, now }) => (name === PROMPT ? "提示词已更改" : `${name}现在为 ${now}`)).join("，")}。`,
  restore: (name, was) => (name === PROMPT ? "恢复提示词" : `恢复${name} ${was}`),
  restoreTitle: (was) => `将节点恢复为生成此图像时的值：${was}`,
  off: { 2: "节点已静音，接受图来自之前的运行。", 4: "节点已绕过，接受图来自之前的运行。" },
  replay: "逐次前向回放",
  play: "播放",
  pause: "暂停",
  finishedImage: "完成的图像",
  replayed: (round, rounds, drafts, accepted) => `${round} / ${rounds}：${drafts} 个草稿，接受 ${accepted} 个`,
  zoomIn: "放大",
  zoomOut: "缩小",
  save: "把接受图保存为图像",
  thirds: ["左上", "上方", "右上", "左侧", "中间", "右侧", "左下", "下方", "右下"],
  contrast: ([easy, most], [hard, range]) =>
    `最快：${easy}（每次前向最多 ${most} 个 token）。最慢：${hard}（${range} 个）。`,
  range: (low, high) => (low === high ? `${low}` : `${low}–${high}`),
  numbers: "详情",
  counts: { rounds: "模型的前向次数", nodes: "草稿 token 数", right: "接受的 token 数", depth: "草稿树平均深度" },
  meanOf: (mean, rounds) => `每次前向 ${mean} 个 token（${rounds} 次前向）`,
  rate: (rate) => `每秒 ${rate} 个 token`,
  tau: (tau) => `每次前向 ${tau} 个 token`,
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
  place: (row, column) => `第 ${row} 行第 ${column} 列`,
  undecided: "尚未生成",
  withPrompt: "与提示词一起生成",
  alone: "本次前向生成 1 个 token",
  together: (count) => `本次前向生成 ${count} 个 token`,
  guessed: (nodes, accepted) => (nodes ? `${nodes} 个草稿，接受 ${accepted} 个` : "没有草稿"),
  token: (number) => `第 ${number} 个 token`,
  round: "前向",
  prompt: "提示词",
  depth: "深度",
  width: "宽度",
  built: (asked, built) => `${built}（请求 ${asked}）`,
  nodes: "草稿数",
  accepted: "接受数",
  lookAlikes: (count) => `（替换 ${count} 个）`,
  compareWithPlain: "ADT-Tree：与不起草对比",
  openBatch: "ADT-Tree：作为批次打开",
  lines: [
    "$2 张图像中的 $1 张，$4 个 token 中的 $3 个",
    "$1 张图像，其中 $2 张是之前生成的；位于 $3",
    "$2 个提示词中的 $1 个，每个用 $3 种方法",
    "$1 个提示词；结果位于 $2",
    "$1 尚未安装；请将“缺失时”设为“下载”并重新运行",
    "正在下载：$1 / $2 $3",
    "正在下载：$1 / $2 $3，$4 MB/s，剩余 $5",
    "正在等待另一个下载到同一文件夹的任务",
    "正在向 Hub 查询文件列表",
    "正在检查已有的文件",
    "$1 已下载",
    (_, some, all, prompts, others, ...unknown) =>
      `这个小模型只认识房子、船、热气球、杯子等的英文词，${all} 个提示词中有 ${some} 个画成了别的：${prompts}${others ? " 等" : ""}。${unknownWords(...unknown)}`,
    (_, prompt, ...unknown) =>
      `这个小模型只认识房子、船、热气球、杯子等的英文词，没有画 ${prompt}，画了别的。${unknownWords(...unknown)}`,
    "在这台设备上，图像可能受同批其他提示词的影响；把批次大小设为 1 可避免。",
    "为了保持图像不变，这台设备使用更小的矩阵乘法，因此更慢。",
    "为了保持图像不变，这台设备不能使用快速的注意力内核，因此更慢。",
    "为了保持图像不变，这台设备使用更小的矩阵乘法，也不使用快速的注意力内核，因此更慢。",
    "在这台设备上，半精度下的草稿会改变图像，因此已关闭草稿；使用 float32 可以启用。",
    "这台设备没有批次不变模式：半精度下草稿可能改变图像；使用 float32 可避免。",
    "这是 token 的预览；由 GLM-Image 解码把它们变成图像。",
    "$2 张图像中的 $1 张；总共约 $3 分钟",
    "$1 步；总共约 $2 分钟",
    "$1 步，每次前向 $2 个 token；总共约 $3 分钟",
    "训练约需 $1 分钟（生成图像 $2，学习 $3）、$4 GB 内存和 $5 GB 磁盘空间。",
    "“$1”在 $3 步后每次前向得到 $2 个 token；草稿模型加载器中已有它。",
    "$1 是用像素数约为 $2 至 $3 的图像训练的；$4 不在此范围内，图像质量可能较差。",
    "$1 是用像素数约为 $2 的图像训练的；$3 与此相差较大，图像质量可能较差。",
    "$2 种方法中的 $1 种，正在检查 $3",
    "检查完成；报告显示在此节点上",
    "有 $1 个重复项（提示词和种子相同），只生成一次。",
    "预设为 $1，因此忽略了 $2；要使用自己的数值，请将预设设为 $3。",
    "提示词截短为 $2 个字符中的前 $1 个：共 $3 个 token，$4 最多接受 $5 个。",
    "负面提示词截短为 $2 个字符中的前 $1 个：共 $3 个 token，$4 最多接受 $5 个。",
  ],
  download: {
    "": (size) => `下载，${size}`,
    int8: (size) => `下载，${size}；int8 权重可放入显存`,
    no: (size) => `下载，${size}；超出显存`,
  },
  folderLine: (folder) => `图像位于 ${folder}。`,
  relaxedLine: (share) => `；放宽：${share}% 的 token 被替换`,
};

/** Texts in the user's language. */
export let texts = ENGLISH;

/** Set the language, such as "zh". Languages without texts here use English. */
export function setLanguage(locale) {
  texts = locale === "zh" ? /** @type {any} */ (CHINESE) : ENGLISH;
}

/** The displayed name of a method, or the method itself if it has none. */
export function methodName(method) {
  const [, tree] = /^static:(.+)/.exec(method) ?? [];
  return tree ? texts.staticTree(tree) : (texts.methods[method] ?? method);
}

/** A line of the server's under a node, in the user's language; as it is, if it is none of LINES. */
export function line(text) {
  const [, told, replaced] = RELAXED.exec(text) ?? [];
  if (replaced) return `${line(told)}${texts.relaxedLine(replaced)}`;
  const [, folder, rest] = FOLDER.exec(text) ?? [];
  if (rest && line(rest) !== rest) return `${texts.folderLine(folder)}${line(rest)}`;
  return LINES.reduce((said, pattern, at) => said.replace(pattern, texts.lines[at]), text); // a line may have several sentences
}

/** The text after the name of a model that is not installed. @param {"" | "int8" | "no"} fits */
export function downloadLabel(size, fits) {
  return texts.download[fits](size);
}

/** Whether a line of the server's is to be read after the run, too: it says more than how far it is. */
export function isNote(text) {
  return !PROGRESS.test(text);
}
