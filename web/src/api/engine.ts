/** Which engine computes for the page: the browser, or the program that serves the page (`rullama-train ui`). */

/** Whether the program that serves the page computes. It marks the page so. */
export const isNative = (): boolean => globalThis.document?.querySelector('meta[name="engine"][content="native"]') != null;
