/** Shorthands for the DOM. */

/** The element with this id in `index.html`. */
export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

type Child = Node | string;

/** Creates an element: `el("p", { class: "note" }, "text")`. */
export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A button that calls `act`. */
export function button(text: string, act: () => void, attributes: Record<string, string> = {}): HTMLButtonElement {
  const made = el("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", act);
  return made;
}

/** Shows the parts of `section` for the selected radio button. `changed` is called with its value. */
export function choice<T extends string>(section: HTMLElement, name: string, changed: (kind: T) => void) {
  const radios = [...section.querySelectorAll<HTMLInputElement>(`input[name=${name}]`)];
  const show = (kind: string) => {
    for (const part of section.querySelectorAll<HTMLElement>("[data-for]")) part.hidden = part.dataset["for"] !== kind;
  };
  for (const radio of radios) {
    radio.addEventListener("change", () => {
      show(radio.value);
      changed(radio.value as T);
    });
  }
  return {
    /** Selects a button without calling `changed`. */
    pick(kind: T) {
      for (const radio of radios) radio.checked = radio.value === kind;
      show(kind);
    },
  };
}
