// Animated GIF: 256 greys, or a cube of 6 x 7 x 6 colours; LZW as the format has it.

const MAX_CODES = 4096;

/**
 * @param {ImageData[]} frames all of one size
 * @param {number} hundredths of a second that each is shown
 * @returns {Uint8Array}
 */
export function encodeGif(frames, hundredths) {
  const { width, height } = frames[0], grey = frames.every(isGrey);
  const out = [...text("GIF89a"), ...short(width), ...short(height), 0xf7, 0, 0, ...(grey ? greys() : cube())];
  out.push(0x21, 0xff, 11, ...text("NETSCAPE2.0"), 3, 1, 0, 0, 0);
  for (const frame of frames) {
    out.push(0x21, 0xf9, 4, 4, ...short(hundredths), 0, 0, 0x2c, 0, 0, 0, 0, ...short(width), ...short(height), 0, 8);
    const packed = compress(indices(frame, grey));
    for (let i = 0; i < packed.length; i += 255) {
      const part = packed.slice(i, i + 255);
      out.push(part.length);
      for (const byte of part) out.push(byte);
    }
    out.push(0);
  }
  out.push(0x3b);
  return Uint8Array.from(out);
}

const text = (word) => [...word].map((letter) => letter.charCodeAt(0));
const short = (value) => [value & 255, value >> 8];
const greys = () => Array.from({ length: 768 }, (_, i) => Math.floor(i / 3));

function cube() {
  const colours = [];
  for (let i = 0; i < 256; i++) {
    const [r, g, b] = [Math.floor(i / 42), Math.floor(i / 6) % 7, i % 6];
    colours.push(Math.min(255, r * 51), Math.round(g * 42.5), b * 51);
  }
  return colours;
}

function isGrey({ data }) {
  for (let i = 0; i < data.length; i += 4) if (data[i] !== data[i + 1] || data[i] !== data[i + 2]) return false;
  return true;
}

function indices({ data }, grey) {
  const places = new Uint8Array(data.length / 4);
  for (let i = 0, p = 0; i < data.length; i += 4, p++) {
    places[p] = grey ? data[i] : Math.round(data[i] / 51) * 42 + Math.round(data[i + 1] / 42.5) * 6 + Math.round(data[i + 2] / 51);
  }
  return places;
}

/** LZW of bytes, codes from 9 to 12 bits. */
function compress(bytes) {
  const out = [];
  let buffer = 0, bits = 0, size = 9, next = 258, table = new Map(), prefix = -1;
  const emit = (code) => {
    buffer |= code << bits;
    for (bits += size; bits >= 8; bits -= 8, buffer >>>= 8) out.push(buffer & 255);
  };
  emit(256);
  for (const byte of bytes) {
    if (prefix < 0) { prefix = byte; continue; }
    const key = prefix * 256 + byte, known = table.get(key);
    if (known !== undefined) { prefix = known; continue; }
    emit(prefix);
    if (next < MAX_CODES) {
      table.set(key, next++);
      if (next > 1 << size && size < 12) size++;
    } else {
      emit(256);
      table = new Map();
      size = 9;
      next = 258;
    }
    prefix = byte;
  }
  if (prefix >= 0) emit(prefix);
  emit(257);
  if (bits) out.push(buffer & 255);
  return out;
}
