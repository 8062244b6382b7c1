// Opens the page: reads its data, prepares the networks, shows the run.

import { showExplorer } from "./explorer.js";
import { Heap } from "./heap.js";
import { Model } from "./model.js";
import { Rows } from "./rows.js";
import { bytesOf, decompress, readWeights } from "./weights.js";

const SHOWN_FOR = 7000;

function sayIn(element) {
  let timer = 0;
  return (sentence) => {
    element.textContent = sentence;
    element.classList.add("shown");
    clearTimeout(timer);
    timer = setTimeout(() => element.classList.remove("shown"), SHOWN_FOR);
  };
}

async function readBlock(id) {
  return decompress(bytesOf(document.getElementById(id).textContent));
}

async function open() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.getElementById("explorer"), say = sayIn(document.getElementById("message"));
  const heap = new Heap(data.modules.map(bytesOf));
  const numbers = new Float32Array((await readBlock("numbers")).buffer);
  const weights = readWeights(data.weights, await readBlock("weights"));
  document.getElementById("title").textContent = data.run.method;
  document.getElementById("subtitle").textContent = `on ${data.run.data}`;
  const model = new Model(data.run, weights, heap, numbers);
  showExplorer(root, model, await Rows.read(model), say);
  document.documentElement.dataset.ready = heap.kind;
}

open().catch((error) => {
  document.getElementById("message").textContent = `This page could not be opened: ${error.message}`;
  document.getElementById("message").classList.add("shown");
  throw error;
});
