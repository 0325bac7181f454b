/**
 * Reads and changes single keys of a TOML text. All other characters stay as they are: comments, order, spaces.
 * The library checks whether the text is a valid recipe.
 */

/** The position of a value in the text. */
interface Place {
  section: string;
  key: string;
  start: number;
  end: number;
}

/** The end of the string or comment at `at`. */
function skip(text: string, at: number): number {
  for (const quotes of ['"""', "'''"]) {
    if (text.startsWith(quotes, at)) {
      const end = text.indexOf(quotes, at + 3);
      return end < 0 ? text.length : end + 3;
    }
  }
  const quote = text[at];
  if (quote === "#") {
    const end = text.indexOf("\n", at);
    return end < 0 ? text.length : end;
  }
  let end = at + 1;
  while (end < text.length && text[end] !== quote && text[end] !== "\n") end += quote === '"' && text[end] === "\\" ? 2 : 1;
  return Math.min(end + 1, text.length);
}

/** The end of the value at `start`: the end of its line outside strings and brackets, without comment and trailing spaces. */
function valueEnd(text: string, start: number): number {
  let depth = 0;
  let end = start;
  for (let at = start; at < text.length; ) {
    const c = text[at]!;
    if (c === "\n" && depth === 0) break;
    if (c === "#") {
      if (depth === 0) break;
      at = skip(text, at);
      continue;
    }
    if ("[{".includes(c)) depth += 1;
    if ("]}".includes(c)) depth -= 1;
    at = c === '"' || c === "'" ? skip(text, at) : at + 1;
    if (!/\s/.test(c)) end = at;
  }
  return end;
}

/** All `key = value` pairs of the text, and the start of the body of each `[section]`. */
function scan(text: string): { values: Place[]; sections: Map<string, number> } {
  const values: Place[] = [];
  const sections = new Map<string, number>();
  let section = "";
  const counts = new Map<string, number>();
  /** Further tables of a list have names of their own, which no section can have: `rewards#2`. */
  const numbered = (name: string, isItem: boolean) => {
    const count = (counts.get(name) ?? 0) + 1;
    counts.set(name, count);
    return isItem && count > 1 ? `${name}#${count}` : name;
  };
  for (let at = 0; at < text.length; ) {
    const lineEnd = text.indexOf("\n", at) < 0 ? text.length : text.indexOf("\n", at);
    const line = text.slice(at, lineEnd);
    const header = /^\s*\[\[?\s*([\w.-]+)\s*\]\]?/.exec(line);
    const pair = /^\s*([\w.-]+)\s*=[ \t]*/.exec(line);
    if (header) {
      section = numbered(header[1]!, /^\s*\[\[/.test(line));
      if (!sections.has(section)) sections.set(section, Math.min(lineEnd + 1, text.length));
    } else if (pair) {
      const start = at + pair[0].length;
      const end = valueEnd(text, start);
      const dot = section === "" ? pair[1]!.indexOf(".") : -1; // lora.rank = 8, before any section
      const key = pair[1]!.slice(dot + 1);
      values.push({ section: dot < 0 ? section : pair[1]!.slice(0, dot), key, start, end });
      at = text.indexOf("\n", end) < 0 ? text.length : text.indexOf("\n", end) + 1;
      continue;
    }
    at = lineEnd + 1;
  }
  return { values, sections };
}

const find = (text: string, section: string, key: string) =>
  scan(text).values.find((place) => place.section === section && place.key === key);

/** Whether the text has a section as an inline table: `train = { … }`. */
export const isInline = (text: string, section: string) => find(text, "", section) !== undefined;

/** All values as written, under `section.key`. */
export const allValues = (text: string): Map<string, string> =>
  new Map(scan(text).values.map(({ section, key, start, end }) => [section === "" ? key : `${section}.${key}`, text.slice(start, end)]));

/** The value as written in the text, or null if the key is missing. */
export function getValue(text: string, section: string, key: string): string | null {
  const place = find(text, section, key);
  return place ? text.slice(place.start, place.end) : null;
}

/** Sets a value: replaces the old one, uncomments `# key = …`, or adds a line to the section. */
export function setValue(text: string, section: string, key: string, value: string): string {
  const place = find(text, section, key);
  if (place) return text.slice(0, place.start) + value + text.slice(place.end);
  const body = scan(text).sections.get(section);
  if (body === undefined) return `${text.trimEnd()}\n\n[${section}]\n${key} = ${value}\n`;
  const next = /^\s*\[/m.exec(text.slice(body));
  const end = next ? body + next.index : text.length;
  const commented = new RegExp(`^# ${key} = `, "m").exec(text.slice(body, end));
  if (commented) {
    const start = body + commented.index + commented[0].length;
    return `${text.slice(0, body + commented.index)}${key} = ${value}${text.slice(valueEnd(text, start))}`;
  }
  const glue = text[body - 1] === "\n" ? "" : "\n";
  return `${text.slice(0, body)}${glue}${key} = ${value}\n${text.slice(body)}`;
}

/** Comments a key out, so that its default applies. */
export function unsetValue(text: string, section: string, key: string): string {
  const place = find(text, section, key);
  if (!place) return text;
  const start = text.lastIndexOf("\n", place.start) + 1;
  const lines = text.slice(start, place.end).split("\n");
  return text.slice(0, start) + lines.map((line) => `# ${line}`).join("\n") + text.slice(place.end);
}

/** Quotes text as a TOML string. JSON's escapes are valid in TOML. */
export const quote = (text: string) => JSON.stringify(text).replaceAll("\x7f", "\\u007f");

/** Formats a list of strings: one per line if there are several. */
export const quoteList = (texts: string[]) =>
  texts.length < 2 ? `[${texts.map(quote).join("")}]` : `[\n${texts.map((text) => `    ${quote(text)},\n`).join("")}]`;

/** Parses a list of basic strings; null for anything else. */
export function readList(value: string): string[] | null {
  let bare = ""; // without comments
  for (let at = 0; at < value.length; ) {
    const inside = `"'#`.includes(value[at]!);
    const end = inside ? skip(value, at) : at + 1;
    if (value[at] !== "#") bare += value.slice(at, end);
    at = end;
  }
  try {
    const list: unknown = JSON.parse(bare.replace(/,(\s*)\]$/, "$1]"));
    return Array.isArray(list) && list.every((item) => typeof item === "string") ? list : null;
  } catch {
    return null;
  }
}
