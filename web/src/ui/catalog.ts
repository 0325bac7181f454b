/** Bases that a tab can train and fetch with one click. */

import type { GpuInfo } from "../api/index";
import { bytes } from "./format";

export interface Offer {
  name: string;
  about: string;
  url: string;
  /** Size of the file. */
  bytes: number;
  /** GPU memory of training with rank 16 and rows of 512 tokens, as `bench --plan` says: the least, and without recomputing. */
  memory: string;
  licence: string;
  /** Size of its largest matrix, which is one buffer on the GPU. */
  largest: number;
}

const HUB = "https://huggingface.co";

export const OFFERS: Offer[] = [
  {
    name: "SmolLM2 135M Instruct",
    about: "small and quick, English",
    url: `${HUB}/bartowski/SmolLM2-135M-Instruct-GGUF/resolve/main/SmolLM2-135M-Instruct-Q8_0.gguf`,
    bytes: 144_811_456,
    memory: "0.3 to 0.9 GiB",
    licence: "Apache 2.0",
    largest: (49_152 * 576 * 34) / 32,
  },
  {
    name: "Gemma 3 270M",
    about: "many languages",
    url: `${HUB}/ggml-org/gemma-3-270m-it-GGUF/resolve/main/gemma-3-270m-it-Q8_0.gguf`,
    bytes: 291_545_600,
    memory: "0.5 to 0.9 GiB",
    licence: "Gemma terms",
    largest: (262_144 * 640 * 34) / 32,
  },
  {
    name: "Qwen 3 0.6B",
    about: "many languages, tools",
    url: `${HUB}/Qwen/Qwen3-0.6B-GGUF/resolve/main/Qwen3-0.6B-Q8_0.gguf`,
    bytes: 639_446_688,
    memory: "0.8 to 2.1 GiB",
    licence: "Apache 2.0",
    largest: (151_936 * 1024 * 34) / 32,
  },
  {
    name: "Gemma 3 1B",
    about: "many languages, the best of these",
    url: `${HUB}/ggml-org/gemma-3-1b-it-GGUF/resolve/main/gemma-3-1b-it-Q4_K_M.gguf`,
    bytes: 806_058_272,
    memory: "1.2 to 2.7 GiB",
    licence: "Gemma terms",
    largest: (262_144 * 1152 * 34) / 32, // its width is no multiple of 256, so that it is Q8_0
  },
];

/** Why this GPU cannot train a base with a matrix of `largest` bytes; empty if it can. */
export function whyNot({ largest }: Offer, gpu: GpuInfo): string {
  const most = Math.min(gpu.limits.maxBufferSize, gpu.limits.maxStorageBufferBindingSize);
  return largest > most ? `Its largest matrix has ${bytes(largest)}, and this GPU's buffers hold ${bytes(most)}.` : "";
}
