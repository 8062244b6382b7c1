// Runs graphs outside of a browser. Each line of the input names a JSON file of graphs, weights and inputs; the outputs
// go beside it, and a line says so.
import { readFileSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [, , page] = process.argv;
const load = (name) => import(pathToFileURL(`${page}/${name}`).href);
const { Heap } = await load("heap.js");
const { Network } = await load("interpreter.js");
const { bytesOf, decompress } = await load("text.js");
const { readWeights } = await load("weights.js");

async function run({ graph, records, weights, modules, inputs, rows }) {
  const read = readWeights(records, await decompress(bytesOf(weights)));
  const heap = new Heap(modules.map(bytesOf));
  const network = new Network(graph, read, heap);
  const arrays = inputs.map((text) => new Float32Array(bytesOf(text).buffer));
  const outputs = network.run(arrays, rows);
  return outputs.map((array) => Buffer.from(array.buffer).toString("base64"));
}

for await (const file of createInterface({ input: process.stdin })) {
  const made = [];
  for (const one of JSON.parse(readFileSync(file, "utf8"))) made.push(await run(one));
  writeFileSync(`${file}.out`, JSON.stringify(made));
  console.log(file);
}
