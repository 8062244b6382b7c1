// Runs a graph of operations (see graph.py): each becomes a function on the heap, prepared once for a number of rows.

import { binary, copy, stridesOf, unary, walk, where } from "./elementwise.js";
import { convolution, packPanels, panelNumbers } from "./convolution.js";

/** Numbers of one part of the batch that are computed at once: they stay in the cache. */
const NUMBERS_AT_ONCE = 400000;
const MAX_ROWS_AT_ONCE = 96;

const sizeOf = (shape) => shape.reduce((product, size) => product * size, 1);
const withRows = (shape, rows) => shape.map((size) => (size < 0 ? -size * rows : size));
const plainStrides = (shape) => shape.map((_, axis) => sizeOf(shape.slice(axis + 1)));

export class Network {
  /**
   * @param record the graph, as graph.py writes it
   * @param {(place: number) => Float32Array} weights numbers of each constant
   * @param heap memory, shared by all networks of a page
   */
  constructor(record, weights, heap) {
    this.heap = heap;
    this.values = new Map();
    this.outputs = record.outputs;
    this.inputs = record.inputs.map(([value]) => value);
    for (const [value, shape] of record.inputs) this.values.set(value, { shape, moving: true });
    for (const [value, shape, place] of record.constants) {
      const at = heap.reserve(sizeOf(shape));
      heap.numbers.set(weights(place), at);
      this.values.set(value, { shape, at, moving: false });
    }
    this.nodes = record.nodes.map(([value, operation, inputs, shape, settings]) => ({
      value, operation, inputs, shape, settings,
    }));
    for (const node of this.nodes) {
      const moving = node.inputs.some((input) => this.values.get(input).moving) || node.shape.some((size) => size < 0);
      this.values.set(node.value, { shape: node.shape, moving });
    }
    this.computeConstants();
    this.planMemory();
    this.prepared = new Map();
  }

  /** Compute once what does not depend on an input. */
  computeConstants() {
    for (const node of this.nodes) {
      const value = this.values.get(node.value);
      if (value.moving) continue;
      value.at = this.heap.reserve(sizeOf(node.shape));
      this.step(node, (input) => this.values.get(input).at, (shape) => shape)();
    }
    this.nodes = this.nodes.filter((node) => this.values.get(node.value).moving);
  }

  /** Give every value a place, for as many rows as are computed at once; a value that is not needed any more leaves it. */
  planMemory() {
    const lastUse = new Map();
    this.nodes.forEach((node, place) => node.inputs.forEach((input) => lastUse.set(input, place)));
    for (const value of [...this.outputs, ...this.inputs]) lastUse.set(value, Infinity);
    this.share(lastUse);
    const peak = this.assign(1, lastUse, null);
    this.rowsAtOnce = Math.max(1, Math.min(MAX_ROWS_AT_ONCE, Math.floor(NUMBERS_AT_ONCE / Math.max(1, peak))));
    const total = this.assign(this.rowsAtOnce, lastUse, null);
    this.assign(this.rowsAtOnce, lastUse, this.heap.reserve(total));
  }

  /** A reshape has the place of what it reshapes, and a function of a value that ends there writes over it. */
  share(lastUse) {
    this.owner = new Map();
    this.nodes.forEach((node, place) => {
      const input = node.inputs[0];
      const source = this.values.get(input);
      const owner = this.owner.get(input) ?? input;
      const free = node.operation === "unary" && (lastUse.get(owner) ?? -1) === place;
      if ((node.operation === "reshape" && source.moving) || (free && source.moving)) {
        this.owner.set(node.value, owner);
        lastUse.set(owner, Math.max(lastUse.get(owner) ?? -1, lastUse.get(node.value) ?? -1));
      }
    });
  }

