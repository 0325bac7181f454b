// Tests of the page in Chromium with software WebGPU.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { defineConfig } from "@playwright/test";
import { launchOptions } from "./tests/browser";

// The program with the page: `cargo build --release --features web`, after `web/build`.
const built = process.env.CARGO_TARGET_DIR ?? fileURLToPath(new URL("../target", import.meta.url));
const program = join(built, process.env.RULLAMA_PROFILE ?? "release", "rullama-train");

// The port of the page with a fake trainer; two checkouts on one machine need different ones.
const port = Number(process.env.RULLAMA_PORT ?? 4174);

const serve = (port: number) => `http://localhost:${port}/`;
const at = (port: number) => `--host localhost --port ${port} --strictPort`;

const reuseExistingServer = !process.env.CI;

export default defineConfig({
  outputDir: "test-results",
  // All tests share one software renderer, so running them in parallel gains nothing.
  workers: 1,
  fullyParallel: false,
  // Long, so that a busy machine does not fail the tests.
  timeout: 300_000,
  expect: { timeout: 60_000 },
  reporter: [["list"]],
  use: {
    viewport: { width: 1280, height: 900 },
    launchOptions,
  },
  projects: [
    { name: "page", testDir: "tests/page", use: { baseURL: serve(port) } },
    // With a software renderer, compiling the kernels takes most of a minute.
    { name: "whole", testDir: "tests/whole", timeout: 1_200_000, expect: { timeout: 400_000 }, use: { baseURL: serve(4173) } },
  ],
  webServer: [
    // The page with a fake trainer.
    { command: `node_modules/.bin/vite build --mode fake --outDir dist-fake && node_modules/.bin/vite preview --outDir dist-fake ${at(port)}`, url: serve(port), reuseExistingServer },
    ...(existsSync(program) && !process.env.RULLAMA_QUICK ? [{ command: `${program} web --no-open --port 4173`, url: serve(4173), reuseExistingServer }] : []),
  ],
});
