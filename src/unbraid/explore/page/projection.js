// Codes in the plane: two coordinates of them, or their first two principal components.

/** Return a function from a code to two numbers, and one back where the coordinates are latents. */
export function axesOf(model, x, y) {
  if (x < 0) return principal(model);
  const columns = [x, y].map((i) => model.run.latents[i].columns[0]);
  return {
    names: [x, y].map((i) => model.run.latents[i].name),
    project: (code) => columns.map((column) => code[column]),
    place: (code, point) => {
      const moved = [...code];
      columns.forEach((column, i) => (moved[column] = point[i]));
      return moved;
    },
  };
}

function principal(model) {
  const { width, codes } = model, count = codes.length / width;
  const mean = new Array(width).fill(0);
  codes.forEach((value, i) => (mean[i % width] += value / count));
  const covariance = Array.from({ length: width }, () => new Array(width).fill(0));
  for (let r = 0; r < count; r++) {
    for (let i = 0; i < width; i++) {
      for (let j = 0; j < width; j++) covariance[i][j] += ((codes[r * width + i] - mean[i]) * (codes[r * width + j] - mean[j])) / count;
    }
  }
  const first = leadingVector(covariance, []), second = leadingVector(covariance, [first]);
  const dot = (code, vector) => code.reduce((sum, value, i) => sum + (value - mean[i]) * vector[i], 0);
  return {
    names: ["first component", "second component"],
    project: (code) => [dot(code, first), dot(code, second)],
    place: (code, point) => {
      const now = [dot(code, first), dot(code, second)];
      return code.map((value, i) => value + (point[0] - now[0]) * first[i] + (point[1] - now[1]) * second[i]);
    },
  };
}

/** The leading eigenvector of a matrix among those orthogonal to some others, by power iteration. */
function leadingVector(matrix, others) {
  let vector = matrix.map((_, i) => 1 + 0.37 * Math.sin(i + 1 + others.length));
  for (let round = 0; round < 200; round++) {
    for (const other of others) {
      const share = vector.reduce((sum, v, i) => sum + v * other[i], 0);
      vector = vector.map((v, i) => v - share * other[i]);
    }
    const next = matrix.map((row) => row.reduce((sum, value, j) => sum + value * vector[j], 0));
    const length = Math.hypot(...next);
    if (length < 1e-12) break;
    vector = next.map((v) => v / length);
  }
  const length = Math.hypot(...vector) || 1;
  return vector.map((v) => v / length);
}