  /** Assign places by first fit; with `base` null only count the numbers that are needed. */
  assign(rows, lastUse, base) {
    const live = [];
    let peak = 0;
    const place = (value) => {
      const size = Math.ceil(sizeOf(withRows(this.values.get(value).shape, rows)) / 4) * 4 + 8;
      let start = 0;
      live.sort((a, b) => a.start - b.start);
      for (const each of live) {
        if (each.start - start >= size) break;
        start = Math.max(start, each.start + each.size);
      }
      live.push({ value, start, size });
      peak = Math.max(peak, start + size);
      if (base !== null) this.values.get(value).at = base + start;
    };
    this.inputs.forEach(place);
    this.nodes.forEach((node, now) => {
      if (!this.owner.has(node.value)) place(node.value);
      else if (base !== null) this.values.get(node.value).at = this.values.get(this.owner.get(node.value)).at;
      for (let i = live.length - 1; i >= 0; i--) if ((lastUse.get(live[i].value) ?? -1) <= now) live.splice(i, 1);
    });
    return peak;
  }

  /**
   * Compute the outputs of `rows` rows.
   * @param {Float32Array[]} inputs one array [rows, …] for each input
   * @returns {Float32Array[]} one array [rows, …] for each output
   */
  run(inputs, rows) {
    const results = this.outputs.map((value) => new Float32Array(sizeOf(withRows(this.values.get(value).shape, rows))));
    for (let start = 0; start < rows; start += this.rowsAtOnce) {
      const count = Math.min(this.rowsAtOnce, rows - start);
      const steps = this.stepsFor(count);
      this.inputs.forEach((value, i) => {
        const { shape, at } = this.values.get(value);
        const size = sizeOf(withRows(shape, 1));
        this.heap.numbers.set(inputs[i].subarray(start * size, (start + count) * size), at);
      });
      for (const step of steps) step();
      this.outputs.forEach((value, o) => {
        const { shape, at } = this.values.get(value);
        const size = sizeOf(withRows(shape, 1)), perRow = shape.some((length) => length < 0);
        results[o].set(this.heap.numbers.subarray(at, at + (perRow ? count * size : size)), perRow ? start * size : 0);
      });
    }
    return results;
  }

  stepsFor(rows) {
    if (!this.prepared.has(rows)) {
      const at = (value) => this.values.get(value).at;
      const steps = this.nodes.map((node) => this.step(node, at, (shape) => withRows(shape, rows)));
      this.prepared.set(rows, steps.filter(Boolean));
    }
    return this.prepared.get(rows);
  }

  /** Return the function that computes one node; none for a reshape that stays in its place. */
  step(node, at, concrete) {
    const shape = concrete(node.shape), to = at(node.value), from = node.inputs.map(at);
    const shapes = node.inputs.map((input) => concrete(this.values.get(input).shape));
    const { heap } = this, { settings } = node;
    switch (node.operation) {
      case "matmul": return matmul(heap, node, from, to, shapes, shape, this.values);
      case "convolution": {
        const places = { input: from[0], kernel: from[1], bias: from[2] ?? -1, output: to };
        return convolution(heap, node, places, { input: shapes[0], kernel: shapes[1], output: shape });
      }
      case "unary": return unary(heap, settings.kind, from[0], to, sizeOf(shape));
      case "binary": return binary(heap, settings.kind, [to, ...from], shapes, shape);
      case "where": return where(heap, [to, ...from], shapes, shape);
      case "reduce": return reduce(heap, settings, from[0], to, shapes[0]);
      case "softmax": return softmax(heap, settings, from[0], to, shape);
      case "reshape": return from[0] === to ? null : copy(heap, from[0], to, [sizeOf(shape)], [1], [1]);
      case "expand": return copy(heap, from[0], to, shape, stridesOf(shapes[0], shape), plainStrides(shape));
      case "permute": {
        const strides = plainStrides(shapes[0]);
        return copy(heap, from[0], to, shape, settings.order.map((axis) => strides[axis]), plainStrides(shape));
      }
      case "slice": {
        const strides = plainStrides(shapes[0]);
        const start = from[0] + settings.start * strides[settings.axis];
        strides[settings.axis] *= settings.step;
        return copy(heap, start, to, shape, strides, plainStrides(shape));
      }
      case "concat": return concat(heap, settings.axis, from, to, shapes, shape);
      case "take": return take(heap, settings.axis, from, to, shapes, shape);
      default: throw new Error(`This page does not know the operation ${node.operation}.`);
    }
  }
}

