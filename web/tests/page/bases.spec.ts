/** Bases that are downloaded once, and files that are remembered. */

import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { expect, test } from "@playwright/test";
import { alert, open, openSettings, stored } from "./page";

const SIZE = 40_000_000; // more than one part

/** A server of a file that stops in the middle of its first response. */
async function server() {
  const asked: (string | undefined)[] = [];
  const listening = createServer((request, response) => {
    const range = request.headers.range;
    asked.push(range);
    const start = Number(/^bytes=(\d+)-/.exec(range ?? "")?.[1] ?? 0);
    const headers = { "access-control-allow-origin": "*", "access-control-expose-headers": "content-range, etag", "access-control-allow-headers": "range", etag: '"1"' };
    if (request.method === "OPTIONS") return void response.writeHead(204, headers).end();
    response.writeHead(range ? 206 : 200, { ...headers, "content-length": SIZE - start, ...(range && { "content-range": `bytes ${start}-${SIZE - 1}/${SIZE}` }) });
    const end = asked.length === 1 ? 36_000_000 : SIZE;
    response.write(Buffer.alloc(end - start, 7), () => end === SIZE && response.end());
  });
  await new Promise<void>((done) => listening.listen(0, "127.0.0.1", done));
  const close = () => {
    listening.closeAllConnections();
    listening.close();
  };
  return { url: `http://127.0.0.1:${(listening.address() as AddressInfo).port}/base.gguf`, asked, close };
}

test("a base at a URL is downloaded once, with progress, cancel and resume", async ({ page }) => {
  const { url, asked, close } = await server();
  await open(page);
  await openSettings(page);
  await page.getByLabel("A GGUF at a URL").check();
  await page.getByLabel("URL", { exact: true }).fill(url);
  await page.getByLabel("URL", { exact: true }).blur();
  await page.getByRole("button", { name: "Download it" }).click();
  await expect(page.locator("#base-download")).toContainText("34.3 MiB of 38.1 MiB");
  await page.getByRole("button", { name: "Cancel the download" }).click();
  await expect(page.locator("#base-download")).toContainText("32.0 MiB of 38.1 MiB are here already");
  await stored(page, "/base.gguf");
  await page.reload();
  await page.getByRole("button", { name: "Resume the download" }).click();
  await expect(page.locator("#base-download")).toContainText("38.1 MiB, kept in this browser");
  expect(asked.filter((range) => range !== undefined)).toEqual(["bytes=33554432-"]);
  const requests = asked.length;
  await page.reload();
  await expect(page.locator("#base-download")).toContainText("38.1 MiB, kept in this browser");
  await expect(page.locator("#start")).toBeEnabled();
  expect(asked.length).toBe(requests); // no second download
  close();
});

test("a download that fails says why", async ({ page }) => {
  await open(page);
  await openSettings(page);
  await page.getByLabel("A GGUF at a URL").check();
  await page.getByLabel("URL", { exact: true }).fill("a.gguf");
  await page.getByLabel("URL", { exact: true }).blur();
  await expect(page.locator("#base-download .error")).toContainText("begins with https://");
  await page.route("https://example.org/**", (route) => route.fulfill({ status: 404, headers: { "access-control-allow-origin": "*" } }));
  await page.getByLabel("URL", { exact: true }).fill("https://example.org/a.gguf");
  await page.getByLabel("URL", { exact: true }).blur();
  await page.getByRole("button", { name: "Download it" }).click();
  await expect(alert(page)).toContainText("the server responded 404");
});

test("a picked file is remembered across a reload", async ({ page }) => {
  await page.addInitScript(() => {
    // A file of the page's own storage stands for one on the disk.
    Object.assign(globalThis, {
      showOpenFilePicker: async () => {
        const folder = await navigator.storage.getDirectory();
        const handle = await folder.getFileHandle("mine.gguf", { create: true });
        const writable = await handle.createWritable();
        await writable.write("GGUF");
        await writable.close();
        return [handle];
      },
    });
  });
  await open(page);
  await openSettings(page);
  await page.getByLabel("A GGUF on this machine").check();
  await page.getByRole("button", { name: "Choose a file" }).click();
  await expect(page.locator("#base-file-note")).toHaveText("mine.gguf, 4 B");
  await expect(page.locator("#settings-summary")).toContainText("mine.gguf");
  await expect(page.locator("#start")).toBeEnabled();
  await stored(page, '"base":{"kind":"file","name":"mine.gguf"}');
  await open(page);
  await expect(page.locator("#settings-summary")).toContainText("mine.gguf");
});
