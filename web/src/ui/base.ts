/** The base model: the included one, a file on this machine, or one that is downloaded into the browser's storage. */

import { downloadBase, storedBase, storedBytes } from "../storage/bases";
import { isNative } from "../api/engine";
import { keepHandle, keptHandle } from "../storage/handles";
import type { Session } from "../storage/session";
import { alertUser, announce, words } from "./alert";
import { setName } from "./automatic";
import { button, byId, choice, el } from "./dom";
import { bytes, percent } from "./format";
import { nativeBases } from "./native-base";
import { quote } from "./toml";
import { base } from "./state";

type Kind = "tiny" | "file" | "url";

const HANDLE = "base";

/** The base for the session storage. */
export let baseSession: Session["base"] = { kind: "tiny" };

type Opener = (options: object) => Promise<FileSystemFileHandle[]>;
type Permitted = FileSystemFileHandle & Record<"queryPermission" | "requestPermission", undefined | (() => Promise<string>)>;

/** Starts the section. `changed` is called when the user picks a base. */
export function baseSection(changed: () => void) {
  const file = byId<HTMLInputElement>("base-file");
  const url = byId<HTMLInputElement>("base-url");
  const note = byId("base-file-note");
  const opener = (globalThis as { showOpenFilePicker?: Opener }).showOpenFilePicker;

  const use = (session: Session["base"], model: ReturnType<typeof base.get>, name: string | undefined) => {
    baseSession = session;
    base.set(model);
    if (name) setName("model", "base", quote(name));
    changed();
  };
  if (isNative()) return nativeBases(use);
  const useFile = (picked: File, remembered: boolean) => {
    note.textContent = `${picked.name}, ${bytes(picked.size)}${remembered ? "" : "; after a reload you have to pick it again"}`;
    use({ kind: "file", name: picked.name }, { kind: "file", file: picked }, picked.name);
  };

  const pick = async () => {
    try {
      const [handle] = await opener!({ types: [{ description: "GGUF", accept: { "application/octet-stream": [".gguf"] } }] });
      if (!handle) return;
      await keepHandle(HANDLE, handle);
      useFile(await handle.getFile(), true);
    } catch (error) {
      if ((error as { name?: string }).name !== "AbortError") alertUser(words(error));
    }
  };

  /** Uses the file of the last visit again, as far as the browser allows it without a click. */
  const reuse = async (name: string) => {
    note.textContent = `Pick ${name} again: this browser forgets picked files on reload.`;
    const handle = (await keptHandle(HANDLE).catch(() => undefined)) as Permitted | undefined;
    if (handle?.name !== name) return;
    const open = async () => useFile(await handle.getFile(), true);
    if ((await handle.queryPermission?.()) === "granted") return open().catch((error: unknown) => alertUser(words(error)));
    const allow = async () => {
      if ((await handle.requestPermission?.()) === "granted") await open();
    };
    note.replaceChildren(button(`Use ${name} again`, () => void allow().catch((error: unknown) => alertUser(words(error)))));
  };

  const kinds = choice<Kind>(byId("base"), "base", (kind) => {
    const picked = file.files?.[0];
    if (kind === "tiny") use({ kind }, { kind }, "tiny");
    else if (kind === "file" && picked) useFile(picked, false);
    else if (kind === "file") use(baseSession, null, undefined);
    else void useUrl();
  });
  byId("base-pick").hidden = !opener;
  byId("base-file-box").hidden = Boolean(opener);
  byId("base-pick").addEventListener("click", () => void pick());
  file.addEventListener("change", () => file.files?.[0] && useFile(file.files[0], false));
  const useUrl = async () => {
    const address = url.value.trim();
    use({ kind: "url", url: address }, null, address);
    await download.show(address);
  };
  const download = downloads((address, stored) => use({ kind: "url", url: address }, { kind: "file", file: stored }, address));
  url.addEventListener("change", () => void useUrl());

  return {
    /** Restores the base of a session. */
    async restore(session: Session["base"]) {
      baseSession = session;
      kinds.pick(session.kind as Kind);
      base.set(session.kind === "tiny" ? session : null);
      if (session.kind === "file") await reuse(session.name);
      if (session.kind === "url") {
        url.value = session.url;
        await download.show(session.url);
      }
      if (base.get() === null) byId<HTMLDetailsElement>("settings-details").open = true;
    },
  };
}

/** The download of a base by URL. `ready` gets the stored file. */
function downloads(ready: (url: string, stored: File) => void) {
  const place = byId("base-download");
  let running: AbortController | null = null;

  const show = async (url: string): Promise<void> => {
    running?.abort();
    if (!URL.canParse(url)) return place.replaceChildren(...(url === "" ? [] : [el("p", { class: "error" }, "This is not a URL; it begins with https://")]));
    const stored = await storedBase(url);
    if (stored) {
      place.replaceChildren(el("p", { class: "note" }, `${bytes(stored.size)}, kept in this browser.`));
      return ready(url, stored);
    }
    const part = await storedBytes(url);
    const text = part ? `${bytes(part.done)} of ${bytes(part.of)} are here already.` : "The model is downloaded once and kept in this browser. No data is sent there.";
    place.replaceChildren(el("p", { class: "note" }, text), button(part ? "Resume the download" : "Download it", () => void start(url)));
  };

  const start = async (url: string) => {
    const control = new AbortController();
    running = control;
    const bar = el("progress", { max: "1", value: "0", "aria-label": "Download" });
    const text = el("p", { class: "note" }, "Connecting …");
    place.replaceChildren(bar, text, button("Cancel the download", () => control.abort()));
    try {
      const progress = (done: number, of: number) => {
        [bar.max, bar.value] = [of, done];
        text.textContent = `${bytes(done)} of ${bytes(of)}, ${percent(done / of)}`;
      };
      await downloadBase(url, progress, control.signal);
      announce("Downloaded the model.");
    } catch (error) {
      if (!control.signal.aborted) alertUser(words(error));
    }
    if (running === control) {
      running = null;
      await show(url);
    }
  };
  return { show };
}