/** A product of matrices; a constant on the right is packed once. */
function matmul(heap, node, from, to, shapes, shape, values) {
  const [m, n] = shape.slice(-2), k = shapes[0].at(-1), batch = sizeOf(shape.slice(0, -2));
  const fixed = !values.get(node.inputs[1]).moving;
  const size = panelNumbers(k, n);
  const kept = (node.kept ??= { panels: heap.reserve(fixed ? batch * size : size), packed: false });
  return () => {
    const F = heap.numbers;
    for (let g = 0; g < batch; g++) {
      const panels = fixed ? kept.panels + g * size : kept.panels;
      if (!fixed || !kept.packed) packPanels(F, from[1] + g * k * n, panels, k, n, n);
      const out = to + g * m * n;
      if (from.length > 2) for (let i = 0; i < m; i++) F.copyWithin(out + i * n, from[2], from[2] + n);
      else F.fill(0, out, out + m * n);
      heap.product(from[0] + g * m * k, panels, out, m, n, k, k, 8, n, 8 * k);
    }
    kept.packed = fixed;
  };
}

const REDUCTIONS = {
  sum: { start: 0, join: (sum, x) => sum + x },
  mean: { start: 0, join: (sum, x) => sum + x },
  max: { start: -Infinity, join: (most, x) => (x > most || x !== x ? x : most) },
  min: { start: Infinity, join: (least, x) => (x < least || x !== x ? x : least) },
};

function reduce(heap, { kind, axes }, from, to, shape) {
  const strides = plainStrides(shape);
  const kept = shape.map((_, axis) => axis).filter((axis) => !axes.includes(axis));
  const inner = axes.map((axis) => shape[axis]), innerStrides = axes.map((axis) => strides[axis]);
  const outer = { sizes: kept.map((axis) => shape[axis]), steps: [kept.map((axis) => strides[axis])] };
  if (!kept.length) Object.assign(outer, { sizes: [1], steps: [[0]] });
  const within = { sizes: inner.length ? inner : [1], steps: [inner.length ? innerStrides : [0]] };
  const count = sizeOf(inner), place = kind.startsWith("arg"), { start, join } = REDUCTIONS[place ? kind.slice(3) : kind];
  return () => {
    const F = heap.numbers;
    let z = to;
    walk(outer, [from], ([first], length, [step]) => {
      for (let i = 0; i < length; i++) {
        let sum = start, position = 0, best = 0;
        walk(within, [first + i * step], ([x], many, [s]) => {
          for (let j = 0; j < many; j++, position++) {
            const joined = join(sum, F[x + j * s]);
            if (joined !== sum) best = position;
            sum = joined;
          }
        });
        F[z++] = place ? best : kind === "mean" ? sum / count : sum;
      }
    });
  };
}

function softmax(heap, { axis, log }, from, to, shape) {
  const length = shape[axis], inner = sizeOf(shape.slice(axis + 1)), outer = sizeOf(shape.slice(0, axis));
  return () => {
    const F = heap.numbers;
    for (let o = 0; o < outer; o++) {
      for (let i = 0; i < inner; i++) {
        const start = o * length * inner + i;
        let most = -Infinity, sum = 0;
        for (let p = 0; p < length; p++) most = Math.max(most, F[from + start + p * inner]);
        for (let p = 0; p < length; p++) sum += Math.exp(F[from + start + p * inner] - most);
        for (let p = 0; p < length; p++) {
          const x = F[from + start + p * inner] - most;
          F[to + start + p * inner] = log ? x - Math.log(sum) : Math.exp(x) / sum;
        }
      }
    }
  };
}

function concat(heap, axis, from, to, shapes, shape) {
  const strides = plainStrides(shape);
  let start = to;
  const parts = from.map((place, i) => {
    const part = copy(heap, place, start, shapes[i], plainStrides(shapes[i]), strides);
    start += shapes[i][axis] * strides[axis];
    return part;
  });
  return () => parts.forEach((part) => part());
}

function take(heap, axis, from, to, shapes, shape) {
  const length = shapes[0][axis], inner = sizeOf(shape.slice(axis + 1)), outer = sizeOf(shape.slice(0, axis));
  const count = shape[axis];
  return () => {
    const F = heap.numbers;
    for (let o = 0, z = to; o < outer; o++) {
      for (let p = 0; p < count; p++, z += inner) {
        const x = from[0] + (o * length + F[from[1] + p]) * inner;
        F.copyWithin(z, x, x + inner);
      }
    }
  };
}
