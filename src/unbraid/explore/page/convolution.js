// Convolutions as matrix products: an image's windows become columns, or a product's rows are added where they belong.

/** Numbers of columns that are made at once: they stay in the cache. */
const COLUMNS_AT_ONCE = 65536;

/**
 * Copy a matrix [rows, columns] into panels of 8 columns, as the product likes them.
 * @returns the numbers that the panels take
 */
export function packPanels(F, from, to, rows, columns, distance) {
  for (let j = 0; j < columns; j += 8) {
    const width = Math.min(8, columns - j);
    for (let p = 0, x = from + j; p < rows; p++, x += distance, to += 8) {
      if (width === 8) {
        F[to] = F[x]; F[to + 1] = F[x + 1]; F[to + 2] = F[x + 2]; F[to + 3] = F[x + 3];
        F[to + 4] = F[x + 4]; F[to + 5] = F[x + 5]; F[to + 6] = F[x + 6]; F[to + 7] = F[x + 7];
      } else {
        for (let q = 0; q < 8; q++) F[to + q] = q < width ? F[x + q] : 0;
      }
    }
  }
}

export const panelNumbers = (rows, columns) => rows * 8 * Math.ceil(columns / 8);

/** Read the sizes of a convolution from the shapes of its operands [rows, channels, height, width] and of its result. */
function sizesOf(node, input, kernel, output) {
  const [sy, sx] = node.settings.stride, [py, px] = node.settings.padding, [dy, dx] = node.settings.dilation;
  return {
    groups: node.settings.groups, rows: input[0], channels: input[1], height: input[2], width: input[3],
    out: output[1], outHeight: output[2], outWidth: output[3], kernelHeight: kernel[2], kernelWidth: kernel[3],
    sy, sx, py, px, dy, dx,
  };
}

/**
 * Prepare a convolution: rearrange its weights once, reserve what it needs, and return the function that runs it.
 * @param heap where everything is
 * @param node settings of the convolution
 * @param at places of input, kernel, bias (or -1) and output
 * @param shapes theirs, the batch filled in
 */
export function convolution(heap, node, at, shapes) {
  const s = sizesOf(node, shapes.input, shapes.kernel, shapes.output);
  const build = node.settings.transposed ? transposed : ordinary;
  const run = build(heap, node, s, at);
  const pixels = s.outHeight * s.outWidth;
  return () => {
    const F = heap.numbers;
    for (let row = 0, y = at.output; row < s.rows; row++) {
      for (let c = 0; c < s.out; c++, y += pixels) F.fill(at.bias < 0 ? 0 : F[at.bias + c], y, y + pixels);
    }
    run(F);
  };
}

function ordinary(heap, node, s, at) {
  const channels = s.channels / s.groups, out = s.out / s.groups, area = s.kernelHeight * s.kernelWidth;
  const K = channels * area, pixels = s.outHeight * s.outWidth, size = s.height * s.width;
  if (pixels === 1 && s.groups === 1 && s.py === 0 && s.px === 0 && s.kernelHeight === s.height && s.kernelWidth === s.width) {
    const turned = keep(heap, node, "panels", panelNumbers(K, out), (F, to) => {
      for (let o = 0; o < Math.ceil(out / 8) * 8; o++) {
        for (let p = 0; p < K; p++) F[to + (o >> 3) * 8 * K + 8 * p + (o & 7)] = o < out ? F[at.kernel + o * K + p] : 0;
      }
    });
    return () => heap.product(at.input, turned, at.output, s.rows, out, K, K, 8, out, 8 * K);
  }
  const lines = Math.max(1, Math.min(s.outHeight, Math.floor(COLUMNS_AT_ONCE / (K * s.outWidth))));
  const scratch = keep(heap, node, "columns", panelNumbers(K, lines * s.outWidth));
  return (F) => {
    for (let row = 0; row < s.rows; row++) {
      for (let g = 0; g < s.groups; g++) {
        const image = at.input + (row * s.channels + g * channels) * size;
        for (let top = 0; top < s.outHeight; top += lines) {
          const count = Math.min(lines, s.outHeight - top) * s.outWidth;
          windows(F, image, scratch, s, channels, top, count, K);
          const to = at.output + (row * s.out + g * out) * pixels + top * s.outWidth;
          heap.product(at.kernel + g * out * K, scratch, to, out, count, K, K, 8, pixels, 8 * K);
        }
      }
    }
  };
}

