// The page in a real Chromium, with WebGPU on the processor.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { defineConfig } from "@playwright/test";
import { launchOptions } from "./tests/browser";

// The program with the page inside: `cargo build --release --features web`, after `web/build`.
const built = process.env.CARGO_TARGET_DIR ?? fileURLToPath(new URL("../target", import.meta.url));
const program = join(built, "release", "rullama-train");

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
    launchOptions,
  },
  projects: [
    { name: "page", testDir: "tests/page", use: { baseURL: serve(4174) } },
    // Where a processor plays the GPU, compiling the kernels alone takes most of a minute.
    { name: "whole", testDir: "tests/whole", timeout: 1_200_000, expect: { timeout: 400_000 }, use: { baseURL: serve(4173) } },
  ],
  webServer: [
    // The page alone, over a trainer that computes nothing.
    { command: `node_modules/.bin/vite build --mode fake --outDir dist-fake && node_modules/.bin/vite preview --outDir dist-fake ${at(4174)}`, url: serve(4174), reuseExistingServer },
    ...(existsSync(program) && !process.env.RULLAMA_QUICK ? [{ command: `${program} web --no-open --port 4173`, url: serve(4173), reuseExistingServer }] : []),
  ],
});
