// A slider or buttons for each latent, with what it knows and what it does at its ends.

import { formatNumber, make, makeButton } from "./dom.js";
import { imageStrip, show } from "./paint.js";
import { withLatent } from "./model.js";

/** Nats below which a latent counts as unused. */
export const QUIET = 0.05;

/** Share of a factor's entropy from which on a latent is said to know it. */
const KNOWS = 0.1;

/** What a latent knows, in words: factors with the share of their entropy. */
export function knowledge(latent, factors) {
  return latent.information
    .map((share, k) => ({ share, chance: latent.chance[k], name: factors[k].name }))
    .filter(({ share }) => share >= KNOWS)
    .sort((a, b) => b.share - a.share)
    .slice(0, 3);
}

/** @returns element, and `update(state)`, `paintEnds(number of latent, first, last)`, of use only if there are pictures */
export function makeLatents(run, store, pictured) {
  const most = Math.max(...run.latents.map((latent) => latent.nats), 1e-9);
  const rows = run.latents.map((latent, i) => makeLatent(run, latent, i, most, store, pictured));
  const active = rows.filter((_, i) => run.latents[i].nats >= QUIET || i < 2);
  const quiet = rows.filter((row) => !active.includes(row));
  const element = make("div.latents", {}, make("ul", {}, ...active.map((row) => row.element)));
  if (quiet.length) {
    const summary = make("summary", { text: `${quiet.length} unused ${quiet.length === 1 ? "latent" : "latents"}` });
    element.append(make("details", {}, summary, make("ul", {}, ...quiet.map((row) => row.element))));
  }
  return {
    element,
    update: (state) => rows.forEach((row) => row.update(state.code)),
    paintEnds: (i, values, count, shape) => rows[i].paintEnds(values, count, shape),
  };
}

function makeLatent(run, latent, i, most, store, pictured) {
  const change = (value) => store.set({ code: withLatent(store.state.code, latent, value) }, `latent ${i}`);
  const control = latent.values ? makeButtons(latent, change) : makeSlider(latent, change);
  const known = knowledge(latent, run.factors);
  const facts = known.map(({ name, share }) => `${name} ${Math.round(100 * share)}%`);
  const about = make("span.knows");
  known.forEach(({ name, share, chance }) => {
    const title = `knows ${Math.round(100 * share)}% of ${name}; chance: ${formatNumber(100 * chance, 1)}%`;
    about.append(make("span.chip", { style: { "--share": share.toFixed(3) }, title }, make("b", { text: name }), ` ${Math.round(100 * share)}%`));
  });
  const nats = make("span.nats", { title: "information that this latent holds, in nats" }, make("i", { style: { "--share": (Math.max(0, latent.nats) / most).toFixed(3) } }), make("small", { text: `${formatNumber(Math.max(0, latent.nats))} nats` }));
  const ends = [0, 1].map((side) => makeButton("", () => change(endOf(latent, side)), { class: "end", "aria-label": `set ${latent.name} to its ${side ? "upper" : "lower"} end` }));
  ends.forEach((button, side) => {
    if (pictured || latent.kind === "classes") return button.append(make("canvas"));
    button.classList.add("word");
    button.textContent = formatNumber(latent.values ? endOf(latent, side)[0] : endOf(latent, side), 1);
  });
  control.input.setAttribute("aria-label", [latent.name, ...(facts.length ? [`knows ${facts.join(", ")}`] : [])].join(", "));
  const head = make("div.head", {}, make("b.name", { text: latent.name }), about, nats);
  const line = make("div.line", {}, ends[0], control.element, ends[1]);
  return {
    element: make("li.latent", {}, head, line),
    update: (code) => control.update(latent.columns.map((column) => code[column])),
    paintEnds: (values, count, shape) => {
      const size = shape.reduce((a, b) => a * b, 1);
      ends.forEach((button, side) => show(button.firstChild, imageStrip(values.subarray(side ? (count - 1) * size : 0), 1, shape)));
    },
  };
}

function endOf(latent, side) {
  if (latent.values) return latent.values.at(side ? -1 : 0);
  return side ? latent.high : latent.low;
}

function makeSlider(latent, change) {
  const input = make("input", { type: "range", min: latent.low, max: latent.high, step: (latent.high - latent.low) / 200 });
  const output = make("output");
  input.addEventListener("input", () => {
    change(Number(input.value));
  });
  const update = ([value]) => {
    if (Number(input.value) !== value) input.value = value;
    output.textContent = formatNumber(value);
    input.setAttribute("aria-valuetext", formatNumber(value));
    const share = (value - latent.low) / (latent.high - latent.low);
    input.style.setProperty("--share", Math.max(0, Math.min(1, share)).toFixed(3));
  };
  return { element: make("div.slider", {}, input, output), input, update };
}

function makeButtons(latent, change) {
  const group = make("div.buttons", { role: "group" });
  const buttons = latent.values.map((value, i) => {
    const text = latent.kind === "classes" ? String(i) : formatNumber(value[0]);
    return makeButton(text, () => change(value), { "aria-pressed": "false" });
  });
  group.append(...buttons);
  const update = (values) => {
    let nearest = 0, least = Infinity;
    latent.values.forEach((each, i) => {
      const distance = each.reduce((sum, v, k) => sum + (v - values[k]) ** 2, 0);
      if (distance < least) [nearest, least] = [i, distance];
    });
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === nearest && least < 0.5)));
  };
  return { element: group, input: group, update };
}
