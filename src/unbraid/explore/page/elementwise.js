// Functions of every number, of two numbers with broadcasting, and sums over axes.

const ERF = [0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429];

/** The error function: its series near 0, and a continued fraction's approximation elsewhere. */
function erf(x) {
  const a = Math.abs(x);
  if (a < 2.5) {
    let term = x, sum = x;
    for (let n = 1; Math.abs(term) > 1e-9 * Math.abs(sum) && n < 60; n++) {
      term *= (-x * x) / n;
      sum += term / (2 * n + 1);
    }
    return (2 / Math.sqrt(Math.PI)) * sum;
  }
  const t = 1 / (1 + 0.3275911 * a);
  const tail = ERF.reduceRight((sum, c) => (sum + c) * t, 0) * Math.exp(-a * a);
  return Math.sign(x) * (1 - tail);
}

/** Round to the nearest whole number, halves to the even one, as torch does. */
function roundEven(x) {
  const r = Math.round(x);
  return Math.abs(x % 1) === 0.5 && r % 2 !== 0 ? r - 1 : r;
}

export const UNARY = {
  relu: (x) => (x > 0 ? x : x === x ? 0 : x),
  sigmoid: (x) => 1 / (1 + Math.exp(-x)),
  tanh: Math.tanh, exp: Math.exp, log: Math.log, sqrt: Math.sqrt, rsqrt: (x) => 1 / Math.sqrt(x),
  neg: (x) => -x, abs: Math.abs, reciprocal: (x) => 1 / x, erf, sin: Math.sin, cos: Math.cos,
  floor: Math.floor, ceil: Math.ceil, round: roundEven, trunc: Math.trunc, sign: Math.sign,
  log1p: Math.log1p, expm1: Math.expm1, not: (x) => (x ? 0 : 1),
  isinf: (x) => (x === Infinity || x === -Infinity ? 1 : 0), isnan: (x) => (x !== x ? 1 : 0),
};

export const BINARY = {
  add: (a, b) => a + b, sub: (a, b) => a - b, mul: (a, b) => a * b, div: (a, b) => a / b, pow: Math.pow,
  max: (a, b) => (a > b || a !== a ? a : b), min: (a, b) => (a < b || a !== a ? a : b),
  gt: (a, b) => +(a > b), ge: (a, b) => +(a >= b), lt: (a, b) => +(a < b), le: (a, b) => +(a <= b),
  eq: (a, b) => +(a === b), ne: (a, b) => +(a !== b),
};

/** Steps through a tensor as if it had the given shape: 0 along axes that it does not have or that are 1 long. */
export function stridesOf(shape, as) {
  const strides = new Array(as.length).fill(0);
  for (let axis = shape.length - 1, size = 1; axis >= 0; axis--) {
    if (shape[axis] !== 1) strides[axis + as.length - shape.length] = size;
    size *= shape[axis];
  }
  return strides;
}

/** Axes that can be walked as one, for all operands, become one; axes of length 1 go. */
export function mergeAxes(shape, operands) {
  const sizes = [], steps = operands.map(() => []);
  shape.forEach((size, axis) => {
    if (size === 1) return;
    const last = sizes.length - 1;
    if (last >= 0 && operands.every((strides, o) => steps[o][last] === size * strides[axis])) {
      sizes[last] *= size;
      operands.forEach((strides, o) => (steps[o][last] = strides[axis]));
    } else {
      sizes.push(size);
      operands.forEach((strides, o) => steps[o].push(strides[axis]));
    }
  });
  if (!sizes.length) return { sizes: [1], steps: operands.map(() => [0]) };
  return { sizes, steps };
}

/**
 * Call `line(places, count, steps)` for every innermost line of operands that are walked together.
 * @param {number[]} starts where each operand begins
 */
export function walk({ sizes, steps }, starts, line) {
  const last = sizes.length - 1, inner = steps.map((each) => each[last]);
  const index = new Array(last).fill(0), places = [...starts];
  for (;;) {
    line(places, sizes[last], inner);
    let axis = last - 1;
    for (; axis >= 0; axis--) {
      for (let o = 0; o < places.length; o++) places[o] += steps[o][axis];
      if (++index[axis] < sizes[axis]) break;
      for (let o = 0; o < places.length; o++) places[o] -= steps[o][axis] * sizes[axis];
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

export function unary(heap, kind, from, to, count) {
  const f = UNARY[kind];
  if (kind === "relu") {
    return () => {
      const F = heap.numbers;
      for (let i = 0; i < count; i++) F[to + i] = F[from + i] < 0 ? 0 : F[from + i];
    };
  }
  return () => {
    const F = heap.numbers;
    for (let i = 0; i < count; i++) F[to + i] = f(F[from + i]);
  };
}

export function binary(heap, kind, places, shapes, shape) {
  const f = BINARY[kind];
  const plan = mergeAxes(shape, [stridesOf(shape, shape), ...shapes.map((each) => stridesOf(each, shape))]);
  const multiplies = kind === "mul", adds = kind === "add";
  return () => {
    const F = heap.numbers;
    walk(plan, places, ([to, a, b], count, [, sa, sb]) => {
      if (multiplies) for (let i = 0; i < count; i++) F[to + i] = F[a + i * sa] * F[b + i * sb];
      else if (adds) for (let i = 0; i < count; i++) F[to + i] = F[a + i * sa] + F[b + i * sb];
      else for (let i = 0; i < count; i++) F[to + i] = f(F[a + i * sa], F[b + i * sb]);
    });
  };
}

export function where(heap, places, shapes, shape) {
  const plan = mergeAxes(shape, [stridesOf(shape, shape), ...shapes.map((each) => stridesOf(each, shape))]);
  return () => {
    const F = heap.numbers;
    walk(plan, places, ([to, c, a, b], count, [, sc, sa, sb]) => {
      for (let i = 0; i < count; i++) F[to + i] = F[c + i * sc] ? F[a + i * sa] : F[b + i * sb];
    });
  };
}

/** Copy a tensor that is walked with other strides: a permutation, an expansion, a slice or a part of a larger one. */
export function copy(heap, from, to, shape, fromStrides, toStrides) {
  const plan = mergeAxes(shape, [toStrides, fromStrides]);
  return () => {
    const F = heap.numbers;
    walk(plan, [to, from], ([z, x], count, [sz, sx]) => {
      for (let i = 0; i < count; i++) F[z + i * sz] = F[x + i * sx];
    });
  };
}
