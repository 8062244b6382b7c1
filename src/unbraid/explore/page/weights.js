// Bytes of the page to weights (see weights.py).

/** Read all tensors; returns a function from a tensor's place to its numbers. */
export function readWeights(records, bytes) {
  const starts = [];
  let total = 0;
  for (const record of records) {
    starts.push(total);
    total += LENGTHS[record[0]](record);
  }
  return (place) => READERS[records[place][0]](bytes.subarray(starts[place]), records[place]);
}

const LENGTHS = {
  float32: ([, count]) => 4 * count,
  float16: ([, count]) => 2 * count,
  fixed: ([, count, rows, bits]) => 4 * rows + count + Math.ceil((count * Math.max(0, bits - 8)) / 8),
};

const READERS = {
  float32: (bytes, [, count]) => floats(bytes, count),
  float16: (bytes, [, count]) => {
    const numbers = new Float32Array(count);
    for (let i = 0; i < count; i++) numbers[i] = halfToNumber((bytes[i] << 8) | bytes[count + i]);
    return numbers;
  },
  fixed: (bytes, [, count, rows, bits]) => {
    const scale = floats(bytes, rows), numbers = new Float32Array(count), length = count / rows;
    const more = Math.max(0, bits - 8), low = 4 * rows + count;
    for (let i = 0, bit = 0; i < count; i++, bit += more) {
      let value = (bytes[4 * rows + i] << 24) >> 24;
      if (more) {
        const at = low + (bit >> 3), three = (bytes[at] << 16) | ((bytes[at + 1] ?? 0) << 8) | (bytes[at + 2] ?? 0);
        value = (value << more) | ((three >> (24 - more - (bit & 7))) & ((1 << more) - 1));
      }
      numbers[i] = value * scale[Math.floor(i / length)];
    }
    return numbers;
  },
};

function floats(bytes, count) {
  return new Float32Array(bytes.slice(0, 4 * count).buffer);
}

function halfToNumber(half) {
  const sign = half & 0x8000 ? -1 : 1, exponent = (half >> 10) & 31, fraction = half & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
