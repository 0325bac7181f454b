/** Bases that are downloaded once, and files that are remembered. */

import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { expect, test, type Page } from "@playwright/test";
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
    const sent = Buffer.alloc(end - start, 7);
    if (start === 0) sent.write("GGUF");
    response.write(sent, () => end === SIZE && response.end());
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
  await expect(page.locator("#base-download .error")).toContainText("the server responded 404");
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

/** Serves GGUF files at https://example.org, the first `lost` times only their first 9 MB. */
async function serve(size: number, lost = 0) {
  let asked = 0;
  const server = createServer((request, response) => {
    const start = Number(/^bytes=(\d+)-/.exec(request.headers.range ?? "")?.[1] ?? 0);
    const headers = { "access-control-allow-origin": "*", "access-control-expose-headers": "content-range, etag", "access-control-allow-headers": "range", etag: '"1"' };
    if (request.method === "OPTIONS") return void response.writeHead(204, headers).end();
    response.writeHead(start > 0 ? 206 : 200, { ...headers, "content-length": size - start, ...(start > 0 && { "content-range": `bytes ${start}-${size - 1}/${size}` }) });
    const cut = asked++ < lost;
    const sent = Buffer.alloc((cut ? 9_000_000 : size) - start, 7);
    if (start === 0) sent.write("GGUF");
    response.write(sent, () => (cut ? setTimeout(() => response.destroy(), 300) : response.end()));
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/a.gguf`, asked: () => asked, close };
}

async function useUrl(page: Page, url: string): Promise<void> {
  await page.getByLabel("A GGUF at a URL").check();
  await page.getByLabel("URL", { exact: true }).fill(url);
  await page.getByLabel("URL", { exact: true }).blur();
}

test("a lost connection is tried again, after what has arrived", async ({ page }) => {
  const { url, asked, close } = await serve(20_000_000, 1);
  await open(page);
  await openSettings(page);
  await useUrl(page, url);
  await page.getByRole("button", { name: "Download it" }).click();
  await expect(page.locator("#base-download")).toContainText("trying again");
  await expect(page.locator("#base-download")).toContainText("19.1 MiB, kept in this browser");
  expect(asked()).toBe(2);
  close();
});

test("a stored base is listed with its size, used again, and deleted", async ({ page }) => {
  const { url, close } = await serve(1_000_000);
  await open(page);
  await openSettings(page);
  await useUrl(page, url);
  await page.getByRole("button", { name: "Download it" }).click();
  await expect(page.locator("#base-stored")).toContainText("Stored in this browser: 976.6 KiB");
  await page.getByLabel("Tiny Gemma 4").check();
  await page.getByRole("button", { name: "Use a.gguf" }).click();
  await expect(page.locator("#settings-summary")).toContainText("a.gguf");
  await page.getByRole("button", { name: "Delete a.gguf" }).click();
  await page.getByRole("button", { name: "Delete the model" }).click();
  await expect(page.locator("#base-stored")).toBeHidden();
  await expect(page.getByLabel("Tiny Gemma 4")).toBeChecked();
  await expect(page.locator("#start")).toBeEnabled();
  close();
});

test("a web page is not stored as a model, and a page about a file becomes the file", async ({ page }) => {
  await page.route("https://huggingface.co/**", (route) => route.fulfill({ body: "<!doctype html>", headers: { "access-control-allow-origin": "*" } }));
  await open(page);
  await openSettings(page);
  await useUrl(page, "https://huggingface.co/a/b/blob/main/c.gguf?download=true");
  await expect(page.getByLabel("URL", { exact: true })).toHaveValue("https://huggingface.co/a/b/resolve/main/c.gguf");
  await page.getByRole("button", { name: "Download it" }).click();
  await expect(page.locator("#base-download .error")).toContainText("is a web page, expected a GGUF file");
  await expect(page.locator("#base-stored")).toBeHidden();
  await expect(alert(page).locator("p")).toHaveCount(0);
});

test("bases are offered with size, memory and licence, and fetched with one click", async ({ page }) => {
  const file = Buffer.alloc(1000, 7);
  file.write("GGUF");
  await page.route("https://huggingface.co/**", (route) => route.fulfill({ body: file, headers: { "access-control-allow-origin": "*" } }));
  await open(page);
  await openSettings(page);
  const row = page.locator(".offer", { hasText: "SmolLM2" });
  await expect(row).toContainText(/138\.1 MiB · 0\.3 to 0\.9 GiB of GPU memory · Apache 2\.0/);
  await row.getByRole("button", { name: "Get SmolLM2" }).click();
  await expect(page.locator("#base-download")).toContainText("1000 B, kept in this browser");
  await expect(page.getByRole("radio", { name: "SmolLM2" })).toBeChecked();
  await expect(row).toContainText("stored");
  await expect(page.locator("#start")).toBeEnabled();
  await stored(page, "SmolLM2");
  await page.reload();
  await openSettings(page);
  await expect(page.getByRole("radio", { name: "SmolLM2" })).toBeChecked();
});

test("a base that does not fit this GPU says why", async ({ page }) => {
  await open(page, "?buffer=134217728");
  await openSettings(page);
  await expect(page.getByRole("radio", { name: "SmolLM2" })).toBeEnabled();
  await expect(page.getByRole("radio", { name: "Gemma 3 1B" })).toBeDisabled();
  await expect(page.locator(".offer", { hasText: "Gemma 3 1B" })).toContainText("Not on this GPU: Its largest matrix has 306.0 MiB, and this GPU's buffers hold 128.0 MiB.");
});

const dropping = (page: Page, name: string) =>
  page.evaluateHandle((name) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File(["GGUF"], name));
    return transfer;
  }, name);

test("a GGUF that is dropped becomes the base, and a model among the samples can", async ({ page }) => {
  await open(page);
  await page.dispatchEvent("body", "drop", { dataTransfer: await dropping(page, "mine.gguf") });
  await expect(page.locator("#settings-summary")).toContainText("mine.gguf");
  await expect(page.locator("#data-list")).toContainText("pirate.jsonl");
  await page.dispatchEvent("body", "drop", { dataTransfer: await dropping(page, "model.bin") });
  await page.getByRole("button", { name: "Use model.bin as the base model" }).click();
  await expect(page.locator("#settings-summary")).toContainText("model.bin");
});

test("an error of the base stands at the base, once", async ({ page }) => {
  await open(page);
  await page.dispatchEvent("body", "drop", { dataTransfer: await dropping(page, "wrong.gguf") });
  await expect(page.locator("#base-error")).toContainText('the architecture "mine" is not known');
  await expect(page.locator("#samples")).toContainText("see Settings");
  await expect(page.locator("main").getByText('the architecture "mine"')).toHaveCount(1);
  await page.getByLabel("Tiny Gemma 4").check();
  await expect(page.locator("#base-error")).toBeEmpty();
});
