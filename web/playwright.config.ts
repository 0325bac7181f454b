// The page in a real Chromium, with WebGPU on the processor.
import { existsSync } from "node:fs";
import { defineConfig } from "@playwright/test";

// A browser that is there already; else the one that `npx playwright install chromium` fetches.
const installed = process.env.CHROMIUM ?? ["/usr/bin/chromium", "/usr/bin/chromium-browser"].find(existsSync);

const serve = (port: number) => `http://localhost:${port}/`;
const at = (port: number) => `--host localhost --port ${port} --strictPort`;

const reuseExistingServer = !process.env.CI;

export default defineConfig({
  outputDir: "test-results",
  // One device, played by the processor: tests in parallel would only wait for each other.
  workers: 1,
  fullyParallel: false,
  // Generous: a busy machine is no error.
  timeout: 300_000,
  expect: { timeout: 60_000 },
  reporter: [["list"]],
  use: {
    viewport: { width: 1280, height: 900 },
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
  projects: [
    { name: "page", testDir: "tests/page", use: { baseURL: serve(4174) } },
    { name: "whole", testDir: "tests/whole", use: { baseURL: serve(4173) } },
  ],
  webServer: [
    // The page alone, over a trainer that computes nothing.
    { command: `node_modules/.bin/vite build --mode fake --outDir dist-fake && node_modules/.bin/vite preview --outDir dist-fake ${at(4174)}`, url: serve(4174), reuseExistingServer },
    // What `web/build` has built.
    { command: `node_modules/.bin/vite preview ${at(4173)}`, url: serve(4173), reuseExistingServer },
  ],
});
