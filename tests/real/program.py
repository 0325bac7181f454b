"""Runs the program on the real model."""
import json
import os
import subprocess

RECIPE = """[model]
base = "{base}"

[lora]
rank = {rank}
alpha = {alpha}
{lora}

[data]
train = "{train}"
val_size = 0
max_seq_len = {tokens}
packing = false
shuffle = false
cache = false

[train]
epochs = 1
learning_rate = {rate}
lr_scheduler = "cosine"
warmup_steps = {warmup}
max_grad_norm = 1.0

[eval]
general = false

[output]
dir = "{output}"
save_steps = 0

[device]
kernels = "f32"
"""


class Failed(Exception):
    """The program ended with an error. `str()` is what it printed."""


class Program:
    """The program at `path`, working on the model `base` in `folder`."""

    def __init__(self, path, base, folder):
        self.path, self.base, self.folder = os.path.abspath(path), os.path.abspath(base), folder

    def run(self, *arguments):
        """-> what the command printed on stdout."""
        command = [self.path, *map(str, arguments)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"{' '.join(command[1:])} gave {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def at(self, name):
        """-> path of a file in the folder."""
        return os.path.join(self.folder, name)

    def rows(self, name, samples):
        """Writes samples as JSON Lines. -> the file's name"""
        with open(self.at(name), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(sample) + "\n" for sample in samples)
        return name

    def recipe(self, name, train, output, lora="", **values):
        """Writes a recipe. -> its name"""
        known = dict(base=self.base, train=train, output=output, lora=lora, rank=8, alpha=16, tokens=64, rate=1e-3, warmup=0)
        with open(self.at(name), "w") as file:
            file.write(RECIPE.format(**{**known, **values}))
        return name

    def losses(self, recipe, rows, *adapter, base=None):
        """-> mean losses of the rows by `eval`: that of the base, and of the base with the adapter if there is one"""
        base = ["--set", f"model.base={base}"] if base else []
        adapter = ["--adapter", *adapter] if adapter else []
        return [result["eval_loss"] for result in json.loads(self.run("eval", recipe, *base, "--data", rows, "--json", *adapter))["results"]]

    def source_losses(self, recipe, files):
        """-> mean loss of the base in each of the files"""
        data = [argument for file in files for argument in ("--data", file)]
        return [source["eval_loss"] for source in json.loads(self.run("eval", recipe, *data, "--json"))["results"][0]["sources"]]

    def reply(self, prompt, most, *adapter, base=None):
        """-> the greedy reply to a user's message, as `generate --json` prints it"""
        adapter = ["--adapter", *adapter] if adapter else []
        options = ["--temperature", 0, "--max-tokens", most, "--context", 512, "--json"]
        return json.loads(self.run("generate", base or self.base, "--prompt", prompt, *options, *adapter))
