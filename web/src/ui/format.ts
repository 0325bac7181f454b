/** Formatting of numbers. */

const NARROW = "\u202f";

/** `13 148` */
export const count = (n: number) => String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, NARROW);

/** `35.6 MiB` */
export function bytes(n: number): string {
  if (n < 1024) return `${n} B`;
  const units = ["KiB", "MiB", "GiB"];
  const unit = Math.min(Math.floor(Math.log2(n) / 10), units.length) - 1;
  return `${(n / 1024 ** (unit + 1)).toFixed(1)} ${units[unit]}`;
}

/** `2 min 5 s` */
export function duration(seconds: number): string {
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

/** `0.4983`, or an em dash for null. */
export const decimal = (x: number | null, digits = 4) => (x === null ? "—" : x.toFixed(digits));

/** A loss with two digits that count: `1.24`, `0.0041` */
export const loss = (x: number | null) => (x === null ? "—" : x === 0 || x >= 0.095 ? x.toFixed(2) : x < 5e-5 ? "below 0.0001" : x.toFixed(Math.min(4, 1 - Math.floor(Math.log10(x)))));

/** `4.00e-3` */
export const scientific = (x: number) => x.toExponential(2);

export const percent = (x: number) => `${(100 * x).toFixed(1)}${NARROW}%`;

/** A fraction that may be missing. */
export const share = (x: number | null | undefined) => (x == null ? "—" : percent(x));

/** `1 sample`, `2 samples` */
export const plural = (n: number, word: string) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
