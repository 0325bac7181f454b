/** Errors of the API. Messages say what was found, what was expected, and the next step. */

/** An error with the base, the samples, the adapter or the device. */
export class TrainError extends Error {
  override name = "TrainError";
}

/** An error in the recipe, with its position if there is one. */
export class RecipeError extends TrainError {
  override name = "RecipeError";
  /** The key, as `section.key`. */
  readonly key: string | undefined;
  /** Line and column in characters, from 1. */
  readonly line: number | undefined;
  readonly column: number | undefined;

  constructor(message: string, place: { key?: string; line?: number; column?: number } = {}) {
    super(message);
    ({ key: this.key, line: this.line, column: this.column } = place);
  }
}

/** An error with the base: it cannot be read, or it cannot be trained. */
export class BaseError extends TrainError {
  override name = "BaseError";
}

/** The GPU was lost. Create a new trainer with `init` and resume from the last checkpoint. */
export class DeviceLost extends TrainError {
  override name = "DeviceLost";
}
