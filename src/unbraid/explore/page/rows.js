// Rows of the data in the page: pictures come as one sheet of tiles, other modalities as numbers.

import { bytesOf } from "./text.js";
import { sizeOfShape } from "./model.js";

export class Rows {
  /** Read the sheets of a run; a modality that is no picture has numbers. */
  static async read(model) {
    const rows = new Rows();
    rows.model = model;
    rows.count = model.run.rows.count;
    rows.sheets = await Promise.all(model.run.rows.observed.map(readSheet));
    return rows;
  }

  /** Observation [shape] of a row in a modality, as the encoder takes it. */
  observation(modality, row) {
    const { shape } = this.model.run.modalities[modality], described = this.model.run.rows.observed[modality];
    const size = sizeOfShape(shape);
    if (described.numbers) return this.model.array(described.numbers).slice(row * size, (row + 1) * size);
    const { pixels, across } = this.sheets[modality], [tall, wide] = described.size;
    const [channels, height, width] = shape, values = new Float32Array(size);
    const top = Math.floor(row / described.columns) * tall, left = (row % described.columns) * wide;
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        const at = 4 * ((top + Math.floor((y * tall) / height)) * across + left + Math.floor((x * wide) / width));
        for (let c = 0; c < channels; c++) values[(c * height + y) * width + x] = pixels[at + (channels === 3 ? c : 0)] / 255;
      }
    }
    return values;
  }

  /** Number of a row in the data, from 0: the page shows a random choice of rows. */
  place(row) {
    return this.model.run.rows.places[row];
  }

  /** Which modalities a row has. */
  presence(row) {
    const count = this.model.run.modalities.length;
    return Array.from({ length: count }, (_, m) => this.model.present[row * count + m] > 0);
  }
}

async function readSheet(described) {
  if (!described.sheet) return null;
  const bitmap = await createImageBitmap(new Blob([bytesOf(described.sheet)], { type: "image/png" }), { colorSpaceConversion: "none" });
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  return { pixels: context.getImageData(0, 0, bitmap.width, bitmap.height).data, across: bitmap.width };
}
