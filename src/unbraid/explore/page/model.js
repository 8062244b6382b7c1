// The model in the page: codes to pictures and pictures to codes, by the two networks of the file.

import { Network } from "./interpreter.js";

export class Model {
  /**
   * @param run what the page knows of the run (see run_page.py)
   * @param weights numbers of each constant, by place
   * @param heap memory
   * @param {Float32Array} numbers arrays of the page
   */
  constructor(run, weights, heap, numbers) {
    this.run = run;
    this.width = run.width;
    this.decoder = new Network(run.networks.decode, weights, heap);
    this.encoder = run.networks.encode && new Network(run.networks.encode, weights, heap);
    this.array = ([place, count]) => numbers.subarray(place, place + count);
    this.codes = this.array(run.rows.codes);
    this.factors = this.array(run.rows.factors);
    this.present = this.array(run.rows.present);
  }

  /** Draw codes [count, width]; returns one array [count, …] for each view. */
  decode(codes, count = 1) {
    return this.decoder.run([Float32Array.from(codes)], count);
  }

  /**
   * Encode one observation of each modality; those that are absent may hold anything.
   * @param {Float32Array[]} observations
   * @param {boolean[]} present
   */
  encode(observations, present) {
    return [...this.encoder.run([...observations, Float32Array.from(present, Number)], 1)[0]];
  }

  codeOfRow(row) {
    return [...this.codes.subarray(row * this.width, (row + 1) * this.width)];
  }
}

export const sizeOfShape = (shape) => shape.reduce((product, size) => product * size, 1);

/** A code in which one latent has another value (a number, or one for each of its coordinates). */
export function withLatent(code, latent, value) {
  const moved = [...code];
  latent.columns.forEach((column, i) => (moved[column] = Array.isArray(value) ? value[i] : value));
  return moved;
}

/** The values through which a traversal leads a latent. */
export function placesOf(latent, columns = 9) {
  if (latent.values) return latent.values;
  const step = (latent.high - latent.low) / (columns - 1);
  return Array.from({ length: columns }, (_, i) => latent.low + i * step);
}
