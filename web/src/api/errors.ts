/** What can go wrong. Every message says what was found, what was expected, and the next step. */

/** The base, the samples, the adapter or the device: anything that is not one of the others. */
export class TrainError extends Error {
  override name = "TrainError";
}

/** The recipe: where, if that is one place. */
export class RecipeError extends TrainError {
  override name = "RecipeError";
  constructor(
    message: string,
    /** `section.key`. */
    readonly key?: string,
    /** Line and column in characters, both from 1. */
    readonly line?: number,
    readonly column?: number,
  ) {
    super(message);
  }
}

/** The browser took the device away. Make a new trainer with `init`, and go on from the last checkpoint. */
export class DeviceLost extends TrainError {
  override name = "DeviceLost";
}
