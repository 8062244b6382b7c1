// Between two pictures A and B: the way from one to the other, and parts of the code swapped.

import { make, makeButton } from "./dom.js";
import { imageStrip, makeView, show } from "./paint.js";
import { makeThumb } from "./source.js";
import { sizeOfShape } from "./model.js";
import { QUIET } from "./latents.js";

const STEPS = 9;

/** Parts of a code that can be swapped: its blocks, or its active latents where there is only one block. */
function partsOf(run) {
  if (run.blocks.length > 1) return run.blocks;
  return run.latents.filter((latent, i) => latent.nats >= QUIET || i < 2).slice(0, 12);
}

export function makeMix(model, rows, store, background, view) {
  const { run } = model, parts = partsOf(run);
  const ends = ["a", "b"].map((key) => makeEnd(model, rows, store, key));
  const strip = make("canvas.strip", { role: "img", "aria-label": "pictures on the way from A to B", tabindex: 0 });
  const way = make("input", { type: "range", min: 0, max: 1, step: 0.01, value: 0, "aria-label": "from A to B" });
  const codesOf = (state) => ["a", "b"].map((key) => model.codeOfRow(state[key]));
  const between = (t) => {
    const [a, b] = codesOf(store.state);
    return a.map((value, i) => (1 - t) * value + t * b[i]);
  };
  way.addEventListener("input", () => store.set({ code: between(Number(way.value)) }, "way"));
  strip.addEventListener("click", (event) => {
    const step = Math.min(STEPS - 1, Math.floor((event.offsetX / strip.clientWidth) * STEPS));
    store.set({ code: between(step / (STEPS - 1)) });
  });

  const swapped = parts.map((_, i) => i === 0);
  const results = ["A with B's", "B with A's"].map((title, side) => makeResult(model, view, title, () => store.set({ code: swap(side) })));
  const swap = (side) => {
    const pair = codesOf(store.state);
    const code = [...pair[side]];
    parts.forEach((part, i) => swapped[i] && part.columns.forEach((column) => (code[column] = pair[1 - side][column])));
    return code;
  };
  const boxes = parts.map((part, i) => {
    const box = make("input", { type: "checkbox", on: { change: () => { swapped[i] = box.checked; refresh(); } } });
    box.checked = swapped[i];
    return make("label", {}, box, ` ${part.name}`);
  });
  const refresh = () => background.ask("mix", () => {
    const codes = new Float32Array((STEPS + 2) * model.width);
    for (let k = 0; k < STEPS; k++) codes.set(between(k / (STEPS - 1)), k * model.width);
    for (const side of [0, 1]) codes.set(swap(side), (STEPS + side) * model.width);
    const values = model.decode(codes, STEPS + 2)[view.place], size = sizeOfShape(view.shape);
    if (view.modality.kind === "image") show(strip, imageStrip(values, STEPS, view.shape));
    const names = parts.filter((_, i) => swapped[i]).map(({ name }) => name).join(", ") || "nothing";
    results.forEach((result, side) => result.paint(values.slice((STEPS + side) * size, (STEPS + side + 1) * size), names));
    return false;
  });
  const element = make("div.mix", {},
    make("div.pair", {}, ends[0].element, make("div.way", {}, view.modality.kind === "image" ? strip : null, way), ends[1].element),
    make("fieldset.swap", {}, make("legend", { text: "Swap" }), make("div.parts", {}, ...boxes), make("div.results", {}, ...results.map(({ element }) => element))));
  let seen = null;
  const update = (state) => {
    const key = `${state.a} ${state.b}`;
    if (key === seen) return;
    seen = key;
    ends.forEach((end) => end.update(state));
    refresh();
  };
  return { element, update };
}

function makeEnd(model, rows, store, key) {
  const holder = make("div");
  const other = makeButton("Another", () => store.set({ [key]: Math.floor(Math.random() * rows.count) }), { "aria-label": `another picture ${key.toUpperCase()}` });
  const element = make("figure.end-picture", {}, holder, make("figcaption", {}, make("b", { text: key.toUpperCase() }), other));
  const update = (state) => holder.replaceChildren(makeThumb(model, rows, state[key], (row) => store.set({ code: model.codeOfRow(row), source: null })));
  return { element, update };
}

function makeResult(model, view, title, choose) {
  const made = makeView(view.modality, title);
  const caption = make("figcaption");
  const button = makeButton("", choose, { class: "thumb", "aria-label": `take the code of ${title}` });
  button.append(made.element);
  return {
    element: make("figure", {}, button, caption),
    paint: (values, names) => {
      made.paint(values);
      caption.textContent = `${title} ${names}`;
    },
  };
}
