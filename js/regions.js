/** Speed in the nine regions of an image, measured in tokens per pass. */

const THIRDS = 3; // regions along each side
const MIN_RATIO = 1.25; // minimum ratio of the fastest to the slowest region; smaller differences may be noise

/**
 * Statistics of the tokens per pass in each region of an image. Regions without generated tokens are left out.
 *
 * @returns {{region: number, rounds: number, mean: number}[]} `region` is the index of the region, row by row from the
 *   top left. `rounds` is its number of passes.
 */
export function regions(run, image) {
  const found = Array.from({ length: THIRDS * THIRDS }, () => new Map()); // pass -> tokens
  run.roundOf[image].forEach((round, cell) => {
    if (round < 0) return;
    const row = Math.floor((THIRDS * Math.floor(cell / run.columns)) / run.rows);
    const column = Math.floor((THIRDS * (cell % run.columns)) / run.columns);
    found[THIRDS * row + column].set(round, run.rounds[round].records.get(image).accepted + 1);
  });
  return found.flatMap((rounds, region) =>
    rounds.size ? [{ region, rounds: rounds.size, mean: mean([...rounds.values()]) }] : [],
  );
}

/** The fastest and the slowest region as { fastest, slowest }. null if their speeds are similar or nothing is known. */
export function contrast(run, image) {
  const sorted = regions(run, image).sort((a, b) => b.mean - a.mean);
  const fastest = sorted[0];
  const slowest = sorted.at(-1);
  return fastest?.mean > MIN_RATIO * slowest?.mean ? { fastest, slowest } : null;
}

function mean(values) {
  return values.reduce((a, b) => a + b) / values.length;
}
