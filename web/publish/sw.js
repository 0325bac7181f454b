// Keeps every file of the page, so that it works without a network after the first visit. web/publish.ts fills in the names.
const CACHE = `rullama-train-${"VERSION"}`;
const FILES = ["FILES"];

addEventListener("install", (event) => {
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(FILES)));
});

addEventListener("activate", (event) => {
  const removeOld = async () => {
    for (const name of await caches.keys()) if (name.startsWith("rullama-train-") && name !== CACHE) await caches.delete(name);
    await clients.claim();
  };
  event.waitUntil(removeOld());
});

// Files of this version come from the cache, whatever the query; anything else, such as a model elsewhere, from the network.
addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  if (event.request.method !== "GET" || url.origin !== location.origin) return;
  const answer = async () => {
    const cache = await caches.open(CACHE);
    return (await cache.match(url.origin + url.pathname, { ignoreVary: true })) ?? fetch(event.request);
  };
  event.respondWith(answer());
});
