// The page as static files with relative addresses, so that any folder of any host can serve it.
import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));

// What a worker with shared memory asks for; `rullama-train web` sends the same.
const headers = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
};

export default defineConfig(({ mode }) => ({
  base: "./",
  server: { headers, fs: { allow: [here("..")] } }, // recipes, samples and the tiny model lie beside web/
  preview: { headers },
  // `--mode fake`: the page's own tests, without model and GPU.
  resolve: { alias: mode === "fake" ? [{ find: /^\.\.\/api\/index$/, replacement: here("tests/fake.ts") }] : [] },
  worker: { format: "es" },
  build: {
    target: "es2022",
    assetsInlineLimit: 0,
    rollupOptions: { input: [here("index.html"), ...(mode === "fake" ? [] : [here("example.html")])] },
  },
}));
