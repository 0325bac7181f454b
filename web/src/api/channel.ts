/** An async queue: one side puts values, the other iterates over them until the end or an error. */
export class Channel<T> implements AsyncIterableIterator<T> {
  #values: T[] = [];
  #end: { error?: unknown } | undefined;
  #wake: (() => void) | undefined;
  readonly #onReturn: () => void;

  /** `onReturn` is called if the reader leaves its loop early. */
  constructor(onReturn: () => void) {
    this.#onReturn = onReturn;
  }

  put(value: T): void {
    this.#values.push(value);
    this.#wake?.();
  }

  end(error?: unknown): void {
    this.#end ??= error === undefined ? {} : { error };
    this.#wake?.();
  }

  async next(): Promise<IteratorResult<T>> {
    for (;;) {
      if (this.#values.length > 0) return { done: false, value: this.#values.shift() as T };
      if (this.#end) {
        const { error } = this.#end;
        this.#end = {};
        if (error !== undefined) throw error;
        return { done: true, value: undefined };
      }
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  async return(): Promise<IteratorResult<T>> {
    this.#onReturn();
    this.end();
    return { done: true, value: undefined };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}
