/** Samples as a sheet. */

import { expect, test, type Page } from "@playwright/test";
import { linesOf, rowsIn } from "../../src/ui/sheet";
import { open, saved, trainToTheEnd } from "./page";

const cell = (page: Page, name: string, row: number) => page.getByLabel(`${name}, row ${row}`, { exact: true });
const read = (page: Page) => page.evaluate(() => (globalThis as { read?: { text: string; name: string } }).read ?? { text: "", name: "" });

/** Pastes text into the cell that has the focus. */
const paste = (page: Page, text: string) =>
  page.evaluate((given) => {
    const clipboardData = new DataTransfer();
    clipboardData.setData("text/plain", given);
    document.activeElement!.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
  }, text);

test("rows are found in tables and in conversations of one turn", () => {
  expect(rowsIn("Hi\tAhoy!\nBye\tSo long")).toEqual([["Hi", "Ahoy!"], ["Bye", "So long"]]);
  expect(rowsIn("id;Kundenfrage;Unsere Antwort\n1;Wann?;Morgen.")).toEqual([["Wann?", "Morgen."]]);
  expect(rowsIn("Q: 1+1?\nA: 2\nQ: 2+2?\nA: 4")).toEqual([["1+1?", "2"], ["2+2?", "4"]]);
  expect(rowsIn('{"prompt": "a", "completion": "b"}')).toEqual([["a", "b"]]);
  expect(rowsIn("User: a\nAssistant: b\nUser: c\nAssistant: d")).toBeNull();
  expect(rowsIn("a line\nand another")).toBeNull();
  expect(linesOf([["a", "b"], ["c", " "], ["", ""]])).toEqual({ text: '{"prompt":"a","completion":"b"}', count: 1, half: 1 });
});

test("samples are typed, pasted and deleted in a sheet, trained, and there again after a reload", async ({ page }) => {
  await open(page);
  await page.getByLabel("A sheet").check();
  await cell(page, "When someone says", 1).fill("Hi");
  await expect(page.locator("#sheet-note")).toHaveText("1 row with one side only is left out.");
  await cell(page, "it answers", 1).fill("Ahoy!");
  await expect(page.locator("#sheet-note")).toBeEmpty();
  await expect(page.locator("#samples")).toContainText("1 sample");
  expect(await read(page)).toMatchObject({ name: "sheet.jsonl", text: '{"prompt":"Hi","completion":"Ahoy!"}' });
  await cell(page, "When someone says", 2).focus();
  await paste(page, "Bye\tSo long\nWho?\tMe");
  await expect(page.getByRole("table", { name: "Sheet of samples" }).locator("tbody tr")).toHaveCount(4);
  await expect(cell(page, "it answers", 3)).toHaveValue("Me");
  await expect(page.locator("#samples")).toContainText("3 samples");
  await page.getByRole("button", { name: "Delete row 2" }).click();
  await expect(cell(page, "When someone says", 2)).toHaveValue("Who?");
  await expect(page.locator("#samples")).toContainText("2 samples");
  await trainToTheEnd(page);
  await page.reload();
  await expect(cell(page, "When someone says", 2)).toHaveValue("Who?");
  await expect(saved(page)).toContainText("Finished");
});

test("pasted pairs can be edited in the sheet", async ({ page }) => {
  await open(page);
  await page.getByLabel("Pasted text").check();
  await page.getByLabel("JSON Lines, a table").fill("Q: 1+1?\nA: 2\nQ: 2+2?\nA: 4");
  await page.getByRole("button", { name: "Edit in the sheet" }).click();
  await expect(page.getByLabel("A sheet")).toBeChecked();
  await expect(cell(page, "it answers", 2)).toHaveValue("4");
});

test("files that are dropped onto the sheet become rows below those that are filled", async ({ page }) => {
  await open(page);
  await page.getByLabel("A sheet").check();
  await cell(page, "When someone says", 1).fill("Hi");
  await cell(page, "it answers", 1).fill("Ahoy!");
  const drop = async (name: string, text: string) => {
    const dataTransfer = await page.evaluateHandle(([name, text]) => {
      const transfer = new DataTransfer();
      transfer.items.add(new File([text!], name!));
      return transfer;
    }, [name, text]);
    await page.dispatchEvent("body", "drop", { dataTransfer });
  };
  await drop("faq.csv", "Frage;Antwort\nWann?;Morgen.\nWo?;Hier.");
  await expect(cell(page, "it answers", 3)).toHaveValue("Hier.");
  await expect(cell(page, "When someone says", 1)).toHaveValue("Hi");
  await drop("more.jsonl", '{"prompt": "Who?", "completion": "Me"}');
  await expect(cell(page, "it answers", 4)).toHaveValue("Me");
  await expect.poll(async () => (await read(page)).text.split("\n").length).toBe(4);
  await drop("long.txt", "A text of its own.\nIt has no questions.");
  await expect(page.getByLabel("Your files")).toBeChecked();
  await expect(page.locator("#data-list")).toContainText("long.txt");
});
