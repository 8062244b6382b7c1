// Runs graphs outside of a browser: reads a JSON file of graphs, weights and inputs, writes the outputs beside it.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [, , page, file] = process.argv;
const load = (name) => import(pathToFileURL(`${page}/${name}`).href);
const { Heap } = await load("heap.js");
const { Network } = await load("interpreter.js");
const { bytesOf, decompress } = await load("text.js");
const { readWeights } = await load("weights.js");

const cases = JSON.parse(readFileSync(file, "utf8"));
const made = [];
for (const { graph, records, weights, modules, inputs, rows } of cases) {
  const read = readWeights(records, await decompress(bytesOf(weights)));
  const heap = new Heap(modules.map(bytesOf));
  const network = new Network(graph, read, heap);
  const arrays = inputs.map((text) => new Float32Array(bytesOf(text).buffer));
  const outputs = network.run(arrays, rows);
  const seconds = [];
  for (let i = 0; i < (process.env.REPEAT ?? 0); i++) {
    const start = process.cpuUsage().user;
    network.run(arrays, rows);
    seconds.push((process.cpuUsage().user - start) / 1e3);
  }
  if (seconds.length) console.error("ms", seconds.sort((a, b) => a - b)[seconds.length >> 1], "rows at once", network.rowsAtOnce);
  made.push({ kind: heap.kind, outputs: outputs.map((array) => Buffer.from(array.buffer).toString("base64")) });
}
writeFileSync(`${file}.out`, JSON.stringify(made));
