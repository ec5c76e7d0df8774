/**
 * Tokens that a run keeps from another image: those outside of a mask, or those of the upper part of the image. This
 * file does not use the page.
 */

/** Tokens of a run that are not generated, by image and position. */
export class KeptTokens {
  #ends; // image -> the ends of its stretches of kept and generated tokens, kept first

  /**
   * @param {number[][] | null} given for each image, the lengths of its stretches of kept and generated tokens, kept
   *   first; null if only the first tokens are kept
   * @param {number} start number of first tokens that all images keep
   */
  constructor(given, start, images, tokens) {
    const stretches = given ?? Array.from({ length: images }, () => [start, tokens - start]);
    this.#ends = stretches.map((lengths) => {
      let end = 0;
      return lengths.map((length) => (end += length));
    });
    this.count = stretches.flatMap((lengths) => lengths.filter((_, i) => i % 2 === 0)).reduce((sum, n) => sum + n, 0);
    this.isMask = given !== null;
  }

  /** Whether an image keeps the token at a position. */
  has(image, position) {
    const stretch = this.#ends[image]?.findIndex((end) => position < end) ?? -1;
    return stretch >= 0 && stretch % 2 === 0;
  }

  /** Whether an image keeps all tokens from position `begin` to `end` - 1. */
  hasAll(image, begin, end) {
    for (let position = begin; position < end; position++) if (!this.has(image, position)) return false;
    return true;
  }
}

/** Check the lengths in a map that a file contains. Throws if they do not cover all tokens of all images. */
export function checkStretches(given, images, tokens) {
  if (given === null || given === undefined) return null;
  const isValid = (lengths) =>
    Array.isArray(lengths) &&
    lengths.length <= tokens + 1 &&
    lengths.every((length) => Number.isInteger(length) && length >= 0) &&
    lengths.reduce((sum, length) => sum + length, 0) === tokens;
  if (!Array.isArray(given) || given.length !== images || !given.every(isValid)) {
    throw new RangeError("invalid saved map: kept tokens");
  }
  return given;
}

/**
 * Draw a line between the kept and the generated cells of a mask.
 *
 * @param {CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D} context
 * @param {{box: {x: number, y: number, width: number, height: number}, rows: number, columns: number,
 *   kept: boolean[] | null}} pane `kept` has a value for each cell; null if there is no mask
 */
export function drawMask(context, { box, rows, columns, kept }) {
  if (!kept) return;
  const w = box.width / columns;
  const h = box.height / rows;
  const outline = new Path2D();
  const line = (x, y, toX, toY) => {
    outline.moveTo(box.x + x * w, box.y + y * h);
    outline.lineTo(box.x + toX * w, box.y + toY * h);
  };
  kept.forEach((isKept, cell) => {
    const x = cell % columns;
    const y = (cell - x) / columns;
    if (x > 0 && kept[cell - 1] !== isKept) line(x, y, x, y + 1);
    if (y > 0 && kept[cell - columns] !== isKept) line(x, y, x + 1, y);
  });
  context.setLineDash([]);
  context.strokeStyle = "#000";
  context.lineWidth = 3;
  context.stroke(outline);
  context.strokeStyle = "#fff";
  context.lineWidth = 1.5;
  context.stroke(outline);
}
