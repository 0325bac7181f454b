/** An observable value. */
export class Cell<T> {
  #value: T;
  #listeners: ((value: T) => void)[] = [];

  constructor(value: T) {
    this.#value = value;
  }

  get(): T {
    return this.#value;
  }

  set(value: T): void {
    this.#value = value;
    for (const listener of this.#listeners) listener(value);
  }

  /** Calls `listener` now and on every change. */
  watch(listener: (value: T) => void): void {
    this.#listeners.push(listener);
    listener(this.#value);
  }

  /** Waits until the value is `wanted`. */
  until(wanted: T): Promise<void> {
    return new Promise((done) => {
      const listener = (value: T) => {
        if (value !== wanted) return;
        this.#listeners = this.#listeners.filter((one) => one !== listener);
        done();
      };
      this.watch(listener);
    });
  }
}
