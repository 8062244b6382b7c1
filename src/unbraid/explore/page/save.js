// Files for the reader: the picture, a GIF of one latent's traversal, the code as numbers.

import { encodeGif } from "./gif.js";
import { imageStrip } from "./paint.js";
import { placesOf, sizeOfShape, withLatent } from "./model.js";

const SIDE = 512;
const FRAMES = 24;

/** Offer bytes as a file. */
export function saveFile(name, type, ...parts) {
  const address = URL.createObjectURL(new Blob(parts, { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/** Letters, digits and dashes of a title, for a file's name. */
export const fileName = (title) => title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || "unbraid";

/** An image enlarged by a whole factor, every pixel a square. */
function enlarge(image) {
  const factor = Math.max(1, Math.floor(SIDE / Math.max(image.width, image.height)));
  const large = new ImageData(image.width * factor, image.height * factor);
  const from = new Uint32Array(image.data.buffer), to = new Uint32Array(large.data.buffer);
  for (let y = 0, p = 0; y < large.height; y++) {
    for (let x = 0; x < large.width; x++, p++) to[p] = from[Math.floor(y / factor) * image.width + Math.floor(x / factor)];
  }
  return large;
}

export async function savePicture(model, code, view) {
  const large = enlarge(imageStrip(model.decode(code)[view.place], 1, view.shape));
  const canvas = new OffscreenCanvas(large.width, large.height);
  canvas.getContext("2d").putImageData(large, 0, 0);
  saveFile(`${fileName(model.run.title)}.png`, "image/png", await canvas.convertToBlob());
}

/** The traversal of a latent there and back. */
export function saveAnimation(model, code, view, latent) {
  const places = placesOf(latent, FRAMES), size = sizeOfShape(view.shape);
  const values = model.decode(places.flatMap((value) => withLatent(code, latent, value)), places.length)[view.place];
  const frames = places.map((_, i) => enlarge(imageStrip(values.subarray(i * size), 1, view.shape)));
  const slow = latent.values ? 60 : 6;
  saveFile(`${fileName(`${model.run.title} ${latent.name}`)}.gif`, "image/gif", encodeGif([...frames, ...frames.slice(1, -1).reverse()], slow));
}

/** The code by latent, and the codes of the data's rows in the page. */
export function saveCodes(model, code) {
  const names = new Array(model.width);
  for (const latent of model.run.latents) latent.columns.forEach((column, k) => (names[column] = latent.columns.length > 1 ? `${latent.name}_${k}` : latent.name));
  const lines = [["row", ...names], ["now", ...code]];
  for (let row = 0; row < model.run.rows.count; row++) lines.push([row, ...model.codeOfRow(row)]);
  const quote = (cell) => (typeof cell === "number" ? String(cell) : `"${String(cell).replaceAll('"', '""')}"`);
  saveFile(`${fileName(model.run.title)}-codes.csv`, "text/csv", lines.map((line) => line.map(quote).join(",")).join("\n"));
}
