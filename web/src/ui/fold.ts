/** Talk and Keep, which are folded until there is an adapter, or the user opens them. */

import { byId } from "./dom";
import { adapter, checkpoint, phase, result } from "./state";

export function foldSections(): void {
  const open = new Set<string>();
  const show = () => {
    const there = adapter() !== null;
    for (const id of ["talk", "keep"]) byId(id).hidden = !there && !open.has(id);
    byId("then").hidden = there || open.size === 2;
    byId("open-talk").hidden = open.has("talk");
    byId("open-keep").hidden = open.has("keep");
  };
  const unfold = (id: string, focus: string) => {
    open.add(id);
    show();
    byId(focus).focus();
  };
  byId("open-talk").addEventListener("click", () => unfold("talk", "talk-input"));
  byId("open-keep").addEventListener("click", () => unfold("keep", "keep-title"));
  byId("keep-title").tabIndex = -1;
  for (const cell of [checkpoint, result, phase]) cell.watch(show);
}
