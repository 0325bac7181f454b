/** The page as a published site: relative URLs, its own policy, and no network after the first visit. */

import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "@playwright/test";
import { saved } from "./page";

const web = fileURLToPath(new URL("../..", import.meta.url));
const TYPES: Record<string, string> = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".webmanifest": "application/manifest+json" };

/** A host that serves `folder` below a path, as GitHub Pages does. */
async function host(folder: string) {
  const server = createServer((request, response) => {
    const path = new URL(request.url!, "http://x").pathname.replace(/^\/some\/site\//, "");
    try {
      const file = join(folder, path === "" ? "index.html" : path);
      response.writeHead(200, { "content-type": TYPES[extname(file)] ?? "application/octet-stream" }).end(readFileSync(file));
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/some/site/`, close: () => server.close() };
}

test("a published page works below a path, and offline after the first visit", async ({ page, context }) => {
  const folder = mkdtempSync(join(tmpdir(), "rullama-train-"));
  const env = { ...process.env, RULLAMA_URL: "https://example.org/site" };
  execFileSync("node_modules/.bin/vite", ["build", "--mode", "fake-publish", "--outDir", folder, "--emptyOutDir"], { cwd: web, env, stdio: "pipe" });
  const { url, close } = await host(folder);
  const broken: string[] = [];
  page.on("response", (response) => response.ok() || broken.push(response.url()));
  page.on("console", (message) => /Content Security Policy/.test(message.text()) && broken.push(message.text()));
  await page.goto(url);
  await expect(page.locator("#start")).toBeEnabled();
  await page.evaluate(() => navigator.serviceWorker.ready.then(() => null));
  const image = page.locator('meta[property="og:image"]');
  await expect(image).toHaveAttribute("content", "https://example.org/site/og.png");
  await expect(page.locator('meta[http-equiv="Content-Security-Policy"]')).toHaveAttribute("content", /script-src 'self' 'wasm-unsafe-eval'/);
  expect(await page.evaluate(() => fetch("./og.png").then((response) => response.ok))).toBe(true);
  close();
  await context.setOffline(true);
  await page.goto(`${url}?again`);
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await expect(saved(page)).toContainText("Finished");
  await expect(page.getByRole("region", { name: "Table of samples" })).toBeVisible(); // the samples are kept, too
  expect(broken).toEqual([]);
  rmSync(folder, { recursive: true });
});
