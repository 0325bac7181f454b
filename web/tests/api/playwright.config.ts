// The API in a real Chromium, with WebGPU on the processor, against the native program and PyTorch's figures.
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { defineConfig } from "@playwright/test";

// A browser that is there already; else the one that `npx playwright install chromium` fetches.
const installed = process.env.CHROMIUM ?? ["/usr/bin/chromium", "/usr/bin/chromium-browser"].find(existsSync);
const port = 4176;

export default defineConfig({
  testDir: ".",
  outputDir: "../../test-results/api",
  // One device, played by the processor: tests in parallel would only wait for each other.
  workers: 1,
  fullyParallel: false,
  timeout: 600_000,
  reporter: [["list"]],
  use: {
    baseURL: `http://localhost:${port}/`,
    launchOptions: {
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
    },
  },
  webServer: {
    command: `npx vite --host localhost --port ${port} --strictPort`,
    cwd: fileURLToPath(new URL("../..", import.meta.url)),
    url: `http://localhost:${port}/tests/api/page.html`,
  },
});
