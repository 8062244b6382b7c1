// Memory of the interpreter: one array of numbers, in which every tensor has its place, and the matrix product on it.

/** Numbers at the beginning that belong to the matrix product's own scratch (see wasm.py). */
const RESERVED = 16;

/** Numbers that may be read, never used, behind the last tensor. */
const SLACK = 64;

const PAGE = 65536;

export class Heap {
  /** @param {Uint8Array[]} modules WebAssembly modules of the product, the best first; none for plain JavaScript. */
  constructor(modules = []) {
    this.used = RESERVED;
    this.numbers = new Float32Array(PAGE / 4);
    this.kind = "javascript";
    this.product = (...given) => multiply(this.numbers, ...given);
    for (const bytes of modules) {
      if (this.kind === "javascript" && typeof WebAssembly === "object") this.tryModule(bytes);
    }
  }

  tryModule(bytes) {
    try {
      if (!WebAssembly.validate(bytes)) return;
      const memory = new WebAssembly.Memory({ initial: 1 });
      const instance = new WebAssembly.Instance(new WebAssembly.Module(bytes), { env: { memory } });
      const run = instance.exports.product;
      this.memory = memory;
      this.numbers = new Float32Array(memory.buffer);
      this.product = (a, b, c, m, n, k, lda, ldb, ldc, panel) =>
        run(4 * a, 4 * b, 4 * c, m, n, k, 4 * lda, 4 * ldb, 4 * ldc, 4 * panel);
      this.kind = "webassembly";
    } catch {
      // A browser without it, or a policy that forbids it: the plain product stays.
    }
  }

  /** Reserve `count` numbers for good and return the place of the first; arrays taken from `numbers` before end here. */
  reserve(count) {
    const place = this.used;
    this.used += Math.ceil(count / 4) * 4;
    const wanted = this.used + SLACK;
    if (wanted <= this.numbers.length) return place;
    if (this.memory) {
      const more = Math.max(wanted - this.numbers.length, this.numbers.length / 2);
      this.memory.grow(Math.ceil((4 * more) / PAGE));
      this.numbers = new Float32Array(this.memory.buffer);
    } else {
      const larger = new Float32Array(Math.max(wanted, 1.5 * this.numbers.length));
      larger.set(this.numbers);
      this.numbers = larger;
    }
    return place;
  }
}

/** C += A B as in wasm.py, with distances in numbers: the way of browsers that have no WebAssembly. */
function multiply(F, a, b, c, m, n, k, lda, ldb, ldc, panel) {
  for (let j = 0; j < n; j += 8) {
    const columns = Math.min(8, n - j);
    const from = b + (j / 8) * panel;
    for (let i = 0; i < m; i++) {
      let s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
      for (let p = 0, x = a + i * lda, y = from; p < k; p++, x++, y += ldb) {
        const w = F[x];
        s0 += w * F[y]; s1 += w * F[y + 1]; s2 += w * F[y + 2]; s3 += w * F[y + 3];
        s4 += w * F[y + 4]; s5 += w * F[y + 5]; s6 += w * F[y + 6]; s7 += w * F[y + 7];
      }
      const to = c + i * ldc + j;
      const sums = [s0, s1, s2, s3, s4, s5, s6, s7];
      for (let q = 0; q < columns; q++) F[to + q] += sums[q];
    }
  }
}
