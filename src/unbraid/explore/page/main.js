// Opens the page: reads its data, prepares the networks, shows the run, or a table of runs and the one that is chosen.

import { showExplorer } from "./explorer.js";
import { Heap } from "./heap.js";
import { memberOfLink } from "./link.js";
import { Model } from "./model.js";
import { Rows } from "./rows.js";
import { makeSweep } from "./sweep.js";
import { bytesOf, bytesOfText, decompress } from "./text.js";
import { readWeights } from "./weights.js";

const SHOWN_FOR = 7000;

const byId = (id) => document.getElementById(id);

/** Return the function that shows a sentence for a while. */
function sayIn(element) {
  let timer = 0;
  return (sentence) => {
    element.textContent = sentence;
    element.classList.add("shown");
    clearTimeout(timer);
    timer = setTimeout(() => element.classList.remove("shown"), SHOWN_FOR);
  };
}

const readBlock = (id) => decompress(bytesOfText(byId(id).textContent));

/** Prepare the model of one run; `suffix` is that of its blocks in the page. */
async function openModel(run, records, modules, suffix) {
  const heap = new Heap(modules);
  const numbers = new Float32Array((await readBlock(`numbers${suffix}`)).buffer);
  const model = new Model(run, readWeights(records, await readBlock(`weights${suffix}`)), heap, numbers);
  return { model, rows: await Rows.read(model), kind: heap.kind };
}

async function openRun(data, say) {
  const { name, method, data: trainedOn } = data.run;
  showTitle(name || method, name ? `${method} on ${trainedOn}` : `on ${trainedOn}`);
  const { model, rows, kind } = await openModel(data.run, data.weights, data.modules.map(bytesOf), "");
  showExplorer(byId("explorer"), model, rows, say);
  document.documentElement.dataset.ready = kind;
}

async function openSweep(data, say) {
  showTitle(data.title, `${data.members.length} runs`);
  const modules = data.modules.map(bytesOf), place = document.createElement("div");
  const observed = data.members[0].run.rows.observed;
  for (const { run } of data.members) run.rows.observed ??= observed;
  let close = () => {};
  const open = async (member) => {
    const { run, weights } = data.members[member];
    const { model, rows, kind } = await openModel(run, weights, modules, `-${member}`);
    close();
    close = showExplorer(place, model, rows, say, { member }).close;
    sweep.mark(member);
    document.documentElement.dataset.ready = kind;
    document.documentElement.dataset.member = String(member);
  };
  const sweep = makeSweep(data, async (member) => {
    await open(member);
    say(`${data.members[member].name} is below.`);
    place.scrollIntoView({ block: "start" });
  });
  byId("explorer").replaceChildren(sweep.element, place);
  await open(memberOfLink(location.hash, data.members.length) ?? 0);
}

function showTitle(title, subtitle) {
  byId("title").textContent = title;
  byId("subtitle").textContent = subtitle;
}

async function openPage() {
  const data = JSON.parse(byId("data").textContent), say = sayIn(byId("message"));
  byId("precision").textContent = `Precision of the weights: ${data.precision}.`;
  await (data.kind === "sweep" ? openSweep : openRun)(data, say);
}

openPage().catch((error) => {
  byId("explorer").replaceChildren();
  byId("message").textContent = `This page could not be opened: ${error.message}`;
  byId("message").classList.add("shown");
});
