// The page in Firefox: opening, samples and storage. `web/test firefox` installs what it needs. Where Firefox has no WebGPU, only the fake
// trainer trains there.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, afterEach, test } from "node:test";
import { fileURLToPath } from "node:url";
import puppeteer from "puppeteer-core";

const web = fileURLToPath(new URL("../..", import.meta.url));
const executablePath = process.env.FIREFOX ?? "/usr/bin/firefox-esr";
const builds = { "dist-fake": 4178, dist: 4179 };
const timeout = 120_000;

const at = (port) => `http://localhost:${port}/`;

let servers;
let profile;
let browser;
let page;

before(async () => {
  servers = Object.entries(builds).map(([folder, port]) => {
    const options = ["preview", "--outDir", folder, "--host", "localhost", "--port", `${port}`, "--strictPort"];
    return spawn("node_modules/.bin/vite", options, { cwd: web, stdio: "ignore" });
  });
  for (const port of Object.values(builds)) {
    await until(`the page at port ${port}`, async () => (await fetch(at(port)).catch(() => null))?.ok);
  }
});

after(() => servers.forEach((server) => server.kill()));

beforeEach(async () => {
  profile = mkdtempSync(join(tmpdir(), "rullama-firefox-"));
  await start();
});

afterEach(async () => {
  await browser.close();
  rmSync(profile, { recursive: true, force: true });
});

/** Starts Firefox with the profile of this test. */
async function start() {
  browser = await puppeteer.launch({ browser: "firefox", executablePath, userDataDir: profile, headless: true });
  page = await browser.newPage();
  await page.setViewport({ width: 1280, height: 900 });
}

/** Waits until `check` returns something true. */
async function until(what, check) {
  const end = Date.now() + timeout;
  for (;;) {
    const found = await check();
    if (found) return found;
    assert.ok(Date.now() < end, `${what}: not seen in ${timeout / 1000} s`);
    await new Promise((done) => setTimeout(done, 100));
  }
}

const text = (selector) => page.$$eval(selector, (all) => all.map((element) => element.innerText).join("\n"));
const shows = (selector, expected) =>
  until(`"${expected}" in ${selector}`, async () => (await text(selector)).includes(expected));
const click = (name) => page.locator(`::-p-aria(${name})`).setTimeout(timeout).click();

test("the page opens, reads samples, and says what is missing", { timeout }, async () => {
  await page.goto(at(builds.dist));
  assert.match(await page.title(), /rullama-train/);
  await shows("#samples", "400 samples");
  const [isolated, hasGpu] = await page.evaluate(() => [globalThis.crossOriginIsolated, Boolean(navigator.gpu)]);
  assert.ok(isolated, "workers cannot share memory");
  if (!hasGpu) await shows("body", "WebGPU");
});

test("pasted samples are read, kept, and there after a new start of the browser", { timeout }, async () => {
  await page.goto(at(builds.dist));
  await click("Pasted text");
  await page.locator("#data-pasted").fill("Question;Answer\nHi;Ahoy\nBye;So long");
  await shows("#reading", "Read as a table of 2 rows");
  await shows("#samples", "2 samples");
  await until("the stored session", () => stored("So long"));
  await browser.close();
  await start();
  await page.goto(at(builds.dist));
  await shows("#samples", "2 samples");
});

test("the example trains with the fake trainer, is kept, and answers after a reload", { timeout }, async () => {
  await page.goto(at(builds["dist-fake"]));
  await page.locator("#start").setTimeout(timeout).click();
  await shows("#saved", "Finished: the adapter of step 24 is saved in this browser.");
  await page.reload();
  await shows("#saved", "Finished");
  await page.locator("#talk-input").setTimeout(timeout).fill("What is the capital of Peru?");
  await page.keyboard.press("Enter");
  await shows("#adapter-log", "Aye, matey!");
});

test("without storage everything is in memory, and the page says so", { timeout }, async () => {
  await page.evaluateOnNewDocument(() => {
    navigator.storage.getDirectory = () => Promise.reject(new DOMException("refused", "SecurityError"));
  });
  await page.goto(at(builds["dist-fake"]));
  await shows("body", "Nothing is kept in this window");
});

/** Whether the stored session has `part`. */
const stored = (part) =>
  page.evaluate(async (part) => {
    try {
      const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("session");
      return (await (await (await folder.getFileHandle("session.json")).getFile()).text()).includes(part);
    } catch {
      return false; // not yet
    }
  }, part);
