// What a published page has besides the files of any build: a content security policy, a manifest, tags for previews of links, and
// a service worker, with which it works without a network after the first visit.
import { createHash } from "node:crypto";
import { cpSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { HtmlTagDescriptor, Plugin } from "vite";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));

// As in crates/program/src/cli/web/http.rs, without what a page cannot say about itself.
const POLICY = [
  "default-src 'self'",
  "script-src 'self' 'wasm-unsafe-eval'",
  "worker-src 'self' blob:",
  "img-src 'self' data:",
  "connect-src 'self' blob: https: http://localhost:* http://127.0.0.1:*",
  "object-src 'none'",
  "base-uri 'none'",
  "form-action 'none'",
].join("; ");

const TITLE = "Teach a language model your style, in a browser tab";
const FOLDER = here("publish");

/** `address`: where the page will be, for previews of links, whose images need a whole URL. */
export function publish(address: string | undefined): Plugin {
  let out = "";
  const meta = (attrs: Record<string, string>): HtmlTagDescriptor => ({ tag: "meta", attrs, injectTo: "head-prepend" });
  const image = address ? new URL("og.png", address.endsWith("/") ? address : `${address}/`).href : "./og.png";
  return {
    name: "publish",
    apply: "build",
    configResolved: (config) => void (out = config.build.outDir),
    transformIndexHtml: {
      order: "post",
      handler: () => [
        meta({ "http-equiv": "Content-Security-Policy", content: POLICY }),
        meta({ property: "og:title", content: TITLE }),
        meta({ property: "og:description", content: "Samples in, adapter out, on WebGPU. Nothing is installed and nothing leaves your machine." }),
        meta({ property: "og:type", content: "website" }),
        meta({ property: "og:image", content: image }),
        ...(address ? [meta({ property: "og:url", content: address })] : []),
        meta({ name: "twitter:card", content: "summary_large_image" }),
        meta({ name: "theme-color", content: "#0b6e5f" }),
        { tag: "link", attrs: { rel: "manifest", href: "./manifest.webmanifest" }, injectTo: "head" },
      ],
    },
    generateBundle: {
      order: "post", // after the page itself
      handler(_, bundle) {
        const files = ["./", "icon.svg", "manifest.webmanifest", ...Object.keys(bundle).filter((name) => name !== "index.html" && name !== "example.html")].sort();
        const worker = readFileSync(here("publish/sw.js"), "utf8");
        const contents = Object.values(bundle).map((file) => (file.type === "chunk" ? file.code : Buffer.from(file.source)));
        const digest = contents.reduce((hash, content) => hash.update(content), createHash("sha256")).digest("hex").slice(0, 16);
        const source = worker.replace('"VERSION"', JSON.stringify(digest)).replace('["FILES"]', JSON.stringify(files));
        this.emitFile({ type: "asset", fileName: "sw.js", source });
      },
    },
    writeBundle() {
      for (const name of ["manifest.webmanifest", "og.png"]) cpSync(`${FOLDER}/${name}`, `${out}/${name}`);
    },
  };
}
