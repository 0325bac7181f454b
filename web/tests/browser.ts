// Chromium with software WebGPU, as all tests start it.
import { existsSync } from "node:fs";

// An installed browser, or the one that `npx playwright install chromium` downloads.
const installed = process.env.CHROMIUM ?? ["/usr/bin/chromium", "/usr/bin/chromium-browser"].find(existsSync);

export const launchOptions = {
  ...(installed && { executablePath: installed }),
  args: [
    "--no-sandbox",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
  ],
};
