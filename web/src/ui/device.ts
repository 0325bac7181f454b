/** Opens the GPU, at the start and again after it was lost. */

import { isNative } from "../api/engine";
import { init, openReader } from "../api/index";
import { alertUser, words } from "./alert";
import { byId } from "./dom";
import { setNoGpu } from "./plan";
import { checked, reader, trainer } from "./state";

/** Opens the GPU and shows its name. */
export async function openDevice(): Promise<void> {
  const place = byId("device");
  try {
    const opened = await init();
    const { name, software, failedSelfTest } = opened.gpu;
    const slow = software ? "; software renderer: slow, same results" : "";
    place.textContent = name + slow + (failedSelfTest ? `; slower kernels, as its self-test failed: ${failedSelfTest}` : "");
    setNoGpu(false);
    reader.get()?.close();
    reader.set(null);
    trainer.set(opened);
  } catch (error) {
    place.textContent = "No GPU";
    setNoGpu(true);
    checked.set(null);
    const next = "Chrome and Edge from version 113, Safari 26 and Firefox 141 have WebGPU. Samples and settings can be prepared here and shared as a link.";
    if (!isNative()) void openReader().then((opened) => reader.set(opened), () => {}); // the samples can be read without one
    alertUser(isNative() ? words(error) : `${words(error)} ${next}`, { text: "Try again", act: () => void openDevice() });
  }
}

/** Opens the GPU again after it was lost. */
export async function reopenDevice(): Promise<void> {
  trainer.get()?.close();
  trainer.set(null);
  await openDevice();
}
