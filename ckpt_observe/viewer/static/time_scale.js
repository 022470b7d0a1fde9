// Maps times to positions from 0 to 1. Long gaps in which nothing happened are folded: they get a small fixed share each.

const FOLD_SHARE = 0.02;
const LEAST_GAP = 0.08;

// Intervals are [start, end] pairs. Returns {position(time), gaps: [[from, to, start, end]]}.
export function timeScale(intervals, { folds = true } = {}) {
  const sorted = intervals.filter(([start, end]) => end >= start).sort((a, b) => a[0] - b[0]);
  if (!sorted.length) return { position: () => 0, gaps: [] };
  const first = sorted[0][0];
  const last = Math.max(...sorted.map(([, end]) => end), first + 1);
  const gaps = folds ? findGaps(sorted, (last - first) * LEAST_GAP) : [];
  const folded = gaps.reduce((sum, [start, end]) => sum + end - start, 0);
  const share = gaps.length * FOLD_SHARE;
  const scale = (1 - share) / Math.max(1, last - first - folded);
  const position = (time) => {
    let at = (Math.min(Math.max(time, first), last) - first) * scale;
    for (const [start, end] of gaps) {
      if (time <= start) break;
      const inside = Math.min(time, end) - start;
      at += (inside / (end - start)) * FOLD_SHARE - inside * scale;
    }
    return at;
  };
  return { position, gaps: gaps.map(([start, end]) => [position(start), position(end), start, end]) };
}

function findGaps(sorted, least) {
  const gaps = [];
  let reached = sorted[0][1];
  for (const [start, end] of sorted) {
    if (start - reached > least) gaps.push([reached, start]);
    reached = Math.max(reached, end);
  }
  return gaps;
}
