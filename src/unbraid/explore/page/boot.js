// Starts the page: unpacks its script, which is stored compressed, and runs it. The policy knows the hash of what comes out.

import { bytesOfText, decompress } from "./text.js";

async function boot() {
  const element = document.createElement("script");
  element.type = "module";
  element.textContent = new TextDecoder().decode(await decompress(bytesOfText(document.getElementById("script").textContent)));
  document.body.append(element);
}

boot().catch((error) => {
  document.getElementById("explorer").textContent = `This page could not be opened: ${error.message}`;
});
