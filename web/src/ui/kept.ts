/** Kept runs: in the browser's storage and, with the program behind the page, those of its folder, whichever browser trained them. */

import type { FileEntry } from "../api/index";
import { filesOfRun, forgetKeptRun, keepRun, renameRun, type KeptRun } from "../storage/runs";
import { change, ranking, replay } from "./history";
import { exchanges } from "./hero";
import { alertUser, words } from "./alert";
import { runs, trainer } from "./state";
import { getValue } from "./toml";

/** A run of the program's folder: as the page described it, or only its name. */
export type FolderRun = Partial<KeptRun> & { id: string; modified: number; hidden?: boolean };

const native = () => trainer.get()?.native;

/** The id of a run that has just ended: the program's folder has its name. */
export const newId = (): string => native()?.lastRun() ?? crypto.randomUUID();

/** Keeps a finished run. */
export async function keep(run: KeptRun, files: FileEntry[]): Promise<void> {
  await keepRun(run, files);
  await native()?.keepRun(run.id, run);
}

/** Writes the description of a run anew, and shows it. */
export async function update(run: KeptRun): Promise<void> {
  if (!run.folder) await renameRun(run);
  await native()?.keepRun(run.id, run);
  runs.set(runs.get().map((one) => (one.id === run.id ? run : one)));
}

/** Deletes a run here. The program's folder stays, and is no longer listed. */
export async function forget(run: KeptRun): Promise<void> {
  await forgetKeptRun(run.id);
  await native()?.keepRun(run.id, { hidden: true });
}

/** The adapter and the report of a run. */
export async function filesOf(run: KeptRun): Promise<FileEntry[]> {
  return run.folder ? native()!.filesOfRun(run.id) : filesOfRun(run.id);
}

/** A run of the folder that no page has described, from its files. */
async function described({ id, modified }: FolderRun): Promise<KeptRun | null> {
  const files = await native()!.filesOfRun(id);
  const text = (name: string) => new TextDecoder().decode(files.find(({ path }) => path.endsWith(name))?.bytes);
  const recipe = text("recipe.resolved.toml");
  const history = replay(files);
  if (recipe === "" || history.steps.length === 0) return null;
  const compared = ranking(history);
  const plain = (value: string | null) => (value ?? "").replace(/^"|"$/g, "");
  const steps = history.steps.at(-1)!.step;
  return {
    id,
    folder: true,
    name: id,
    ended: new Date(1000 * modified).toISOString(),
    samples: plain(getValue(recipe, "data", "train")),
    base: plain(getValue(recipe, "model", "base")),
    step: steps,
    steps,
    ...change(history),
    ...(compared ? { ranking: compared } : {}),
    seconds: 0,
    recipe,
    replies: exchanges(history).map(({ prompt, before, after }) => ({ prompt, before: before ?? "", after: after ?? "" })),
    losses: history.steps.flatMap(({ step, smoothed }) => (smoothed === null ? [] : [[step, smoothed] as [number, number]])),
  };
}

/** Adds the runs of the program's folder to those of the browser. */
async function addFolder(): Promise<void> {
  const found = (await native()?.runs()) ?? [];
  const mine = new Set(runs.get().map(({ id }) => id));
  const others = found.filter(({ id, hidden }) => !mine.has(id) && !hidden);
  const all = await Promise.all(others.map(async (run) => ("recipe" in run ? { ...(run as KeptRun), folder: true } : described(run).catch(() => null))));
  const known = new Set(runs.get().map(({ id }) => id));
  const added = all.filter((run) => run !== null && !known.has(run.id)) as KeptRun[];
  if (added.length > 0) runs.set([...runs.get(), ...added].sort((a, b) => b.ended.localeCompare(a.ended)));
}

/** Shows the runs of the folder once the program is there. */
export function watchFolder(): void {
  trainer.watch((opened) => opened?.native && void addFolder().catch((error: unknown) => alertUser(words(error))));
}

const MOST_CHATS = 20;

/** Adds an exchange to the run `of`, for comparisons. */
export async function recordChat(of: string | undefined, prompt: string, before: string, after: string): Promise<void> {
  const run = runs.get().find(({ id }) => id === of);
  if (!run || after === "") return;
  const others = (run.chats ?? []).filter((one) => one.prompt !== prompt).slice(-MOST_CHATS + 1);
  await update({ ...run, chats: [...others, { prompt, before, after }] });
}
