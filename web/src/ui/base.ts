/** The base model: the included one, an offered one, a file on this machine, or one at a URL. Downloads stay in the browser's storage. */

import { forgetBase, storedBase, storedBases, type StoredBase } from "../storage/bases";
import { isNative } from "../api/engine";
import { keepHandle, keptHandle } from "../storage/handles";
import type { Session } from "../storage/session";
import { alertUser, words } from "./alert";
import { setName } from "./automatic";
import { baseProblems } from "./base-problem";
import { OFFERS, whyNot, type Offer } from "./catalog";
import { button, byId, choice, el } from "./dom";
import { downloads } from "./download";
import { bytes } from "./format";
import { nativeBases } from "./native-base";
import { confirmed } from "./question";
import { base, phase, trainer } from "./state";
import { quote } from "./toml";

const HANDLE = "base";

/** The base for the session storage. */
export let baseSession: Session["base"] = { kind: "tiny" };

type Opener = (options: object) => Promise<FileSystemFileHandle[]>;
type Permitted = FileSystemFileHandle & Record<"queryPermission" | "requestPermission", undefined | (() => Promise<string>)>;

/** A page of Hugging Face about a file, as the URL of the file itself. */
const direct = (address: string) => address.replace(/^(https:\/\/(?:huggingface\.co|hf\.co)\/[^/]+\/[^/]+)\/blob\//, "$1/resolve/").replace(/\?download=true$/, "");

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
  if (isNative()) {
    baseProblems(null);
    return nativeBases(use);
  }
  const offers = offerRows((offer) => void fetchOffer(offer));
  const useFile = (picked: File, remembered: boolean) => {
    note.textContent = `${picked.name}, ${bytes(picked.size)}${remembered ? "" : "; after a reload you have to pick it again"}`;
    use({ kind: "file", name: picked.name }, { kind: "file", file: picked }, picked.name);
  };
  /** Uses a file that was dropped, or picked as samples. */
  const useAnyFile = (picked: File) => {
    kinds.pick("file");
    byId("base-download").hidden = true;
    useFile(picked, false);
  };
  baseProblems(useAnyFile);
  onDroppedBase(useAnyFile);

  const pick = async () => {
    try {
      const [handle] = await opener!({ types: [{ description: "GGUF", accept: { "application/octet-stream": [".gguf"] } }] });
      if (!handle) return;
      const remembered = await keepHandle(HANDLE, handle).then(() => true, () => false);
      useFile(await handle.getFile(), remembered);
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

  const kinds = choice<string>(byId("base"), "base", (kind) => {
    const picked = file.files?.[0];
    byId("base-download").hidden = kind === "tiny" || kind === "file";
    if (kind === "tiny") use({ kind }, { kind }, "tiny");
    else if (kind === "file" && picked) useFile(picked, false);
    else if (kind === "file") use(baseSession, null, undefined);
    else void useAddress(kind === "url" ? direct(url.value.trim()) : kind);
  });
  byId("base-pick").hidden = !opener;
  byId("base-file-box").hidden = Boolean(opener);
  byId("base-pick").addEventListener("click", () => void pick());
  file.addEventListener("change", () => file.files?.[0] && useFile(file.files[0], false));
  const useAddress = async (address: string) => {
    use({ kind: "url", url: address }, null, address);
    await download.show(address);
  };
  const download = downloads(
    (address, stored) => use({ kind: "url", url: address }, { kind: "file", file: stored }, address),
    () => void list(),
  );
  url.addEventListener("change", () => {
    url.value = direct(url.value.trim());
    void useAddress(url.value);
  });
  /** Picks the base at `address` in the list. */
  const show = (address: string) => {
    const offered = OFFERS.some((offer) => offer.url === address);
    kinds.pick(offered ? address : "url");
    byId("base-download").hidden = false;
    if (!offered) url.value = address;
  };
  const fetchOffer = async ({ url: address }: Offer) => {
    show(address);
    await useAddress(address);
    if (!(await storedBase(address))) await download.start(address);
  };

  const toTiny = () => {
    kinds.pick("tiny");
    byId("base-download").hidden = true;
    use({ kind: "tiny" }, { kind: "tiny" }, "tiny");
  };
  const list = async () => {
    const found = await storedBases();
    offers.mark(found);
    const remove = async (one: StoredBase) => {
      if (!(await confirmed(`Delete ${nameOf(one.url)} from this browser? It can be downloaded again.`, "Delete the model"))) return;
      download.cancel();
      await forgetBase(one.url);
      if (baseSession.kind === "url" && baseSession.url === one.url) toTiny();
      await list();
    };
    const reuse = (one: StoredBase) => {
      show(one.url);
      void useAddress(one.url);
    };
    showStored(found, reuse, (one) => void remove(one).catch((error: unknown) => alertUser(words(error))));
  };
  phase.watch(() => void list());

  return {
    /** Restores the base of a session. */
    async restore(session: Session["base"]) {
      baseSession = session;
      kinds.pick(session.kind);
      byId("base-download").hidden = session.kind !== "url";
      base.set(session.kind === "tiny" ? session : null);
      if (session.kind === "file") await reuse(session.name);
      if (session.kind === "url") {
        show(session.url);
        await download.show(session.url);
      }
      if (base.get() === null) byId<HTMLDetailsElement>("settings-details").open = true;
    },
  };
}

/** The last part of a URL. */
const nameOf = (url: string) => OFFERS.find((offer) => offer.url === url)?.name ?? (url.split("/").at(-1) || url);

/** The rows of offered bases. `fetch` is called with the one to download. */
function offerRows(fetch: (offer: Offer) => void) {
  const rows = OFFERS.map((offer, i) => {
    const radio = el("input", { type: "radio", name: "base", value: offer.url, "aria-describedby": `offer-${i}` });
    const about = el("small", { id: `offer-${i}` });
    const get = button("Get", () => fetch(offer), { "aria-label": `Get ${offer.name}` });
    const row = el("div", { class: "offer" }, el("label", {}, radio, el("span", {}, offer.name)), get, about);
    byId("base-offers").append(row);
    return { offer, radio, about, get, row };
  });
  let stored: StoredBase[] = [];
  const show = () => {
    const gpu = trainer.get()?.gpu;
    for (const { offer, radio, about, get, row } of rows) {
      const reason = gpu ? whyNot(offer, gpu) : "";
      const here = stored.find(({ url }) => url === offer.url);
      const whole = here !== undefined && here.done === here.of;
      about.textContent = `${whole ? `${bytes(offer.bytes)}, stored` : bytes(offer.bytes)} · ${offer.memory} of GPU memory · ${offer.licence} · ${offer.about}${reason && `. Not on this GPU: ${reason}`}`;
      row.classList.toggle("off", reason !== "");
      radio.disabled = reason !== "";
      get.hidden = whole || reason !== "";
      get.disabled = phase.get() !== "idle";
      get.textContent = here ? "Resume" : "Get";
    }
  };
  for (const cell of [trainer, phase]) cell.watch(show);
  return {
    /** Marks those that are stored. */
    mark(found: StoredBase[]) {
      stored = found;
      show();
    },
  };
}

/** The list of stored bases. */
function showStored(found: StoredBase[], use: (one: StoredBase) => void, remove: (one: StoredBase) => void): void {
  const place = byId("base-stored");
  place.hidden = found.length === 0;
  const free = phase.get() === "idle";
  const rows = found.map((one) => {
    const name = nameOf(one.url);
    const size = one.done === one.of ? bytes(one.of) : `${bytes(one.done)} of ${bytes(one.of)}`;
    const [take, drop] = [button("Use", () => use(one), { class: "quiet", "aria-label": `Use ${name}` }), button("Delete", () => remove(one), { class: "quiet", "aria-label": `Delete ${name}` })];
    for (const each of [take, drop]) each.disabled = !free;
    return el("li", { title: one.url }, el("span", {}, `${name}, ${size}`), take, drop);
  });
  const all = found.reduce((sum, { done }) => sum + done, 0);
  place.replaceChildren(el("h3", {}, `Stored in this browser: ${bytes(all)}`), el("ul", {}, ...rows));
}

/** Takes a dropped GGUF file for the base, before the samples take it. */
function onDroppedBase(use: (file: File) => void): void {
  const take = (event: DragEvent) => {
    const dropped = [...(event.dataTransfer?.files ?? [])];
    const model = dropped.find(({ name }) => /\.gguf$/i.test(name));
    if (!model || dropped.length > 1 || phase.get() !== "idle") return;
    event.preventDefault();
    event.stopImmediatePropagation();
    byId("data").classList.remove("target");
    use(model);
    byId<HTMLDetailsElement>("settings-details").open = true;
    byId("settings").scrollIntoView({ block: "nearest" });
  };
  addEventListener("drop", take, { capture: true });
}
