// Text of the page to bytes (see text.py).

/** @returns {Uint8Array} the bytes of a base64 text */
export function bytesOf(text) {
  const binary = atob(text), bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** @returns {Uint8Array} the bytes of a text with seven bits for each character (see text.py) */
export function bytesOfText(text) {
  const bytes = new Uint8Array(Math.floor((text.length * 7) / 8)), standIns = { 0xa1: 0, 0xa2: 13, 0xa3: 60 };
  for (let i = 0, at = 0, buffer = 0, bits = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    buffer = ((buffer << 7) | (code < 128 ? code : standIns[code])) & 0x3fff;
    bits += 7;
    if (bits >= 8) bytes[at++] = (buffer >> (bits -= 8)) & 255;
  }
  return bytes;
}

/** @returns {Promise<Uint8Array>} what gzip compressed */
export async function decompress(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
