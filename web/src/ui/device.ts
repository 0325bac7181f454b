/** Opens the GPU, at the start and again after it was lost. */

import { init } from "../api/index";
import { alertUser, words } from "./alert";
import { byId } from "./dom";
import { trainer } from "./state";

/** Opens the GPU and shows its name. */
export async function openDevice(): Promise<void> {
  const place = byId("device");
  try {
    const opened = await init();
    const { name, software } = opened.gpu;
    place.textContent = software ? `${name}; software renderer: slow, same results` : name;
    trainer.set(opened);
  } catch (error) {
    place.textContent = "No GPU";
    alertUser(words(error), { text: "Try again", act: () => void openDevice() });
  }
}

/** Opens the GPU again after it was lost. */
export async function reopenDevice(): Promise<void> {
  trainer.get()?.close();
  trainer.set(null);
  await openDevice();
}
