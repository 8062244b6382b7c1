// Where the code comes from: a row of the data, or pictures of the reader's own; any modality may be left out.

import { make, makeButton } from "./dom.js";
import { makeView, imageStrip, show } from "./paint.js";
import { readPicture } from "./files.js";
import { sizeOfShape } from "./model.js";

const SHOWN_ROWS = 12;

/**
 * @param say shows a sentence to the reader
 * @returns element, what was `given` to the model, `update(state)`, and `takeFile(file)` for drops and pastes
 */
export function makeSource(model, rows, store, say) {
  const { run } = model, several = run.modalities.length > 1;
  const files = new Map();
  let first = 0;

  const observations = (source) =>
    run.modalities.map(({ shape }, m) => {
      const own = source.files?.[m] !== undefined ? files.get(source.files[m]) : null;
      if (own) return own;
      return source.row === undefined ? new Float32Array(sizeOfShape(shape)) : rows.observation(m, source.row);
    });
  const isRow = ({ row, present, files }) =>
    row !== undefined && files === undefined && rows.presence(row).every((there, m) => there === present[m]);
  const encode = (source, gesture) => {
    // codes of the data come with the page, as exact as they were computed
    const code = isRow(source) ? model.codeOfRow(source.row) : model.encode(observations(source), source.present);
    if (!code.every(Number.isFinite)) return say("The encoder makes no finite code of this picture.");
    store.set({ code, source }, gesture);
  };
  const takeRow = (row) => encode({ row, present: rows.presence(row) });
  const takeFile = async (file, modality = run.modalities.findIndex(({ kind }) => kind === "image")) => {
    if (!model.encoder || modality < 0) return say("This model encodes no pictures.");
    try {
      const values = await readPicture(file, run.modalities[modality].shape);
      const key = files.size;
      files.set(key, values);
      const before = several ? store.state.source : null;
      const present = run.modalities.map((_, m) => m === modality || Boolean(before?.files?.[m] !== undefined && before.present[m]));
      encode({ files: { ...before?.files, [modality]: key }, present });
      say(hint(model, values, modality, store.state.code));
    } catch (error) {
      say(error.message);
    }
  };

  const strip = make("div.thumbs");
  const fill = () => {
    strip.replaceChildren();
    for (let i = 0; i < Math.min(SHOWN_ROWS, rows.count); i++) strip.append(makeThumb(model, rows, (first + i) % rows.count, takeRow));
  };
  fill();
  const pick = make("input", { type: "file", accept: "image/*", hidden: true, on: { change: () => pick.files[0] && takeFile(pick.files[0]) } });
  const images = run.modalities.some(({ kind }) => kind === "image") && model.encoder;
  const actions = make("div.actions", {},
    makeButton(run.modalities.some(({ kind }) => kind === "image") ? "Other pictures" : "Other rows", () => { first = (first + SHOWN_ROWS) % rows.count; fill(); }),
    images ? makeButton("Your picture…", () => pick.click(), { title: "or drop or paste one anywhere on this page" }) : null, pick);
  const given = makeGiven(model, observations, encode, store);
  return { element: make("div.source", {}, strip, actions), given: given.element, update: given.update, takeFile };
}

/** How far a picture is from the data, in words: by what the model makes of it. */
function hint(model, values, modality, code) {
  const place = model.run.views.findLastIndex((view) => view.modality === model.run.modalities[modality].name);
  const made = model.decode(code)[place];
  const error = Math.sqrt(made.reduce((sum, value, i) => sum + (value - values[i]) ** 2, 0) / made.length);
  const [, most, nearlyAll] = model.run.distances[model.run.modalities[modality].name] ?? [0, Infinity, Infinity];
  const percent = (x) => `${(100 * x).toFixed(1)}%`;
  if (error <= most) return `Encoded. The model redraws it as well as its data (off by ${percent(error)}).`;
  if (error <= nearlyAll) return `Encoded. It is at the edge of the data: the model is off by ${percent(error)}, and by less than ${percent(most)} for nine in ten of its data.`;
  return `Encoded, but it is unlike the data: the model is off by ${percent(error)}, and by less than ${percent(nearlyAll)} for 99 in 100 of its data.`;
}

/** A small picture of a row, or a button with its number where there is no picture. */
export function makeThumb(model, rows, row, choose) {
  const modality = model.run.modalities.findIndex(({ kind }, m) => kind === "image" && rows.presence(row)[m]);
  const place = rows.place(row), label = `row ${place} of the data${describeRow(model, row)}`;
  const button = makeButton(modality < 0 ? String(place) : "", () => choose(row), { class: modality < 0 ? "thumb word" : "thumb", "aria-label": label, title: label });
  if (modality >= 0) {
    const canvas = make("canvas");
    show(canvas, imageStrip(rows.observation(modality, row), 1, model.run.modalities[modality].shape));
    button.append(canvas);
  }
  return button;
}

/** A row's factors in words. */
export function describeRow(model, row) {
  const { factors } = model.run;
  const facts = factors.map(({ name, values }, k) => {
    const value = model.factors[row * factors.length + k];
    return value < 0 ? null : `${name} ${values?.[value] ?? value}`;
  }).filter(Boolean);
  return facts.length ? `: ${facts.join(", ")}` : "";
}

/** The observations that were encoded, each with a box to leave it out where there are several. */
function makeGiven(model, observations, encode, store) {
  const { run } = model, several = run.modalities.length > 1;
  const views = run.modalities.map((modality) => makeView(modality, `the ${several ? modality.name : "observation"} that was encoded`));
  const boxes = run.modalities.map(({ name }, m) => make("input", {
    type: "checkbox", checked: true, "aria-label": `give ${name} to the model`,
    on: { change: () => toggle(m) },
  }));
  const toggle = (m) => {
    const { source } = store.state;
    const present = source.present.map((there, k) => (k === m ? boxes[m].checked : there));
    encode({ ...source, present });
  };
  const describe = ({ name, kind }, m) =>
    several ? make("label", {}, boxes[m], ` ${name}`) : `Encoded from this ${kind === "image" ? "picture" : "row"}`;
  const figures = views.map((view, m) => make("figure", {}, view.element,
    make("figcaption", {}, describe(run.modalities[m], m))));
  const note = make("p.soft", { text: "Untick one: the model completes it from the others." });
  const element = make("div.given", { hidden: true }, ...figures, several ? note : null);
  let drawn = null;
  const update = ({ source }) => {
    element.hidden = !source;
    if (!source || source === drawn) return;
    drawn = source;
    const values = observations(source);
    views.forEach((view, m) => view.paint(values[m]));
    source.present.forEach((there, m) => {
      boxes[m].checked = there;
      boxes[m].disabled = !model.encoder || (source.row === undefined && source.files?.[m] === undefined);
      figures[m].classList.toggle("absent", !there);
    });
  };
  return { element, update };
}
