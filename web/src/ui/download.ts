/** The download of a base: progress, cancel, and a way on after a lost connection. */

import { downloadBase, storedBase, storedBytes } from "../storage/bases";
import { announce, words } from "./alert";
import { button, byId, el } from "./dom";
import { bytes, percent } from "./format";

/** Milliseconds before a lost connection is tried again. */
const WAITS = [1000, 3000, 10_000];

/** Starts it. `ready` gets the stored file; `changed` is called when the storage has changed. */
export function downloads(ready: (url: string, stored: File) => void, changed: () => void) {
  const place = byId("base-download");
  let running: AbortController | null = null;

  const show = async (url: string, problem = ""): Promise<void> => {
    running?.abort();
    running = null;
    const error = problem === "" ? [] : [el("p", { class: "error" }, problem)];
    if (!URL.canParse(url)) return place.replaceChildren(...(url === "" ? [] : [el("p", { class: "error" }, "This is not a URL; it begins with https://")]));
    const stored = await storedBase(url);
    if (stored) {
      place.replaceChildren(el("p", { class: "note" }, `${bytes(stored.size)}, kept in this browser.`));
      return ready(url, stored);
    }
    const part = await storedBytes(url);
    const text = part ? `${bytes(part.done)} of ${bytes(part.of)} are here already.` : "The model is downloaded once and kept in this browser. No data is sent there.";
    place.replaceChildren(...error, el("p", { class: "note" }, text), button(part ? "Resume the download" : "Download it", () => void start(url)));
  };

  const start = async (url: string) => {
    const control = new AbortController();
    running?.abort();
    running = control;
    const bar = el("progress", { max: "1", value: "0", "aria-label": "Download" });
    const text = el("p", { class: "note" }, "Connecting …");
    place.replaceChildren(bar, text, button("Cancel the download", () => control.abort()));
    const progress = (done: number, of: number) => {
      [bar.max, bar.value] = [of, done];
      text.textContent = `${bytes(done)} of ${bytes(of)}, ${percent(done / of)}`;
    };
    let problem = "";
    for (let attempt = 0; ; attempt++) {
      try {
        await downloadBase(url, progress, control.signal);
        announce("Downloaded the model.");
        break;
      } catch (error) {
        if (control.signal.aborted) break;
        const lost = error instanceof TypeError; // of the network, once it had answered
        problem = lost ? "The connection was lost. What has arrived is kept: resume when you are online again." : words(error);
        if (!lost || attempt >= WAITS.length) break;
        text.textContent = "The connection was lost; trying again …";
        await new Promise((done) => setTimeout(done, WAITS[attempt]));
        if (control.signal.aborted) break;
        problem = "";
      }
    }
    changed();
    if (running !== control) return;
    if (problem !== "") announce(problem);
    await show(url, problem);
  };
  return { show, start, cancel: () => running?.abort() };
}
