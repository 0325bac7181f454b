// Builds the page as static files with relative URLs, which any folder of any host can serve.
import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";
import { publish } from "./publish.ts";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));

// Headers that workers with shared memory need; `rullama-train web` sends the same.
const headers = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
};

export default defineConfig(({ mode }) => ({
  base: "./",
  server: { headers, fs: { allow: [here("..")] } }, // recipes, samples and the tiny model are outside web/
  preview: { headers },
  // `--mode publish` makes a site; `--mode fake…` is for the tests of the page, without model and GPU.
  plugins: mode.endsWith("publish") ? [publish(process.env.RULLAMA_URL)] : [],
  define: { "import.meta.env.VITE_OFFLINE": JSON.stringify(mode.endsWith("publish")) },
  resolve: { alias: mode.startsWith("fake") ? [{ find: /^\.\.\/api\/index$/, replacement: here("tests/fake.ts") }] : [] },
  worker: { format: "es" },
  build: {
    target: "es2022",
    assetsInlineLimit: 0,
    rollupOptions: { input: [here("index.html"), ...(mode !== "production" ? [] : [here("example.html")])] },
  },
}));
