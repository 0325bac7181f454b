/** The section for picking the samples. */

import type { Data, Samples } from "../api/index";
import { loadSamples, saveSamples, type Session } from "../storage/session";
import { alertUser, words } from "./alert";
import { adopt, isAutomatic, setName, takeAsMade } from "./automatic";
import { bothOf, columnsOf, fieldsOf, showReading, type Picked } from "./columns";
import { guessColumns } from "./cells";
import { button, byId, choice, el } from "./dom";
import { bytes } from "./format";
import { readFiles, rowsOf } from "./files";
import { EXPECTED, expects, learnChoice, namesOf, withReward, type Learning } from "./learn";
import { understand, type Understood } from "./pasted";
import { MOST_ROWS, linesOf, rowsIn, sheet, type Answers, type Row } from "./sheet";
import { base, data, phase, recipe, table } from "./state";
import { TASKS, samples } from "./tasks";
import { samplesTable } from "./samples";
import { applied } from "./share";
import { getValue, quote, quoteList, setValue } from "./toml";

type Kind = Session["data"]["kind"];

/** Largest file of samples: they are read as a whole, and the worker holds them more than once. */
const MOST_BYTES = 512 * 2 ** 20;

/** The samples for the session storage. Files are stored separately. */
export let dataSession: Session["data"] = { kind: "task", task: "chat" };

let own: Data = [];

/** Settings of a link, until the recipe for its samples is there. */
let waiting: [string, string][] = [];
export const pending = () => waiting;

/** The page's own recipe for base and samples; null while the samples are not read. */
export function ownRecipe(): string | null {
  const found = table.get();
  return found && !(found instanceof Error) ? proposed(found) : null;
}

/** The picked files as they were given. */
export const given = (): Data => own;

/** The value of `data.fields` for columns that the user or the page has picked; null for none. */
let fields: string | null = null;

/** The reward that own samples are learnt from; null to imitate their answers. */
let learning: Learning | null = null;
/** The column with the expected answers of the samples in use. */
let expected = EXPECTED;

/** The part of a session that says it. */
const learnt = () => (learning === null ? {} : { learn: learning });

/** A recipe for reading the samples: the current one, but for own samples none that the page itself made for others. */
export function readingRecipe(): string {
  const now = recipe.get();
  if (!isAutomatic() || dataSession.kind === "task") return now;
  const names = data.get().map(({ name }) => name);
  // Without all that a recipe must have, the engine would read the samples with another one.
  const empty = `[model]\nbase = ${getValue(now, "model", "base") ?? '"tiny"'}\n\n[data]\ntrain = ${quoteList(names)}\n\n[output]\ndir = "runs/mine"\n`;
  const fitting = withFields(empty);
  return learning === null ? fitting : withReward(fitting, learning, expected);
}

const withFields = (text: string) => (fields === null ? text : setValue(text, "data", "fields", fields));

/** Uses pasted text that was typed just now. */
export let useTyped = (): void => {};

/** The page's recipe for these samples: the example's own for the tiny base, or else the engine's proposal. */
function proposed(found: Samples): string {
  const own = dataSession.kind === "task" && base.get()?.kind === "tiny" ? TASKS[dataSession.task]?.recipe : undefined;
  return own ?? withFields(found.recipe);
}

/** Largest file whose names of columns are offered. */
const MOST_NAMED = 16 * 2 ** 20;

/** What the answers of a sheet are for. */
const answersFor = (learning: Learning | null): Answers => (learning === null ? "completion" : expects(learning) ? "expected" : "none");

/** The value of `data.fields` where only the prompt is read by name; null if it has the usual one. */
const promptField = ([question]: [string, string]) => (question === "prompt" ? null : `{ prompt = ${quote(question)} }`);

/** The column of records with what is expected: the one that the user has picked, or the likeliest. */
const expectedIn = (names: string[], picked: string | undefined): string =>
  picked !== undefined && names.includes(picked) ? picked : names.length === 0 || names.includes(EXPECTED) ? EXPECTED : names[guessColumns(names)[1]]!;

/** Conversations of one turn as prompts with an expected answer; other samples as they are. */
function asPrompts(given: Data, found: Understood | null): Data {
  const pairs = found?.reading === "conversation" ? rowsIn(found.text) : null;
  return pairs ? given.map(({ name }) => ({ name, file: new Blob([linesOf(pairs, "expected").text]) })) : given;
}

