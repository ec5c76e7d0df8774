/** Position of the tooltip about a token. */

const GAP = 6; // pixels between the tooltip and the tokens that it describes

/**
 * Place a tooltip below the rows of the tokens that it describes. If there is not enough space, place it above them.
 *
 * @param {HTMLElement} tip the tooltip
 * @param {HTMLElement} stage element that must contain the tooltip
 * @param {{x: number, y: number, width: number, height: number}} box position and size of the grid in pixels
 * @param {{rows: number, columns: number}} grid number of rows and columns of tokens
 * @param {[number, number]} together first and last cell of the tokens, numbered row by row
 * @param {number} cell cell under the cursor
 */
export function placeTip(tip, stage, box, { rows, columns }, together, cell) {
  const [first, last] = together.map((one) => Math.floor(one / columns));
  const side = box.height / rows;
  const top = box.y + first * side;
  const bottom = box.y + (last + 1) * side;
  const { clientWidth: width, clientHeight: height } = stage;
  const { offsetWidth: w, offsetHeight: h } = tip;
  const isBelow = height - bottom >= h + GAP || height - bottom >= top;
  const middle = box.x + (((cell % columns) + 0.5) * box.width) / columns;
  const clamp = (at, most) => Math.max(0, Math.min(at, most));
  tip.style.left = `${clamp(middle - w / 2, width - w)}px`;
  tip.style.top = `${clamp(isBelow ? bottom + GAP : top - h - GAP, height - h)}px`;
}
