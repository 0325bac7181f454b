/** Example tasks for the tiny base: the recipes and samples of the program. */

import chat from "../../../recipes/chat.toml?raw";
import grpo from "../../../recipes/grpo.toml?raw";
import labels from "../../../recipes/labels.toml?raw";
import stories from "../../../recipes/stories.toml?raw";
import tools from "../../../recipes/tools.toml?raw";
import labelsData from "../../../datasets/labels.jsonl?url";
import pirateData from "../../../datasets/pirate.jsonl?url";
import storiesData from "../../../datasets/stories.jsonl?url";
import sumsData from "../../../datasets/sums.jsonl?url";
import toolsData from "../../../datasets/tools.jsonl?url";
import { quoteList, setValue } from "./toml";

export interface Task {
  title: string;
  recipe: string;
  /** Name of the samples in the recipe. */
  file: string;
  url: string;
}

/** The chat recipe with fewer steps and shorter answers, which are enough to see the change: a first visit should not wait. */
function short(recipe: string): string {
  const questions = ["What is the capital of Peru?", "What color is snow?", "Repeat after me: river."];
  const settings: [string, string, string][] = [
    ["train", "max_steps", "7"],
    ["data", "val_size", "8"],
    ["eval", "samples", quoteList(questions)],
  ];
  return settings.reduce((text, setting) => setValue(text, ...setting), recipe);
}

/** The recipe for rewards with a third of its steps, which answer nearly all questions right. */
const fewer = (recipe: string) => setValue(recipe, "train", "max_steps", "20");

export const TASKS: Record<string, Task> = {
  chat: { title: "A persona: answer as a pirate", recipe: short(chat), file: "datasets/pirate.jsonl", url: pirateData },
  tools: { title: "Tools: answer with a call, as JSON", recipe: tools, file: "datasets/tools.jsonl", url: toolsData },
  labels: { title: "Labels: answer with a message's label", recipe: labels, file: "datasets/labels.jsonl", url: labelsData },
  sums: { title: "Rewards: find out what a question asks for", recipe: fewer(grpo), file: "datasets/sums.jsonl", url: sumsData },
  stories: { title: "Stories: continue plain text", recipe: stories, file: "datasets/stories.jsonl", url: storiesData },
};

/** The samples of a task. */
export async function samples(task: Task): Promise<Blob> {
  const response = await fetch(task.url);
  if (!response.ok) throw new Error(`${task.file}: the server responded ${response.status}; reload the page`);
  return response.blob();
}
