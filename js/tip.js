/** Where the words about a token stand on the map. */

const GAP = 6; // pixels between the tip and the tokens that it explains

/**
 * Below the rows of the tokens that it explains, or above them: never over them while there is room elsewhere.
 *
 * @param {HTMLElement} tip
 * @param {HTMLElement} stage what it stays within
 * @param {{x: number, y: number, width: number, height: number}} box of the grid
 * @param {{rows: number, columns: number}} grid
 * @param {[number, number]} together first and last cell of what it explains
 * @param {number} cell the one that is pointed at
 */
export function placeTip(tip, stage, box, { rows, columns }, together, cell) {
  const [first, last] = together.map((one) => Math.floor(one / columns));
  const side = box.height / rows;
  const [top, bottom] = [box.y + first * side, box.y + (last + 1) * side];
  const { clientWidth: width, clientHeight: height } = stage;
  const { offsetWidth: w, offsetHeight: h } = tip;
  const below = height - bottom >= h + GAP || height - bottom >= top;
  const middle = box.x + (((cell % columns) + 0.5) * box.width) / columns;
  const clamp = (at, most) => Math.max(0, Math.min(at, most));
  tip.style.left = `${clamp(middle - w / 2, width - w)}px`;
  tip.style.top = `${clamp(below ? bottom + GAP : top - h - GAP, height - h)}px`;
}
