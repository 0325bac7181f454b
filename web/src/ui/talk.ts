/** The chat section: a conversation with the base, and next to it one with the adapter. */

import { DeviceLost, type FileEntry, type Message } from "../api/index";
import { alertUser, words } from "./alert";
import { reopenDevice } from "./device";
import { recordChat } from "./kept";
import { byId, el } from "./dom";
import { otherBase } from "./place";
import { adapter, base, checkpoint, phase, recipe, result, runRecipe, trainer } from "./state";

/** A question to both models. */
interface Turn {
  /** Ends the reply in progress; that of the base still follows that of the adapter. */
  stopped: boolean;
  /** Ends both replies. */
  over: boolean;
  /** The same for both replies, so that only the adapter makes a difference. */
  seed: number;
}

/** Stands in a reply that has not begun. */
const READING = "Reading the question ";

/** Longest reply, in tokens. */
const LONGEST = 1024;

/** One of the two conversations. */
class Column {
  messages: Message[] = [];
  readonly #log: HTMLElement;

  constructor(id: string) {
    this.#log = byId(id);
  }

  reset(): void {
    this.messages = [];
    this.#log.replaceChildren();
  }

  /** Adds a message and returns the element with its text. */
  add(role: "user" | "assistant", text: string): HTMLElement {
    const who = el("span", { class: "hidden-text" }, role === "user" ? "You: " : "Reply: ");
    const words = el("span", {}, text);
    this.#log.append(el("p", { class: role }, who, words));
    this.#log.scrollTop = this.#log.scrollHeight;
    return words;
  }

  /** Sends a message and shows the reply piece by piece. Screen readers announce the complete reply. */
  async ask(text: string, files: FileEntry[] | null, turn: Turn): Promise<void> {
    const messages = this.messages; // a new conversation replaces them while the reply arrives
    turn.stopped = false;
    messages.push({ role: "user", content: text });
    this.add("user", text);
    const place = this.add("assistant", "");
    place.parentElement!.classList.add("waiting");
    this.#log.setAttribute("aria-busy", "true");
    const silence = el("span", { class: "note" }, READING);
    place.after(silence);
    const loading = (layers: number, of: number) => {
      silence.textContent = layers < of ? `Loading the model: layer ${layers} of ${of} ` : READING;
    };
    const what = { base: base.get()!, messages, seed: turn.seed, max_new_tokens: LONGEST, loading, ...(files && { adapter: files }) };
    try {
      for await (const piece of trainer.get()!.chat(what)) {
        silence.remove();
        if (turn.stopped || turn.over) break;
        place.textContent += piece;
        this.#log.scrollTop = this.#log.scrollHeight;
      }
      messages.push({ role: "assistant", content: place.textContent ?? "" });
    } catch (error) {
      messages.pop();
      throw error;
    } finally {
      silence.remove();
      place.parentElement!.classList.remove("waiting");
      this.#log.setAttribute("aria-busy", "false");
    }
  }
}

/** Starts the section. */
export function talkSection(): void {
  const plain = new Column("base-log");
  const adapted = new Column("adapter-log");
  const input = byId<HTMLTextAreaElement>("talk-input");
  const send = byId<HTMLButtonElement>("talk-send");
  const stop = byId<HTMLButtonElement>("talk-stop");
  let turn: Turn | null = null;

  /** Whether a question would stop the run, which is saved. */
  const stops = () => phase.get() === "paused" && checkpoint.get() !== null && !checkpoint.get()!.unsaved;
  const ready = () => turn === null && trainer.get() !== null && base.get() !== null && (phase.get() === "idle" || stops());
  const show = () => {
    send.disabled = !ready();
    const stopping = document.activeElement === stop;
    stop.hidden = turn === null;
    byId("talk-reset").hidden = byId("talk-logs").hidden;
    if (stopping && stop.hidden) input.focus();
    const saved = adapter();
    byId("adapter-column").hidden = saved === null;
    byId("base-log-title").textContent = saved ? "Before" : "The base model";
    byId("talk-logs").classList.toggle("single", saved === null);
    byId("talk-note").textContent = stops()
      ? `A question stops the run, which is saved at step ${saved?.step}. Continue it afterwards.`
      : phase.get() !== "idle"
      ? "Training uses the GPU. Pause or stop it to chat, and continue afterwards."
      : saved
        ? `The adapter of step ${saved.step} replies, and then the base model.${otherBase()}`
        : "There is no adapter yet; only the base model replies.";
  };
  for (const cell of [trainer, base, phase, checkpoint, result, recipe, runRecipe]) cell.watch(show);

  /** Stops the paused run. */
  const stopped = () => {
    byId("stop").click();
    return phase.until("idle");
  };
  const ask = async () => {
    const text = input.value.trim();
    if (text === "" || !ready()) return;
    input.value = "";
    byId("talk-logs").hidden = false;
    const mine: Turn = { stopped: false, over: false, seed: Math.floor(Math.random() * 2 ** 31) };
    turn = mine;
    show();
    try {
      if (stops()) await stopped();
      const saved = adapter();
      const run = result.get()?.id; // another one may be shown once it has answered
      if (saved) await adapted.ask(text, saved.files, mine);
      if (!mine.over) await plain.ask(text, null, mine);
      // The first question of a conversation can be compared.
      if (saved && !mine.over && !mine.stopped && adapted.messages.length === 2) {
        await recordChat(run, text, plain.messages.at(-1)!.content, adapted.messages.at(-1)!.content);
      }
    } catch (error) {
      if (error instanceof DeviceLost) await reopenDevice();
      alertUser(words(error));
    } finally {
      turn = null;
      show();
    }
  };

  byId("talk-form").addEventListener("submit", (event) => {
    event.preventDefault();
    void ask();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    void ask();
  });
  stop.addEventListener("click", () => {
    if (turn) turn.stopped = true;
  });
  byId("talk-reset").addEventListener("click", () => {
    if (turn) turn.over = true;
    plain.reset();
    adapted.reset();
    byId("talk-logs").hidden = true;
    show();
    input.focus();
  });
}
