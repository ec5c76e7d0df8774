/** Where an image was easy and where it was hard: its thirds, each by the tokens that rounds brought there. Knows no page. */

const THIRDS = 3;
const ALIKE = 1.25; // places whose means are no further apart than this are no pattern

/**
 * @returns {{place: number, rounds: number, mean: number, low: number, high: number, most: number}[]} of each place that has decided
 *   tokens, row by row from the top left: tokens that its rounds brought, their mean, the ends of the middle four fifths, and the most
 */
export function places(run, image) {
  const found = Array.from({ length: THIRDS * THIRDS }, () => new Map()); // round -> tokens
  run.roundOf[image].forEach((round, cell) => {
    if (round < 0) return;
    const row = Math.floor((THIRDS * Math.floor(cell / run.columns)) / run.rows);
    const column = Math.floor((THIRDS * (cell % run.columns)) / run.columns);
    found[THIRDS * row + column].set(round, run.rounds[round].shares.get(image).accepted + 1);
  });
  return found.flatMap((rounds, place) => (rounds.size ? [{ place, ...spread([...rounds.values()]) }] : []));
}

/** The easiest and the hardest place, { easy, hard }; null where all places are about the same, or nothing is known. */
export function contrast(run, image) {
  const sorted = places(run, image).sort((a, b) => b.mean - a.mean);
  const [easy, hard] = [sorted[0], sorted.at(-1)];
  return easy?.mean > ALIKE * hard?.mean ? { easy, hard } : null;
}

function spread(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const at = (share) => sorted[Math.round(share * (sorted.length - 1))];
  return { rounds: values.length, mean: values.reduce((a, b) => a + b) / values.length, low: at(0.1), high: at(0.9), most: sorted.at(-1) };
}
