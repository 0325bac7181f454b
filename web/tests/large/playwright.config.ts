// A base of 607 MiB on the page that web/build has built: `web/test large`. Too slow for every change.
import { fileURLToPath } from "node:url";
import { defineConfig } from "@playwright/test";

const port = 4177;

export default defineConfig({
  testDir: ".",
  outputDir: "../../test-results/large",
  workers: 1,
  timeout: 3_600_000,
  expect: { timeout: 1_800_000 },
  reporter: [["list"]],
  use: { baseURL: `http://localhost:${port}/` },
  webServer: {
    command: `npx vite preview --host localhost --port ${port} --strictPort`,
    cwd: fileURLToPath(new URL("../..", import.meta.url)),
    url: `http://localhost:${port}/`,
  },
});
