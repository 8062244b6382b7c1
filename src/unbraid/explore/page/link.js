// The state in the address behind "#", so that a link shows a colleague the same picture.

/** @returns {string} the fragment of a state */
export function writeLink(state) {
  const parts = new URLSearchParams();
  if (state.member !== undefined) parts.set("member", state.member);
  parts.set("code", state.code.map((value) => Number(value.toPrecision(5))).join(","));
  for (const key of ["a", "b"]) if (Number.isInteger(state[key])) parts.set(key, state[key]);
  return `#${parts}`;
}

/**
 * Read a fragment.
 * @returns {{change?: object, problem?: string}} what of the state it sets, or a sentence that says why it cannot be used
 */
export function readLink(fragment, width, rows) {
  const parts = new URLSearchParams(fragment.replace(/^#/, ""));
  if (!parts.has("code")) return {};
  const code = parts.get("code").split(",").map((text) => (text.trim() === "" ? NaN : Number(text)));
  if (code.length !== width) return { problem: `The link holds ${code.length} numbers, and this model's code has ${width}; the link was left out.` };
  if (!code.every(Number.isFinite)) return { problem: "The link holds something that is no number; it was left out." };
  const change = { code: code.map((value) => Math.max(-1e6, Math.min(1e6, value))) };
  for (const key of ["a", "b"]) {
    const row = Number(parts.get(key) ?? NaN);
    if (Number.isInteger(row) && row >= 0 && row < rows) change[key] = row;
  }
  return { change };
}

/** @returns {number|null} the member of a sweep that a fragment names */
export function memberOfLink(fragment, count) {
  const text = new URLSearchParams(fragment.replace(/^#/, "")).get("member");
  const member = text === null ? NaN : Number(text);
  return Number.isInteger(member) && member >= 0 && member < count ? member : null;
}
