/** The page as an app: it says when it works without a network, and offers to install it. */

import { button, byId } from "./dom";

interface InstallEvent extends Event {
  prompt(): Promise<unknown>;
}

export function offline(): void {
  const place = byId("offline");
  const ready = () => place.prepend("This page now works without a network. ");
  void navigator.serviceWorker?.register("./sw.js").then(() => navigator.serviceWorker.ready).then(ready, () => {});
  addEventListener("beforeinstallprompt", (event) => {
    event.preventDefault();
    const install = button("Install it as an app", () => void (event as InstallEvent).prompt().then(() => install.remove()), { class: "link" });
    place.append(install);
  });
}