/** Starts the section. `changed` is called when the user picks samples. */
export function dataSection(changed: () => void) {
  const select = byId<HTMLSelectElement>("data-task");
  const files = byId<HTMLInputElement>("data-files");
  const pasted = byId<HTMLTextAreaElement>("data-pasted");
  for (const [name, task] of Object.entries(TASKS)) select.append(el("option", { value: name }, task.title));

  /** Uses these samples and sets their names in the recipe. `found`: how their text was read; `names`: those of the columns of records. */
  const use = (given: Data, found: Understood | null = null, again: (said: Picked) => void = () => {}, names: string[] = []) => {
    const picked = learning === null ? given : asPrompts(given, found);
    const large = picked.find(({ file }) => file.size > MOST_BYTES);
    if (large) {
      alertUser(`${large.name} has ${bytes(large.file.size)}, but a browser reads samples of up to ${bytes(MOST_BYTES)}; take a part of it, or train with the program.`);
      return;
    }
    const files = picked.map((file) => file.name);
    if (files.length > 0) setName("data", "train", files.length === 1 ? quote(files[0]!) : quoteList(files));
    const said = ("picked" in dataSession && dataSession.picked) || {};
    const columns = found && (learning === null ? columnsOf(found, said) : bothOf(found, said));
    const repair = (text: string) => {
      pasted.value = text;
      usePasted();
    };
    showReading(found, said, again, repair);
    const pairs = found && found.reading !== "text" && dataSession.kind === "pasted" ? rowsIn(pasted.value) : null;
    if (pairs && pairs.length > 0 && pairs.length <= MOST_ROWS) byId("reading").append(button("Edit in the sheet", () => toSheet(pairs)));
    fields = columns && (learning === null ? fieldsOf(columns) : promptField(columns));
    if (learning !== null) expected = columns?.[1] ?? expectedIn(names, learning.column);
    learn.show(dataSession.kind === "task" ? null : { learning, names: columns ? [] : names, column: dataSession.kind === "sheet" ? null : expected });
    if (fields !== null && !isAutomatic()) setName("data", "fields", fields);
    data.set(picked);
    changed();
  };

  /** Uses the samples again, after the user has said what they are learnt from. */
  const learn = learnChoice((chosen) => {
    const before = { learning, recipe: recipe.get(), own: !isAutomatic() };
    const anew = (one: Learning | null) => {
      learning = one;
      rows.answers(answersFor(learning));
      if (dataSession.kind === "sheet") useSheet(rows.rows());
      else if (dataSession.kind === "pasted") usePasted();
      else if (dataSession.kind === "files") void take(own, dataSession.picked ?? {});
    };
    takeAsMade(); // the proposal follows once the samples are read
    anew(chosen);
    if (!before.own) return;
    const undo = () => {
      anew(before.learning);
      recipe.set(before.recipe);
      changed();
    };
    alertUser("A recipe for this has replaced the one that you changed.", { text: "Use mine again", act: undo });
  });

  /** Replaces the recipe by the example's, for the picked base. The user's own changes can be taken back. */
  const useRecipe = (text: string) => {
    const before = recipe.get();
    const edited = before !== "" && !isAutomatic();
    const model = getValue(before, "model", "base");
    adopt(model === null ? text : setValue(text, "model", "base", model));
    if (!edited) return;
    const undo = () => {
      recipe.set(before);
      changed();
    };
    alertUser("The recipe of this task has replaced the one that you changed.", { text: "Use mine again", act: undo });
  };

  const useTask = async (name: string, withRecipe: boolean) => {
    const task = TASKS[name] ?? TASKS["chat"]!;
    dataSession = { kind: "task", task: name };
    try {
      const file = await samples(task);
      if (withRecipe) useRecipe(task.recipe);
      use([{ name: task.file, file }]);
    } catch (error) {
      alertUser(words(error));
    }
  };

  /** Reads files; `said`: what the user says about them. */
  const take = async (picked: Data, said: Picked): Promise<void> => {
    dataSession = { kind: "files", picked: said, ...learnt() };
    own = picked;
    const { data: read, found } = await readFiles(picked, said);
    const [first] = read;
    const names = learning !== null && first && /\.(jsonl|ndjson|json)$/i.test(first.name) && first.file.size <= MOST_NAMED ? namesOf(await first.file.text()) : [];
    use(read, found, (other) => void take(picked, other), names);
  };
  const useFiles = async (given?: File[], said: Picked = {}) => {
    dataSession = { kind: "files", ...learnt() };
    const picked = (given ?? [...(files.files ?? [])]).map((file) => ({ name: file.name, file }));
    if (picked.length === 0) return take(await loadSamples(), said); // the files of the last visit
    await take(picked, {});
    try {
      await saveSamples(picked);
    } catch (error) {
      alertUser(`The samples are used, but they could not be saved; pick them again after a reload: ${words(error)}.`);
    }
  };

  const usePasted = (said: Picked = ("picked" in dataSession && dataSession.picked) || {}) => {
    const text = pasted.value;
    dataSession = { kind: "pasted", text, picked: text.trim() ? said : {}, ...learnt() };
    const found = text.trim() ? understand(text, said) : null;
    const names = found?.reading === "json" ? namesOf(found.text) : [];
    use(found ? [{ name: found.name, file: new Blob([found.text]) }] : [], found, usePasted, names);
  };

  let rowsTyped = 0;
  const useSheet = (rows: Row[]) => {
    dataSession = { kind: "sheet", rows: rows.filter((row) => row.some((text) => text !== "")), ...learnt() };
    const { text, count: filled } = linesOf(rows, answersFor(learning));
    use(filled > 0 ? [{ name: "sheet.jsonl", file: new Blob([text]) }] : []);
  };
  const rows = sheet(byId("sheet"), () => {
    clearTimeout(rowsTyped);
    rowsTyped = window.setTimeout(() => {
      rowsTyped = 0;
      useSheet(rows.rows());
    }, 400);
  });
  /** Moves pairs of a text into the sheet. */
  const toSheet = (found: Row[]) => {
    kinds.pick("sheet");
    rows.set(found);
    useSheet(found);
    byId("sheet").querySelector("textarea")?.focus();
  };
  phase.watch((now) => {
    rows.disable(now !== "idle");
    learn.disable(now !== "idle");
  });

  /** The example whose recipe was used last. */
  let last = "";
  const pickTask = () => {
    const other = select.value !== last || isAutomatic();
    last = select.value;
    void useTask(select.value, other);
  };
  const kinds = choice<Kind>(byId("data"), "data", (kind) => {
    if (kind === "task") pickTask();
    else if (kind === "files") void useFiles();
    else if (kind === "sheet") useSheet(rows.rows());
    else usePasted({});
  });
  select.addEventListener("change", pickTask);
  files.addEventListener("change", () => void useFiles());
  let typing = 0;
  const typed = () => {
    typing = 0;
    usePasted();
  };
  pasted.addEventListener("input", () => {
    clearTimeout(typing);
    typing = window.setTimeout(typed, 400);
  });
  useTyped = () => {
    if (rowsTyped !== 0) {
      clearTimeout(rowsTyped);
      rowsTyped = 0;
      if (dataSession.kind === "sheet") useSheet(rows.rows());
    }
    if (typing === 0) return;
    clearTimeout(typing);
    typed();
  };

  // A file that is dropped would otherwise replace the page.
  const section = byId("data");
  addEventListener("dragover", (event) => {
    event.preventDefault();
    section.classList.add("target");
  });
  addEventListener("dragleave", () => section.classList.remove("target"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    section.classList.remove("target");
    const dropped = [...(event.dataTransfer?.files ?? [])];
    if (dropped.length === 0 || files.disabled) return;
    files.value = "";
    void rowsOf(dropped).then((found) => {
      if (dataSession.kind === "sheet" && found && rows.rows().length + found.length <= MOST_ROWS) return rows.add(found);
      kinds.pick("files");
      void useFiles(dropped);
    });
  });

  data.watch((picked) => {
    const items = picked.map(({ name, file }) => el("li", {}, `${name}, ${bytes(file.size)}`));
    byId("data-list").replaceChildren(...items);
  });

  const fit = (found: Samples | null) => {
    if (found === null) takeAsMade(); // the proposal follows once the samples are read without the recipe
    else adopt(proposed(found));
    changed();
  };
  samplesTable(fit);
  table.watch((found) => {
    if (!found || found instanceof Error || !isAutomatic()) return;
    if (recipe.get() !== proposed(found)) fit(found);
    if (waiting.length === 0) return;
    const mine = waiting;
    waiting = [];
    recipe.set(applied(recipe.get(), mine));
    changed();
  });

  const setLearning = (one: Learning | null) => {
    learning = one;
    rows.answers(answersFor(one));
  };

  return {
    /** Restores the samples of a session. Does not change the recipe. */
    async restore(session: Session["data"], settings: [string, string][] = []) {
      waiting = settings;
      dataSession = session;
      setLearning(session.kind === "task" ? null : (session.learn ?? null));
      kinds.pick(session.kind);
      if (session.kind === "task") {
        select.value = last = session.task;
        await useTask(session.task, false);
      } else if (session.kind === "sheet") {
        rows.set(session.rows);
        useSheet(session.rows);
      } else if (session.kind === "pasted") {
        pasted.value = session.text;
        usePasted(session.picked ?? {});
      } else {
        await useFiles(undefined, session.picked);
      }
    },
    /** The samples for a first visit. */
    async begin() {
      takeAsMade();
      last = "chat";
      await useTask("chat", true);
    },
    /** Uses an example of a link, with its settings. */
    async example(name: string, settings: [string, string][]) {
      if (!(name in TASKS)) throw new Error(`This link names the example “${name}”, which this page does not have.`);
      kinds.pick("task");
      select.value = last = name;
      takeAsMade();
      waiting = settings;
      await useTask(name, true);
    },
    /** Uses samples of a link, with its settings. */
    usePastedText(text: string, said: Picked = {}, settings: [string, string][] = [], learn: Learning | null = null) {
      takeAsMade();
      setLearning(learn);
      waiting = settings;
      kinds.pick("pasted");
      pasted.value = text;
      usePasted(said);
    },
  };
}
