/**
 * A GGUF with the shape of Qwen 3 0.6B in Q8_0, 604 MiB: random weights, and a vocabulary of bytes and made-up words. It is never a
 * file: the server makes its bytes while it sends them.
 */

import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";

const [LAYERS, WIDTH, FFN, HEADS, KV_HEADS, HEAD, VOCAB] = [28, 1024, 3072, 16, 8, 128, 151_936];
const [F32, Q8_0] = [0, 8]; // types of tensors
const BLOCK = 34; // bytes of a block of 32 weights: a factor in f16, and 32 integers
const FACTOR = 0x0c00; // 2^-12: weights with a standard deviation of 0.018
const ALIGNMENT = 32;

interface Tensor {
  name: string;
  shape: number[];
  type: number;
  bytes: number;
}

const vector = (name: string, size: number): Tensor => ({ name: `${name}.weight`, shape: [size], type: F32, bytes: 4 * size });

const matrix = (name: string, columns: number, rows: number): Tensor => ({ name: `${name}.weight`, shape: [columns, rows], type: Q8_0, bytes: (columns * rows * BLOCK) / 32 });

const layer = (index: number): Tensor[] => {
  const at = `blk.${index}`;
  return [
    vector(`${at}.attn_norm`, WIDTH),
    matrix(`${at}.attn_q`, WIDTH, HEADS * HEAD),
    matrix(`${at}.attn_k`, WIDTH, KV_HEADS * HEAD),
    matrix(`${at}.attn_v`, WIDTH, KV_HEADS * HEAD),
    vector(`${at}.attn_q_norm`, HEAD),
    vector(`${at}.attn_k_norm`, HEAD),
    matrix(`${at}.attn_output`, HEADS * HEAD, WIDTH),
    vector(`${at}.ffn_norm`, WIDTH),
    matrix(`${at}.ffn_gate`, WIDTH, FFN),
    matrix(`${at}.ffn_up`, WIDTH, FFN),
    matrix(`${at}.ffn_down`, FFN, WIDTH),
  ];
};

const TENSORS = [matrix("token_embd", WIDTH, VOCAB), vector("output_norm", WIDTH), ...Array.from({ length: LAYERS }, (_, index) => layer(index)).flat()];

/** The characters that byte-level vocabularies have for the 256 bytes. */
function byteCharacters(): string[] {
  const printable = (byte: number) => (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(printable(byte) ? byte : next++));
}

const SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const NAMED = [...byteCharacters(), ...SPECIAL, "th"];
const TOKENS = Array.from({ length: VOCAB }, (_, id) => NAMED[id] ?? `Ġw${id}`);

const u32 = (value: number) => Buffer.from(Uint32Array.of(value).buffer);
const u64 = (value: number) => Buffer.from(BigUint64Array.of(BigInt(value)).buffer);
const f32 = (value: number) => Buffer.from(Float32Array.of(value).buffer);
const text = (value: string) => Buffer.concat([u64(Buffer.byteLength(value)), Buffer.from(value)]);
const list = (type: number, values: Buffer[]) => Buffer.concat([u32(type), u64(values.length), ...values]);

/** Keys with the type and the bytes of their values. */
const METADATA: [string, number, Buffer][] = [
  ["general.architecture", 8, text("qwen3")],
  ["general.name", 8, text("random qwen3-0.6b")],
  ["qwen3.block_count", 4, u32(LAYERS)],
  ["qwen3.context_length", 4, u32(40_960)],
  ["qwen3.embedding_length", 4, u32(WIDTH)],
  ["qwen3.feed_forward_length", 4, u32(FFN)],
  ["qwen3.attention.head_count", 4, u32(HEADS)],
  ["qwen3.attention.head_count_kv", 4, u32(KV_HEADS)],
  ["qwen3.attention.key_length", 4, u32(HEAD)],
  ["qwen3.attention.value_length", 4, u32(HEAD)],
  ["qwen3.attention.layer_norm_rms_epsilon", 6, f32(1e-6)],
  ["qwen3.rope.freq_base", 6, f32(1e6)],
  ["tokenizer.ggml.model", 8, text("gpt2")],
  ["tokenizer.ggml.pre", 8, text("qwen2")],
  ["tokenizer.ggml.tokens", 9, list(8, TOKENS.map(text))],
  ["tokenizer.ggml.token_type", 9, list(5, TOKENS.map((token) => u32(SPECIAL.includes(token) ? 3 : 1)))],
  ["tokenizer.ggml.merges", 9, list(8, [text("t h")])],
  ["tokenizer.ggml.eos_token_id", 4, u32(TOKENS.indexOf("<|im_end|>"))],
];

const aligned = (bytes: number) => Math.ceil(bytes / ALIGNMENT) * ALIGNMENT;

function header(): Buffer {
  let offset = 0;
  const about = TENSORS.map(({ name, shape, type, bytes }) => {
    const one = Buffer.concat([text(name), u32(shape.length), ...shape.map(u64), u32(type), u64(offset)]);
    offset += aligned(bytes);
    return one;
  });
  const keys = METADATA.map(([key, type, value]) => Buffer.concat([text(key), u32(type), value]));
  const all = Buffer.concat([Buffer.from("GGUF"), u32(3), u64(TENSORS.length), u64(METADATA.length), ...keys, ...about]);
  return Buffer.concat([all, Buffer.alloc(aligned(all.length) - all.length)]);
}

const HEADER = header();

/** Bytes of the whole file. */
export const SIZE = HEADER.length + TENSORS.reduce((sum, { bytes }) => sum + aligned(bytes), 0);

/** The bytes of the file in pieces, the same ones every time. */
function* contents(): Generator<Buffer> {
  yield HEADER;
  let state = 1;
  for (const { type, shape, bytes } of TENSORS) {
    const piece = type === F32 ? bytes : (shape[0]! / 32) * BLOCK;
    for (let done = 0; done < bytes; done += piece) {
      if (type === F32) yield Buffer.from(new Float32Array(piece / 4).fill(1).buffer);
      else yield blocks(piece / BLOCK);
    }
    yield Buffer.alloc(aligned(bytes) - bytes);
  }

  function blocks(count: number): Buffer {
    const row = new Uint32Array((count * BLOCK) / 4);
    for (let i = 0; i < row.length; i++) row[i] = state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
    const bytes = Buffer.from(row.buffer).swap32(); // the low bits of the sequence repeat soon
    for (let block = 0; block < count; block++) bytes.writeUInt16LE(FACTOR, block * BLOCK);
    return bytes;
  }
}

/** Serves the file to any page. `asked` counts the requests; `close` ends the server. */
export async function serveBase() {
  const asked: string[] = [];
  const server = createServer((request, response) => {
    asked.push(`${request.method} ${request.headers.range ?? "all"}`);
    void answer(response);
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/qwen3-0.6b-q8_0.gguf`, asked, close };
}

async function answer(response: ServerResponse): Promise<void> {
  response.writeHead(200, { "access-control-allow-origin": "*", "content-length": SIZE, "content-type": "application/octet-stream" });
  await pipeline(Readable.from(contents()), response);
}
