/** The page as `rullama-train web` serves it. */

import { expect, test } from "@playwright/test";

test("every response has the headers that workers with shared memory need", async ({ request, page }) => {
  for (const path of ["/", "/example.html", "/icon.svg", "/no-such-file"]) {
    const headers = (await request.get(path)).headers();
    expect(headers["cross-origin-opener-policy"]).toBe("same-origin");
    expect(headers["cross-origin-embedder-policy"]).toBe("require-corp");
    expect(headers["x-content-type-options"]).toBe("nosniff");
  }
  await page.goto("/");
  expect(await page.evaluate(() => crossOriginIsolated)).toBe(true);
});

test("content types, ranges and caching", async ({ request }) => {
  const html = await (await request.get("/")).text();
  const script = /assets\/[^"]+\.js/.exec(html)![0];
  const whole = await request.get(script);
  expect(whole.headers()["content-type"]).toContain("text/javascript");
  expect(whole.headers()["cache-control"]).toContain("immutable");
  const bytes = await whole.body();
  const part = await request.get(script, { headers: { Range: "bytes=5-9" } });
  expect(part.status()).toBe(206);
  expect(part.headers()["content-range"]).toBe(`bytes 5-9/${bytes.length}`);
  expect(await part.body()).toEqual(bytes.subarray(5, 10));
  const end = await request.get(script, { headers: { Range: "bytes=-3" } });
  expect(await end.body()).toEqual(bytes.subarray(-3));
  const beyond = await request.get(script, { headers: { Range: `bytes=${bytes.length}-` } });
  expect(beyond.status()).toBe(416);
  expect(beyond.headers()["content-range"]).toBe(`bytes */${bytes.length}`);

  const page = await request.get("/");
  expect(page.headers()["cache-control"]).toBe("no-cache");
  const again = await request.get("/", { headers: { "If-None-Match": page.headers()["etag"]! } });
  expect(again.status()).toBe(304);
  expect((await request.get("/no-such-file")).status()).toBe(404);
  expect((await request.post("/")).status()).toBe(415); // what a page of another origin can send
  expect((await request.post("/", { data: {} })).status()).toBe(405);
});
