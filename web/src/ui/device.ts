/** The GPU: opened at the start, and again after it was lost. */

import { init } from "../api/index";
import { alertUser, words } from "./alert";
import { byId } from "./dom";
import { trainer } from "./state";

/** Opens the device and shows what it is. */
export async function openDevice(): Promise<void> {
  const place = byId("device");
  try {
    const opened = await init();
    const { name, software } = opened.gpu;
    place.textContent = software ? `${name}; a CPU plays the GPU: slow, the same numbers` : name;
    trainer.set(opened);
  } catch (error) {
    place.textContent = "No GPU";
    alertUser(words(error), { text: "Try again", act: () => void openDevice() });
  }
}

/** Takes the place of a device that the browser took away. */
export async function reopenDevice(): Promise<void> {
  trainer.get()?.close();
  trainer.set(null);
  await openDevice();
}
