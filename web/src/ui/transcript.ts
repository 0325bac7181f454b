/** Conversations written as `User: …` and `Assistant: …`, one line or more each. */

interface Message {
  role: "system" | "user" | "assistant";
  content: string;
}

const SYSTEM = /^(system)$/i;
const USER = /^(user|human|person|customer|client|student|question|q|prompt|instruction|input|me|you|frage|f|nutzer|kunde|pregunta|domanda|вопрос)$/i;
const ASSISTANT = /^(assistant|ai|bot|answer|a|response|output|completion|reply|chatgpt|gpt|claude|gemma|model|agent|support|teacher|antwort|réponse|respuesta|risposta|ответ)$/i;
/** Names of a question whose answer ends the sample. */
const SINGLE = /^(question|q|prompt|instruction|input|frage|f|pregunta|domanda|вопрос)$/i;

const LINE = /^\s*(?:\*\*|#+\s*)?([\p{L}][\p{L}\p{N} _.-]{0,30}?)\s*(?:\*\*)?\s*:\s*(?:\*\*)?(.*)$/u;

/** A turn, and whether an empty line or a rule is above it. */
interface Turn {
  name: string;
  text: string;
  apart: "no" | "line" | "rule";
}

/** The turns of a text whose first line names a speaker; `known` tells which names count. */
function turns(text: string, known: (name: string) => boolean): Turn[] | null {
  const found: Turn[] = [];
  let apart: Turn["apart"] = "no";
  for (const line of text.split(/\r?\n/)) {
    const [, name, rest] = LINE.exec(line) ?? [];
    if (/^\s*([-=*_]{3,})\s*$/.test(line)) apart = "rule";
    else if (name !== undefined && known(name)) {
      found.push({ name, text: rest!, apart });
      apart = "no";
    } else if (found.length === 0) {
      if (line.trim() !== "") return null;
    } else if (line.trim() === "") {
      if (apart === "no") apart = "line";
      found.at(-1)!.text += "\n";
    } else {
      found.at(-1)!.text += `\n${line}`;
      apart = "no";
    }
  }
  return found;
}

function conversations(found: Turn[], role: (name: string) => Message["role"]): Message[][] {
  const all: Message[][] = [];
  // An empty line does not end a conversation in which every turn stands apart.
  const loose = found.slice(1).every(({ apart }) => apart !== "no");
  for (const { name, text, apart } of found) {
    const message = { role: role(name), content: text.trim() };
    const last = all.at(-1)?.at(-1);
    const ended = last?.role === "assistant" && message.role !== "assistant";
    if (!last || (ended && (SINGLE.test(name) || message.role === "system" || apart === "rule" || (apart === "line" && !loose)))) all.push([message]);
    else if (last.role === message.role) last.content += `\n${message.content}`;
    else all.at(-1)!.push(message);
  }
  return all.map((one) => one.slice(0, one.findLastIndex(({ role }) => role === "assistant") + 1)).filter((one) => one.some(({ role }) => role === "user"));
}

/** Conversations with speakers of well-known names; null for other texts. */
export function findTranscript(text: string): Message[][] | null {
  const found = turns(text, (name) => SYSTEM.test(name) || USER.test(name) || ASSISTANT.test(name));
  const role = (name: string) => (SYSTEM.test(name) ? "system" : USER.test(name) ? "user" : "assistant");
  if (!found || found.length < 2) return null;
  const all = conversations(found, role);
  return all.length > 0 ? all : null;
}

/** Conversations in a text that is said to be one: the first speaker asks, all others answer; without names, the lines take turns. */
export function asTranscript(text: string): Message[][] {
  const known = findTranscript(text);
  if (known) return known;
  const named = turns(text, () => true);
  const first = named?.[0]?.name.toLowerCase();
  const found = named && new Set(named.map(({ name }) => name.toLowerCase())).size > 1 ? conversations(named, (name) => (name.toLowerCase() === first ? "user" : "assistant")) : [];
  if (found.length > 0) return found;
  const blocks = text.trim().split(/\r?\n\s*\r?\n/);
  const paired = blocks.map((block) => block.split(/\r?\n/)).filter((lines) => lines.length > 1);
  const pairs = blocks.length > 1 && paired.length === blocks.length ? paired : chunks(text.split(/\r?\n/).filter((line) => line.trim() !== ""));
  return pairs.map((lines) => lines.map((content, i): Message => ({ role: i % 2 === 0 ? "user" : "assistant", content: content.trim() }))).map((one) => one.slice(0, one.length - (one.length % 2)));
}

/** Pairs of lines. */
function chunks(lines: string[]): string[][] {
  const found: string[][] = [];
  for (let i = 0; i + 1 < lines.length; i += 2) found.push(lines.slice(i, i + 2));
  return found;
}
