// Pictures that people drop, paste or pick: read with care, brought to the shape of the data.

/** Larger pictures are refused before they are decoded: each megapixel takes 4 MB. */
const MAX_MEGAPIXELS = 50;
const MAX_MEGABYTES = 64;

/** Width and height that a picture's file says it has; null if its kind is not known here. */
export function sizeInHeader(bytes) {
  const at = (i, n) => { let v = 0; for (let k = 0; k < n; k++) v = v * 256 + (bytes[i + k] ?? 0); return v; };
  const little = (i, n) => { let v = 0; for (let k = n - 1; k >= 0; k--) v = v * 256 + (bytes[i + k] ?? 0); return v; };
  const text = (i, n) => String.fromCharCode(...bytes.subarray(i, i + n));
  if (text(1, 3) === "PNG") return [at(16, 4), at(20, 4)];
  if (text(0, 3) === "GIF") return [little(6, 2), little(8, 2)];
  if (text(0, 2) === "BM") return [little(18, 4), Math.abs(little(22, 4) | 0)];
  if (text(0, 4) === "RIFF" && text(8, 4) === "WEBP") {
    if (text(12, 4) === "VP8X") return [little(24, 3) + 1, little(27, 3) + 1];
    if (text(12, 4) === "VP8L") return [(little(21, 2) & 0x3fff) + 1, ((little(21, 4) >>> 14) & 0x3fff) + 1];
    return [little(26, 2) & 0x3fff, little(28, 2) & 0x3fff];
  }
  if (bytes[0] === 0xff && bytes[1] === 0xd8) {
    for (let i = 2; i < bytes.length - 9; ) {
      if (bytes[i] !== 0xff) return null;
      const marker = bytes[i + 1];
      if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker)) return [at(i + 7, 2), at(i + 5, 2)];
      i += marker === 0xff ? 1 : 2 + at(i + 2, 2);
    }
  }
  return null;
}

/**
 * Read a picture file as numbers [channels, height, width]: its central square, areas averaged, on white.
 * @throws {Error} with a sentence for the reader
 */
export async function readPicture(file, [channels, height, width]) {
  if (file.size > MAX_MEGABYTES * 2 ** 20) throw new Error(`This file has ${Math.round(file.size / 2 ** 20)} MB; files up to ${MAX_MEGABYTES} MB can be read.`);
  const head = new Uint8Array(await file.slice(0, 2 ** 18).arrayBuffer());
  const size = sizeInHeader(head);
  if (!size || !size[0] || !size[1]) throw new Error("This file is no picture that can be read here; try a PNG, JPEG, GIF, WebP or BMP file.");
  const megapixels = (size[0] * size[1]) / 1e6;
  if (megapixels > MAX_MEGAPIXELS) throw new Error(`This picture has ${Math.round(megapixels)} megapixels; pictures up to ${MAX_MEGAPIXELS} can be read. Make it smaller first.`);
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error("This picture is damaged and cannot be read.");
  }
  try {
    return shrink(bitmap, channels, height, width);
  } finally {
    bitmap.close();
  }
}

function shrink(bitmap, channels, height, width) {
  const side = Math.min(bitmap.width, Math.floor((bitmap.height * width) / height)), tall = Math.round((side * height) / width);
  const left = Math.floor((bitmap.width - side) / 2), top = Math.floor((bitmap.height - tall) / 2);
  const factor = Math.max(1, Math.min(16, Math.floor(side / width)));  // a whole number of pixels to average
  const canvas = new OffscreenCanvas(width * factor, height * factor);
  const context = canvas.getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, left, top, side, tall, 0, 0, canvas.width, canvas.height);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  return average(data, factor, channels, height, width);
}

function average(data, factor, channels, height, width) {
  const values = new Float32Array(channels * height * width), area = 255 * factor * factor;
  for (let y = 0; y < height * factor; y++) {
    for (let x = 0; x < width * factor; x++) {
      const at = 4 * (y * width * factor + x), to = Math.floor(y / factor) * width + Math.floor(x / factor);
      const grey = 0.299 * data[at] + 0.587 * data[at + 1] + 0.114 * data[at + 2];
      for (let c = 0; c < channels; c++) values[c * height * width + to] += (channels === 3 ? data[at + c] : grey) / area;
    }
  }
  return values;
}
