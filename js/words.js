/** All that the map and the Settings node say beside the schema, in the languages of locales/. */

/** What the server says, in English: of progress, of a model that is missing, of prompts and sizes that a model doesn't know, of what a device can't do, and of a training. A language's `lines` say the same, in this order. */
const LINES = [
  /^(\d+) of (\d+) images, (\d+) of (\d+) tokens$/,
  /^(\d+) images, (\d+) of them made before; they are in (.+)$/,
  /^(\d+) of (\d+) prompts, (\d+) methods each$/,
  /^(\d+) prompts; the results are in (.+)$/,
  /^(.+) is not installed; set if_missing to 'download' and run again$/,
  /^Downloading: (\S+) of (\S+) GB$/,
  /^Downloading: (\S+) of (\S+) GB, (\S+) MB\/s, (\S+) left$/,
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
];

/** What a batch says first, where there is more to say. */
const FOLDER = /^The images are in (\S+)\. (.+)$/;

/** What it says behind any of them, of images that are not exactly those of their seeds. */
const RELAXED = /^(.*); Relaxed: ([\d.]+) % of the tokens replaced$/;

/** How a line begins that says how far a run is. */
const PROGRESS = /^(\d+ (of \d+ )?(images|prompts|pictures|steps|methods)[,;]|Downloading: |Waiting for another |Asking the Hub |Checking files |\S+ is downloaded$)/;

/** The name of a difference in a text that a prompt is made of. */
export const PROMPT = Symbol("prompt");

const ENGLISH = {
  methods: { auto: "Auto", "adt-tree": "ADT-Tree", eagle2: "EAGLE-2", autoregressive: "No drafting" },
  staticTree: (name) => `Static: ${name}`,
  map: "Acceptance map",
  figures: {
    acceptance: ["Acceptance", "tokens accepted at once"],
    depth: ["Depth", "depth of the draft tree"],
    width: ["Width", "width of the draft tree"],
    time: ["Time", "milliseconds per token"],
    moment: ["Moment", "seconds until the token was there"],
  },
  ends: {
    acceptance: [(least) => `hard: ${least} token a pass`, (most) => `easy: ${most} tokens`],
    depth: [(least) => `hard: ${least} deep`, (most) => `easy: ${most} deep`],
    width: [(least) => `narrow: ${least}`, (most) => `wide: ${most}`],
    time: [(least) => `quick: ${least} ms a token`, (most) => `slow: ${most} ms`],
    moment: [(least) => `first: ${least} s`, (most) => `last: ${most} s`],
  },
  colourBy: "Colour by",
  image: "Image of the batch",
  imageOf: (image, count) => `${image} of ${count}`,
  opacity: "Opacity of the map over the image",
  overlay: "Map",
  compare: "Compare with another run",
  compareWith: "Compare with …",
  over: "Slider",
  overTitle: "Both pictures in one place, with a line to drag between them",
  split: "Line between A and B",
  beside: (method) => `B (${method})`,
  previous: (method) => `previous run (${method})`,
  seed: (method, seed) => `${method}, seed ${seed}`,
  empty: "Run the workflow: the map of its tokens appears here.",
  noRun: "No run yet",
  keys: (figure, rows, columns) => `${figure} of ${rows} by ${columns} tokens. Arrow keys move from token to token, + and - zoom.`,
  of: (method, seed) => `This is seed ${seed} · ${method}`,
  now: (differences) => `the node now has ${differences.map(({ name, now }) => (name === PROMPT ? "another prompt" : `${name} ${now}`)).join(", ")}`,
  take: (name, was) => (name === PROMPT ? "use its prompt" : `use ${name} ${was}`),
  takeFrom: (name, was) => `Give the node back what made this picture: ${was}`,
  off: { 2: "the node is muted, so this is an old map", 4: "the node is bypassed, so this is an old map" },
  replay: "Watch the image grow, round by round",
  play: "Play",
  pause: "Pause",
  whole: "the whole image",
  tried: (round, rounds, drafts, accepted) => `${round} / ${rounds}: ${drafts} guessed, ${accepted} right`,
  zoomIn: "Zoom in",
  zoomOut: "Zoom out",
  save: "Save map as image",
  thirds: ["Top left", "Top", "Top right", "Left", "The middle", "Right", "Bottom left", "Bottom", "Bottom right"],
  contrast: ([easy, most], [hard, range]) => `Easy: ${easy.toLowerCase()}, up to ${most} tokens at once. Hard: ${hard.toLowerCase()}, ${range}.`,
  everywhere: (range, most) =>
    most === 1 ? "Everywhere: one token at a time." : `Everywhere about the same: ${range === "1" ? "mostly one token" : `${range} tokens`} at once.`,
  range: (low, high) => (low === high ? `${low}` : `${low} ${high === low + 1 ? "or" : "to"} ${high}`),
  numbers: "Numbers",
  counts: { rounds: "passes of the model", nodes: "tokens guessed", right: "of them right", depth: "mean depth of the trees" },
  meanOf: (mean, rounds) => `${mean} at once (${rounds} passes)`,
  rate: (rate) => `${rate} tokens/s`,
  tau: (tau) => `${tau} tokens per pass`,
  plain: "no drafting",
  undrafted: ["no drafts", "hardly any drafts"],
  unpaid: (few, images) =>
    `${few ? "Hardly any" : "No"} drafts: ${images > 1 ? `with ${images} images at once ` : ""}they don't pay here, so ${few ? "most passes" : "each pass"} brought one token.`,
  relaxed: (method, share) => `${method}, Relaxed (${share} % of tokens replaced)`,
  relaxedShort: (method, share) => `${method}, Relaxed ${share} %`,
  fasterInTurns: (ratio) => `${ratio}× as fast as B (drawn in turns)`,
  fasterInPrompt: (ratio) => `${ratio}× as fast as B (one after the other, in one prompt)`,
  finished: (total, seconds) => `${total} tokens in ${seconds} s`,
  progress: (done, total) => `${done} of ${total} tokens`,
  stopped: ", stopped",
  place: (row, column) => `Row ${row}, column ${column}`,
  undecided: "not decided yet",
  withPrompt: "came with the prompt",
  alone: "came alone",
  together: (others) => `came together with ${others === 1 ? "one other" : `${others} others`}`,
  guessed: (nodes, accepted) => (nodes ? `guessed ahead: ${nodes}, right: ${accepted}` : "nothing was guessed ahead"),
  token: (number) => `Token ${number}`,
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
  lines: LINES.map(({ source }) => (source.startsWith("This small model") ? (line) => line : "$&")), // CHINESE has functions there, too
  download: { "": (size) => `download, ${size}`, int8: (size) => `download, ${size}; fits with int8 weights`, no: (size) => `download, ${size}; too large for this GPU` },
  folderLine: (folder) => `The images are in ${folder}. `,
  relaxedLine: (share) => `; Relaxed: ${share} % of the tokens replaced`,
};