/** Write the windows of `count` output pixels from line `top` on as columns, in panels. */
function windows(F, image, to, s, channels, top, count, K) {
  const { height, width, outWidth, sy, sx, py, px, dy, dx } = s;
  if (s.kernelHeight === 1 && s.kernelWidth === 1 && sy === 1 && sx === 1 && py === 0 && px === 0) {
    packPanels(F, image + top * width, to, channels, count, height * width);
    return;
  }
  for (let c = 0, p = 0; c < channels; c++) {
    for (let ky = 0; ky < s.kernelHeight; ky++) {
      for (let kx = 0; kx < s.kernelWidth; kx++, p++) {
        for (let j = 0, x = 0, y = top; j < count; y++, x = 0) {
          const iy = y * sy - py + ky * dy;
          const line = image + (c * height + iy) * width;
          const inside = iy >= 0 && iy < height;
          for (let ix = kx * dx - px; x < outWidth; x++, j++, ix += sx) {
            F[to + (j >> 3) * 8 * K + 8 * p + (j & 7)] = inside && ix >= 0 && ix < width ? F[line + ix] : 0;
          }
        }
      }
    }
  }
  for (let j = count; j & 7; j++) for (let p = 0; p < K; p++) F[to + (j >> 3) * 8 * K + 8 * p + (j & 7)] = 0;
}

function transposed(heap, node, s, at) {
  const channels = s.channels / s.groups, out = s.out / s.groups, area = s.kernelHeight * s.kernelWidth;
  const M = out * area, pixels = s.height * s.width;
  if (pixels === 1 && s.groups === 1 && s.py === 0 && s.px === 0 && s.outHeight === s.kernelHeight && s.outWidth === s.kernelWidth) {
    const panels = keep(heap, node, "panels", panelNumbers(channels, M), (F, to) => packPanels(F, at.kernel, to, channels, M, M));
    return () => heap.product(at.input, panels, at.output, s.rows, M, channels, channels, 8, M, 8 * channels);
  }
  const turned = keep(heap, node, "turned", s.groups * M * channels, (F, to) => {
    for (let g = 0; g < s.groups; g++) {
      for (let c = 0; c < channels; c++) {
        for (let o = 0; o < M; o++) F[to + (g * M + o) * channels + c] = F[at.kernel + (g * channels + c) * M + o];
      }
    }
  });
  const panels = keep(heap, node, "columns", panelNumbers(channels, pixels));
  const made = keep(heap, node, "made", M * pixels);
  return (F) => {
    for (let row = 0; row < s.rows; row++) {
      for (let g = 0; g < s.groups; g++) {
        packPanels(F, at.input + (row * s.channels + g * channels) * pixels, panels, channels, pixels, pixels);
        F.fill(0, made, made + M * pixels);
        heap.product(turned + g * M * channels, panels, made, M, pixels, channels, channels, 8, pixels, 8 * channels);
        addWindows(F, made, at.output + (row * s.out + g * out) * s.outHeight * s.outWidth, s, out);
      }
    }
  };
}

/** Add each input pixel's window [out, kernel, kernel] to the output where it belongs. */
function addWindows(F, from, to, s, out) {
  const { height, width, outHeight, outWidth, sy, sx, py, px, dy, dx } = s;
  for (let o = 0; o < out; o++) {
    for (let ky = 0; ky < s.kernelHeight; ky++) {
      for (let kx = 0; kx < s.kernelWidth; kx++) {
        const left = kx * dx - px;
        const first = left < 0 ? Math.ceil(-left / sx) : 0;
        const last = Math.min(width, Math.floor((outWidth - 1 - left) / sx) + 1);
        for (let y = 0; y < height; y++, from += width) {
          const oy = y * sy + ky * dy - py;
          if (oy < 0 || oy >= outHeight) continue;
          const line = to + (o * outHeight + oy) * outWidth + left;
          for (let x = first, z = line + first * sx; x < last; x++, z += sx) F[z] += F[from + x];
        }
      }
    }
  }
}

/** Reserve memory of a node once, whatever the batch is, and fill it; a second call returns the same place. */
function keep(heap, node, name, count, fill) {
  const kept = (node.kept ??= {});
  if (!(name in kept)) {
    kept[name] = heap.reserve(count);
    if (fill) fill(heap.numbers, kept[name]);
  }
  return kept[name];
}
