// The API in a real Chromium, with WebGPU on the processor, against the native program and PyTorch's figures.
import { fileURLToPath } from "node:url";
import { defineConfig } from "@playwright/test";
import { launchOptions } from "../browser";

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
    launchOptions,
  },
  webServer: {
    command: `npx vite --host localhost --port ${port} --strictPort`,
    cwd: fileURLToPath(new URL("../..", import.meta.url)),
    url: `http://localhost:${port}/tests/api/page.html`,
  },
});