const unknownWords = (words, others) => (words ? `不认识的词：${words}${others ? " 等" : ""}。` : "");

const CHINESE = {
  methods: { auto: "自动", "adt-tree": "ADT-Tree", eagle2: "EAGLE-2", autoregressive: "不起草" },
  staticTree: (name) => `固定树：${name}`,
  map: "接受图",
  figures: {
    acceptance: ["接受数", "一次接受的 token 数"],
    depth: ["深度", "草稿树的深度"],
    width: ["宽度", "草稿树的宽度"],
    time: ["用时", "每个 token 的毫秒数"],
    moment: ["时刻", "token 出现前经过的秒数"],
  },
  ends: {
    acceptance: [(least) => `难：每次 ${least} 个 token`, (most) => `易：${most} 个`],
    depth: [(least) => `难：深 ${least}`, (most) => `易：深 ${most}`],
    width: [(least) => `窄：${least}`, (most) => `宽：${most}`],
    time: [(least) => `快：每个 token ${least} 毫秒`, (most) => `慢：${most} 毫秒`],
    moment: [(least) => `最早：${least} 秒`, (most) => `最晚：${most} 秒`],
  },
  colourBy: "着色依据：",
  image: "批次中的图像",
  imageOf: (image, count) => `第 ${image} 张，共 ${count} 张`,
  opacity: "接受图覆盖在图像上的不透明度",
  overlay: "接受图",
  compare: "与另一次运行对比",
  compareWith: "对比 …",
  over: "滑块",
  overTitle: "两张图叠在一起，拖动中间的分界线对比",
  split: "A 与 B 的分界线",
  beside: (method) => `B（${method}）`,
  previous: (method) => `上一次运行（${method}）`,
  seed: (method, seed) => `${method}，种子 ${seed}`,
  empty: "运行工作流后，这里会显示各个 token 的接受图。",
  noRun: "尚未运行",
  keys: (figure, rows, columns) => `${rows} 行 ${columns} 列 token 的${figure}。用方向键逐个移动，用 + 和 - 缩放。`,
  of: (method, seed) => `这是种子 ${seed} · ${method}`,
  now: (differences) => `节点现在的值：${differences.map(({ name, now }) => (name === PROMPT ? "另一个提示词" : `${name} ${now}`)).join("，")}`,
  take: (name, was) => (name === PROMPT ? "用这张图的提示词" : `用 ${name} ${was}`),
  takeFrom: (name, was) => `把生成这张图的值还给节点：${was}`,
  off: { 2: "节点已静音，这是旧的接受图", 4: "节点已绕过，这是旧的接受图" },
  replay: "逐轮观看图像的形成",
  play: "播放",
  pause: "暂停",
  whole: "整张图像",
  tried: (round, rounds, drafts, accepted) => `${round} / ${rounds}：猜 ${drafts} 个，对 ${accepted} 个`,
  zoomIn: "放大",
  zoomOut: "缩小",
  save: "把接受图保存为图像",
  thirds: ["左上", "上方", "右上", "左侧", "中间", "右侧", "左下", "下方", "右下"],
  contrast: ([easy, most], [hard, range]) => `容易：${easy}，一次最多 ${most} 个 token；困难：${hard}，一次 ${range} 个。`,
  everywhere: (range, most) => (most === 1 ? "处处都是一次一个 token。" : `各处相近：一次 ${range} 个 token。`),
  range: (low, high) => (low === high ? `${low}` : `${low} ${high === low + 1 ? "或" : "到"} ${high}`),
  numbers: "数字",
  counts: { rounds: "模型的前向次数", nodes: "猜测的 token 数", right: "其中猜对", depth: "树的平均深度" },
  meanOf: (mean, rounds) => `一次 ${mean} 个（${rounds} 次前向）`,
  rate: (rate) => `每秒 ${rate} 个 token`,
  tau: (tau) => `每次前向 ${tau} 个 token`,
  plain: "不起草",
  undrafted: ["没有草稿", "几乎没有草稿"],
  unpaid: (few, images) =>
    `${few ? "几乎没有" : "没有"}草稿：${images > 1 ? `在这里同时绘制 ${images} 张图像时` : "在这里"}草稿不划算，${few ? "多数" : "每次"}前向只得到一个 token。`,
  relaxed: (method, share) => `${method}，放宽（${share}% 的 token 被替换）`,
  relaxedShort: (method, share) => `${method}，放宽 ${share}%`,
  fasterInTurns: (ratio) => `速度是 B 的 ${ratio} 倍（两者轮流绘制）`,
  fasterInPrompt: (ratio) => `速度是 B 的 ${ratio} 倍（同一次运行中先后绘制）`,
  finished: (total, seconds) => `${total} 个 token，用时 ${seconds} 秒`,
  progress: (done, total) => `${total} 个 token 中的 ${done} 个`,
  stopped: "，已停止",
  place: (row, column) => `第 ${row} 行第 ${column} 列`,
  undecided: "尚未确定",
  withPrompt: "与提示词一起得到",
  alone: "单独得到",
  together: (others) => `与另外 ${others} 个一起得到`,
  guessed: (nodes, accepted) => (nodes ? `提前猜测 ${nodes} 个，猜对 ${accepted} 个` : "没有提前猜测"),
  token: (number) => `第 ${number} 个 token`,
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
  lines: [
    "$2 张图像中的 $1 张，$4 个 token 中的 $3 个",
    "$1 张图像，其中 $2 张是之前生成的；位于 $3",
    "$2 个提示词中的 $1 个，每个用 $3 种方法",
    "$1 个提示词；结果位于 $2",
    "$1 尚未安装；请将“缺失时”设为“下载”并重新运行",
    "正在下载：$1 / $2 GB",
    "正在下载：$1 / $2 GB，$3 MB/s，剩余 $4",
    "正在等待另一个下载到同一文件夹的任务",
    "正在向 Hub 查询文件列表",
    "正在检查已有的文件",
    "$1 已下载",
    (_, some, all, prompts, others, ...unknown) =>
      `这个小模型只认识房子、船、热气球、杯子等的英文词，${all} 个提示词中有 ${some} 个画成了别的：${prompts}${others ? " 等" : ""}。${unknownWords(...unknown)}`,
    (_, prompt, ...unknown) => `这个小模型只认识房子、船、热气球、杯子等的英文词，没有画 ${prompt}，画了别的。${unknownWords(...unknown)}`,
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
  ],
  download: { "": (size) => `下载，${size}`, int8: (size) => `下载，${size}；int8 权重可放入显存`, no: (size) => `下载，${size}；超出显存` },
  folderLine: (folder) => `图像位于 ${folder}。`,
  relaxedLine: (share) => `；放宽：${share}% 的 token 被替换`,
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

/** A line of the server's under a node, in the user's language; as it is, if it is none of LINES. */
export function line(text) {
  const [, told, replaced] = RELAXED.exec(text) ?? [];
  if (replaced) return `${line(told)}${words.relaxedLine(replaced)}`;
  const [, folder, rest] = FOLDER.exec(text) ?? [];
  if (rest && line(rest) !== rest) return `${words.folderLine(folder)}${line(rest)}`;
  const at = LINES.findIndex((pattern) => pattern.test(text));
  return at < 0 ? text : text.replace(LINES[at], words.lines[at]);
}

/** What stands behind the name of a model that is not installed; `fits` is "", "int8" or "no". */
export function downloadLabel(size, fits) {
  return words.download[fits](size);
}

/** Whether a line of the server's is to be read after the run, too: it says more than how far it is. */
export function isNote(text) {
  return !PROGRESS.test(text);
}
