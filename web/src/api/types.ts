/** What goes in and out of the API. Events and the check are what the program writes with `--json`, by the same names. */

/** A base: the tiny model beside the WASM file, a GGUF on the user's disk, or one that a server hands out by ranges. */
export type Base = { kind: "tiny" } | { kind: "file"; file: File } | { kind: "url"; url: string };

/** Files of samples, by the names that the recipe's `data.train` and `data.valid` use. */
export type Data = { name: string; file: Blob }[];

/** A file in memory; folders are part of the path, as in `checkpoint-50/trainer_state.json`. */
export type FileEntry = { path: string; bytes: Uint8Array };

/** The device, and what it guarantees. */
export interface GpuInfo {
  /** Name, driver and interface, on one line. */
  name: string;
  /** Whether a CPU plays the GPU: slow, the same numbers. */
  software: boolean;
  limits: {
    maxBufferSize: number;
    maxStorageBufferBindingSize: number;
    maxStorageBuffersPerShaderStage: number;
    maxComputeWorkgroupStorageSize: number;
  };
}

/** How well the model predicts the validation samples. */
export interface Scores {
  /** Mean over the tokens that carry loss. */
  eval_loss: number;
  /** `e` to that. */
  eval_perplexity: number;
  /** Share of those tokens that were the likeliest ones, from 0 to 1. */
  eval_accuracy: number;
  /** Their number. */
  eval_tokens: number;
}

/** A line of the memory plan. */
export interface PlanLine {
  what: string;
  bytes: number;
}

/** What a recipe comes to, before anything is trained. */
export interface Check {
  /** The recipe with every default filled in, as TOML. */
  recipe: string;
  /** The base in one line: layers, width, vocabulary. */
  base: string;
  /** Trainable parameters. */
  parameters: number;
  /** The chat template in words. */
  template: string;
  /** Optimizer steps of the whole run. */
  steps: number;
  train: { samples: number; tokens: number; loss_tokens: number };
  validation: { samples: number; tokens: number; loss_tokens: number };
  /** The device memory that is needed, line by line, and in all. */
  plan: { lines: PlanLine[]; bytes: number };
  /** What the user should know: truncated samples, duplicates, another base than the adapter's … */
  warnings: string[];
}

/** What happens in a run. */
export type Event =
  /** Once, before the first step. `resumed_at` steps are behind it already. */
  | ({ event: "plan"; resumed_at: number } & Check)
  /** An optimizer step was taken, or left out where something in it was not finite. */
  | {
      event: "step";
      /** From 1. */
      step: number;
      /** Mean over the tokens that carry loss, before the update; null where it is not finite. */
      loss: number | null;
      /** Exponential mean of the losses so far. */
      smoothed: number | null;
      accuracy: number | null;
      /** Before clipping. */
      grad_norm: number | null;
      /** L2 norm of the update over that of the adapter. */
      update_ratio: number | null;
      learning_rate: number;
      tokens: number;
      skipped: boolean;
      seconds: number;
      tokens_per_second: number;
    }
  /** The validation samples after `step` steps; null where there are none. */
  | { event: "eval"; step: number; scores: Scores | null; best: boolean }
  /** A reply to one of the recipe's `eval.samples` after `step` steps. */
  | { event: "sample"; step: number; prompt: string; reply: string }
  /** Something that the user should look at. */
  | { event: "notice"; step: number; notice: string }
  /** The state after `step` steps, as files: `checkpoint-STEP/…`. Save them to go on later. */
  | { event: "checkpoint"; step: number; files: FileEntry[] }
  | { event: "paused"; step: number }
  | { event: "resumed"; step: number }
  /** The end. `adapter` is a PEFT folder; every format of `output.export` is in `files`. */
  | {
      event: "done";
      step: number;
      /** The step whose adapter this is: with `eval.keep_best` not always the last. */
      adapter_of_step: number;
      /** Whether `stop()` ended it; `files` then hold the last checkpoint, and `adapter` is null if nothing was trained. */
      stopped: boolean;
      adapter: FileEntry[] | null;
      files: FileEntry[];
      seconds: number;
    };

/** A message of a conversation. */
export interface Message {
  role: "system" | "user" | "assistant";
  content: string;
}

/** How a reply is made; what is left out is as Gemma's authors recommend. */
export interface Sampling {
  /** 0 takes the likeliest token; 1. */
  temperature?: number;
  /** 64; 0: all. */
  top_k?: number;
  /** 0.95. */
  top_p?: number;
  min_p?: number;
  repetition_penalty?: number;
  /** Decides every draw; 0. */
  seed?: number;
  /** 256. */
  max_new_tokens?: number;
  /** Texts that end the reply. */
  stop?: string[];
}

/** The forms in which an adapter is handed out. */
export type Format =
  | "peft"
  | "peft-conditional-generation"
  | "gguf-lora"
  | "gguf-lora-f16"
  | "mlx"
  | "rullama-v0";
