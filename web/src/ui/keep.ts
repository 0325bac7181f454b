/** Downloads: the adapter for other programs, the checkpoint and the recipe. */

import { DeviceLost, type FileEntry, type Format } from "../api/index";
import { RECIPE } from "../storage/checkpoints";
import { alertUser, announce, words } from "./alert";
import { reopenDevice } from "./device";
import { button, byId } from "./dom";
import { adapter, base, checkpoint, phase, recipe, result, runRecipe, trainer } from "./state";
import { download, zip } from "./zip";

const PEFT = ["adapter_model.safetensors", "adapter_config.json"];

const baseName = (path: string) => path.slice(path.lastIndexOf("/") + 1);

/** The PEFT files of a checkpoint. */
export const peftFiles = (files: FileEntry[]): FileEntry[] =>
  files.filter((file) => PEFT.includes(baseName(file.path))).map((file) => ({ path: `adapter/${baseName(file.path)}`, bytes: file.bytes }));

/** Downloads one file as it is, several files as a zip. */
function offer(name: string, files: FileEntry[]): void {
  const [only] = files;
  if (files.length === 1 && only) download(baseName(only.path), only.bytes as Uint8Array<ArrayBuffer>);
  else download(`${name}.zip`, zip(files));
}

/** Starts the section. */
export function keepSection(): void {
  const convert = async (to: Format, name: string) => {
    const [saved, device, model] = [adapter(), trainer.get(), base.get()];
    if (!saved || !device || !model) return;
    announce(`Converting to ${to} …`);
    try {
      offer(name, await device.export({ base: model, adapter: peftFiles(saved.files), to }));
      announce(`Downloaded ${to}.`);
    } catch (error) {
      if (error instanceof DeviceLost) await reopenDevice();
      alertUser(words(error));
    }
  };
  const peft = button("PEFT", () => offer(`adapter-${adapter()!.step}`, peftFiles(adapter()!.files)));
  const formats = [
    button("GGUF LoRA", () => void convert("gguf-lora", "adapter")),
    button("MLX", () => void convert("mlx", "adapter-mlx")),
  ];
  const state = button("Checkpoint", () => {
    const saved = checkpoint.get()!;
    const text = runRecipe.get();
    const files = [...saved.files, ...(text === null ? [] : [{ path: RECIPE, bytes: new TextEncoder().encode(text) }])];
    offer(`checkpoint-${saved.step}`, files);
  });
  const text = button("Recipe", () => download("recipe.toml", recipe.get()));
  byId("downloads").append(peft, ...formats, state, text);

  const show = () => {
    const saved = adapter();
    const busy = phase.get() !== "idle"; // the run uses the GPU
    peft.disabled = saved === null;
    for (const one of formats) one.disabled = saved === null || busy || trainer.get() === null || base.get() === null;
    state.disabled = checkpoint.get() === null;
    byId("keep-note").textContent = saved
      ? `The adapter of step ${saved.step}: PEFT for transformers and vLLM, GGUF for llama.cpp and LM Studio, MLX for mlx-lm. Training can be resumed from the checkpoint, here or on the command line.`
      : "The adapter can be downloaded once a checkpoint is saved.";
  };
  for (const cell of [phase, trainer, base, checkpoint, result]) cell.watch(show);
}
