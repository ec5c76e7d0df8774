/** The map's figures as people read them. */

const unit = (value, digits) => value.toFixed(digits);

/** One line about a run; `plain` is a run of plain decoding to measure it by, or null. */
export function summary(run, plain) {
  const { done, total, rate, tau, speedup, measured, seconds } = run.figures(plain);
  const parts = [`${unit(rate, rate < 10 ? 1 : 0)} tokens/s`, `τ ${unit(tau, 2)}`];
  if (run.method === "autoregressive") parts.push("plain decoding");
  else if (speedup !== null) parts.push(measured ? `${unit(speedup, 2)}× plain (measured)` : `≈ ${unit(speedup, 2)}× plain (estimate)`);
  parts.push(run.state === "done" ? `${total} tokens in ${unit(seconds, 1)} s` : `${done} of ${total} tokens${run.state === "stopped" ? ", stopped" : ""}`);
  return parts.join(" · ");
}

/**
 * What is known of a token, in lines; with two runs, their values stand side by side.
 * @param {(object | null)[]} tokens of each run, from Run.token
 */
export function describe(tokens, cell, columns) {
  const side = (show) => tokens.map((token) => (token ? show(token) : "–")).join(" | ");
  const lines = [`Token ${cell + 1} · row ${Math.floor(cell / columns) + 1}, column ${(cell % columns) + 1}`];
  if (!tokens.some(Boolean)) return [...lines, "not decided yet"].join("\n");
  lines.push(
    `round ${side((t) => (t.round === null ? "prompt" : t.round + 1))}`,
    `depth ${side((t) => `${t.depthAsked} asked, ${t.depth} built`)}`,
    `width ${side((t) => `${t.widthAsked} asked, ${t.width} built`)}`,
    `nodes ${side((t) => t.nodes)}`,
    `accepted ${side((t) => t.accepted + (t.substituted ? ` (${t.substituted} look-alikes)` : ""))}`,
    `alpha ${side((t) => unit(t.alpha, 2))}`,
    `${side((t) => `${unit(t.ms, 1)} ms`)}`,
  );
  return lines.join("\n");
}
