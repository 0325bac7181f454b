// The page in a real Chromium, with WebGPU on the processor.
import { existsSync } from 'node:fs';
import { defineConfig } from '@playwright/test';

// A browser that is there already: Debian's; else the one that `npx playwright install chromium` fetches.
const installed = process.env.CHROMIUM ?? ['/usr/bin/chromium', '/usr/bin/chromium-browser'].find(existsSync);

export default defineConfig({
  testDir: 'tests',
  outputDir: 'test-results',
  // One device, played by the processor: tests in parallel would only wait for each other.
  workers: 1,
  fullyParallel: false,
  timeout: 120_000,
  reporter: [['list']],
  use: {
    baseURL: 'http://127.0.0.1:4173/',
    viewport: { width: 1280, height: 900 },
    launchOptions: {
      ...(installed && { executablePath: installed }),
      args: [
        '--no-sandbox',
        '--disable-quic',
        '--no-first-run',
        '--disable-background-networking',
        '--disable-component-update',
        '--disable-sync',
        '--enable-unsafe-webgpu',
        '--use-webgpu-adapter=swiftshader',
      ],
    },
  },
  webServer: {
    command: 'npx vite preview --host 127.0.0.1 --port 4173 --strictPort',
    url: 'http://127.0.0.1:4173/',
    reuseExistingServer: false,
  },
});
