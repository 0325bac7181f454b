/** Mistakes of the base, beside the base. */

import { BaseError } from "../api/index";
import { button, byId, el } from "./dom";
import { checked, data, phase, table } from "./state";

/** Shows them. `use` makes a file the base, if the page may read files as bases. */
export function baseProblems(use: ((file: File) => void) | null): void {
  const place = byId("base-error");
  const show = () => {
    const found = [table.get(), checked.get()].find((one) => one instanceof BaseError);
    place.textContent = found?.message ?? "";
    if (found) byId<HTMLDetailsElement>("settings-details").open = true;
  };
  for (const cell of [table, checked]) cell.watch(show);

  // A model among the samples.
  const model = () => {
    const found = table.get();
    const [only] = data.get();
    const isModel = use && phase.get() === "idle" && found instanceof Error && /GGUF file/.test(found.message) && only?.file instanceof File;
    const file = only?.file as File;
    byId("samples-next").replaceChildren(...(isModel ? [button(`Use ${only.name} as the base model`, () => use(file))] : []));
  };
  for (const cell of [table, data]) cell.watch(model);
}

/** What stands for an error of the base elsewhere. */
export const elsewhere = () => el("p", { class: "note" }, "The base model cannot be used: see Settings.");
