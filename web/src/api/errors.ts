/** What can go wrong. Every message says what was found, what was expected, and the next step. */

/** The base, the samples, the adapter or the device: anything that is not one of the others. */
export class TrainError extends Error {
  override name = "TrainError";
}

/** The recipe: where, if that is one place. */
export class RecipeError extends TrainError {
  override name = "RecipeError";
  /** `section.key`. */
  readonly key: string | undefined;
  /** Line and column in characters, both from 1. */
  readonly line: number | undefined;
  readonly column: number | undefined;

  constructor(message: string, place: { key?: string; line?: number; column?: number } = {}) {
    super(message);
    ({ key: this.key, line: this.line, column: this.column } = place);
  }
}

/** The browser took the device away. Make a new trainer with `init`, and go on from the last checkpoint. */
export class DeviceLost extends TrainError {
  override name = "DeviceLost";
}
