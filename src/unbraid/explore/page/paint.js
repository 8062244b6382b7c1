// Arrays of numbers as pictures on canvases; vectors and classes as bars.

import { formatNumber, make } from "./dom.js";

/** Write one image [channels, height, width] in 0..1 as RGBA into pixels, which round, `stride` wide, from (x, y) on. */
function writeImage(pixels, stride, x, y, values, offset, [channels, height, width]) {
  const size = height * width;
  for (let i = 0, p = 0; i < height; i++) {
    for (let j = 0, q = 4 * ((y + i) * stride + x); j < width; j++, p++, q += 4) {
      if (channels === 3) {
        pixels[q] = 255 * values[offset + p];
        pixels[q + 1] = 255 * values[offset + size + p];
        pixels[q + 2] = 255 * values[offset + 2 * size + p];
      } else {
        let sum = 0;
        for (let c = 0; c < channels; c++) sum += values[offset + c * size + p];
        pixels[q] = pixels[q + 1] = pixels[q + 2] = (255 * sum) / channels;
      }
      pixels[q + 3] = 255;
    }
  }
}

/** Images side by side with a clear gap, as one picture. */
export function imageStrip(values, count, shape, gap = 2) {
  const [, height, width] = shape, across = count * (width + gap) - gap;
  const image = new ImageData(across, height);
  const size = shape[0] * height * width;
  for (let i = 0; i < count; i++) writeImage(image.data, across, i * (width + gap), 0, values, i * size, shape);
  return image;
}

/** Show a picture on a canvas of exactly its size; the page's style enlarges it. */
export function show(canvas, image) {
  if (canvas.width !== image.width) canvas.width = image.width;
  if (canvas.height !== image.height) canvas.height = image.height;
  canvas.getContext("2d", { willReadFrequently: true }).putImageData(image, 0, 0);  // stays in memory, where it is written
}

/** Standard deviations of a column that a bar of full length stands for. */
const FULL_BAR = 3;

/**
 * How each number of a vector or a label is shown: its name, what a full bar means, and its text.
 * Columns of a table have their units, with mean and scale; classes have a share of 1.
 */
function describeNumbers({ kind, shape, classes, features }) {
  const share = (name) => ({ name, reach: 1, text: (value) => `${Math.round(100 * value)}%` });
  if (kind === "label") return classes.map(share);
  if (features.length) {
    return features.map(({ name, mean, scale }) => scale === undefined ? share(name)
      : { name, reach: FULL_BAR, text: (value) => Number((mean + scale * value).toPrecision(3)).toLocaleString("en") });
  }
  return Array.from({ length: shape[0] }, (_, i) => ({ name: String(i), reach: null, text: (value) => formatNumber(value) }));
}

/**
 * A place that shows observations of one modality: `paint(values, offset)` draws one of them.
 * @param modality {name, kind, shape, classes, features}
 */
export function makeView(modality, label) {
  if (modality.kind === "image") {
    const canvas = make("canvas.picture", { role: "img", "aria-label": label });
    return { element: canvas, paint: (values, offset = 0) => show(canvas, imageStrip(values.subarray(offset), 1, modality.shape)) };
  }
  const bars = make("div.bars", { role: "img", "aria-label": label });
  const numbers = describeNumbers(modality).map(({ name, reach, text }) => {
    const fill = make("i"), value = make("small");
    bars.append(make("span", { text: name, title: name }), make("b", {}, fill), value);
    return { fill, value, reach, text };
  });
  const paint = (values, offset = 0) => {
    const part = values.subarray(offset, offset + numbers.length);
    const largest = Math.max(1e-6, ...part.map(Math.abs));
    numbers.forEach(({ fill, value, reach, text }, i) => {
      fill.style.setProperty("--share", String(Math.min(1, Math.abs(part[i]) / (reach ?? largest))));
      fill.classList.toggle("negative", part[i] < 0);
      value.textContent = text(part[i]);
    });
  };
  return { element: bars, paint };
}
