/** The section for picking the base model. */

import type { Session } from "../storage/session";
import { byId, choice } from "./dom";
import { bytes } from "./format";
import { getValue, quote, setValue } from "./toml";
import { base, recipe } from "./state";

type Kind = "tiny" | "file" | "url";

/** The base for the session storage. A browser forgets a picked file on reload, so only its name is stored. */
export let baseSession: Session["base"] = { kind: "tiny" };

/** Starts the section. `changed` is called when the user picks a base. */
export function baseSection(changed: () => void) {
  const file = byId<HTMLInputElement>("base-file");
  const url = byId<HTMLInputElement>("base-url");
  const note = byId("base-file-note");

  const use = (kind: Kind) => {
    const picked = file.files?.[0];
    const address = url.value.trim();
    if (kind === "tiny") {
      baseSession = { kind };
      base.set({ kind });
    } else if (kind === "file") {
      if (picked) baseSession = { kind, name: picked.name };
      note.textContent = picked ? `${bytes(picked.size)}; after a reload you have to pick it again` : "";
      base.set(picked ? { kind, file: picked } : null);
    } else {
      baseSession = { kind, url: address };
      base.set(address ? { kind, url: address } : null);
    }
    const name = kind === "tiny" ? "tiny" : kind === "file" ? picked?.name : address;
    if (name && getValue(recipe.get(), "model", "base") !== quote(name)) {
      recipe.set(setValue(recipe.get(), "model", "base", quote(name)));
    }
    changed();
  };
  const kinds = choice<Kind>(byId("base"), "base", use);
  file.addEventListener("change", () => use("file"));
  url.addEventListener("change", () => use("url"));

  return {
    /** Restores the base of a session. */
    restore(session: Session["base"]) {
      baseSession = session;
      kinds.pick(session.kind);
      if (session.kind === "url") url.value = session.url;
      if (session.kind === "file") note.textContent = `Pick ${session.name} again: browsers forget picked files on reload.`;
      base.set(session.kind === "tiny" ? session : session.kind === "url" && session.url ? session : null);
    },
  };
}
