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

  /** Calls `listener` now and on every change, until the function that is returned is called. */
  watch(listener: (value: T) => void): () => void {
    this.#listeners.push(listener);
    listener(this.#value);
    return () => (this.#listeners = this.#listeners.filter((one) => one !== listener));
  }

  /** Waits until the value is `wanted`. */
  until(wanted: T): Promise<void> {
    return when([this], () => this.#value === wanted);
  }
}

/** Waits until `holds`, which depends on the values of `cells`. */
export function when(cells: { watch(listener: () => void): () => void }[], holds: () => boolean): Promise<void> {
  return new Promise((done) => {
    const watched: (() => void)[] = [];
    let over = false;
    const look = () => {
      if (over || !holds()) return;
      over = true;
      for (const end of watched) end();
      done();
    };
    for (const cell of cells) if (!over) watched.push(cell.watch(look));
    if (over) for (const end of watched) end(); // it held at once
  });
}
