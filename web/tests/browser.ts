// Chromium as all tests start it, with WebGPU on the processor.
import { existsSync } from "node:fs";

// A browser that is there already; else the one that `npx playwright install chromium` fetches.
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
