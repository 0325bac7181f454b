/** The base model where the program behind the page computes: one of the models on its machine. */

import type { Base, NativeBase } from "../api/index";
import type { Session } from "../storage/session";
import { alertUser, words } from "./alert";
import { button, byId, el } from "./dom";
import { bytes } from "./format";
import { base, phase, trainer } from "./state";

type Use = (session: Session["base"], model: Base | null, name: string | undefined) => void;

/** The name of a model in the list: a file without its folders. */
const title = (model: string) => (model.endsWith(".gguf") ? model.replace(/^.*[\\/]/, "") : model);

/** Starts the section. `use` is called with the model that the user picks. */
export function nativeBases(use: Use) {
  const list = el("select", { id: "base-named" });
  const note = el("p", { class: "note", id: "base-named-note" });
  const again = button("Look again", () => void fill());
  for (const part of byId("base").children) (part as HTMLElement).hidden = true; // of the browser's engine
  const untrainable = el("ul", { class: "warnings", "aria-label": "Models that cannot be trained" });
  byId("base").append(el("label", { for: "base-named" }, "Base model"), list, note, again, untrainable);
  list.setAttribute("aria-describedby", "base-named-note");
  let wanted = "tiny";
  let models: NativeBase[] = [];

  const option = ({ model, bytes: size, trainable }: NativeBase) => {
    const about = [size === null ? "" : bytes(size), trainable ? "" : "cannot be trained"].filter(Boolean).join(", ");
    const one = el("option", { value: model }, `${title(model)}${about && ` (${about})`}`);
    one.disabled = !trainable;
    return one;
  };
  const tell = () => {
    const chosen = models.find(({ model }) => model === wanted);
    const folder = trainer.get()?.native?.folder;
    const place = `Models of Ollama, and .gguf files in ${folder}, are in the list.`;
    note.textContent = [chosen?.shape ?? chosen?.problem ?? "", place].filter(Boolean).join(". ");
  };
  const fill = async () => {
    try {
      models = (await trainer.get()?.native?.bases()) ?? [];
    } catch (error) {
      return alertUser(words(error));
    }
    list.replaceChildren(...models.map(option));
    untrainable.replaceChildren(...models.filter(({ trainable }) => !trainable).map(({ model, problem }) => el("li", {}, `${title(model)}: ${problem ?? "it cannot be trained"}`)));
    const found = models.some(({ model, trainable }) => model === wanted && trainable);
    if (!found) alertUser(`The model ${title(wanted)} is no longer there; pick another one in the settings.`);
    list.value = found ? wanted : "";
    if (!found) base.set(null);
    tell();
  };
  const pick = (model: string) => {
    wanted = model;
    if (model === "tiny") use({ kind: "tiny" }, { kind: "tiny" }, "tiny");
    else use({ kind: "named", name: model }, { kind: "named", name: model }, model);
    tell();
  };
  list.addEventListener("change", () => pick(list.value));
  trainer.watch((opened) => opened && void fill());
  watchProgram();
  phase.watch((now) => (list.disabled = now !== "idle"));

  return {
    /** Restores the base of a session. */
    async restore(session: Session["base"]) {
      pick(session.kind === "named" ? session.name : "tiny");
    },
  };
}

/** Milliseconds between looks at whether the program is still there. A run notices by itself. */
const LOOK = 10_000;

function watchProgram(): void {
  const timer = setInterval(() => {
    if (phase.get() !== "idle" || document.hidden) return;
    trainer.get()?.native?.ping().catch((error: unknown) => {
      clearInterval(timer);
      byId("device").textContent = "The program has ended";
      trainer.set(null);
      alertUser(words(error));
    });
  }, LOOK);
}
