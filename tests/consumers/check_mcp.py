"""The published client of the Model Context Protocol (PyPI: mcp) lists the tools of `rullama-train mcp`, trains the built-in model and asks it.

    pip install mcp && python3 tests/consumers/check_mcp.py target/release/rullama-train
"""

import asyncio
import pathlib
import sys
import tempfile

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

SAMPLES = pathlib.Path(__file__).parents[2] / "datasets" / "pirate.jsonl"


def structured(result):
    return getattr(result, "structured_content", None) or getattr(result, "structuredContent", None)


async def main(program):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "pirate.jsonl").write_bytes(SAMPLES.read_bytes())
        server = StdioServerParameters(command=program, args=["mcp", folder])
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            tools = [tool.name for tool in (await session.list_tools()).tools]
            print("tools", ", ".join(tools))

            async def call(tool, **arguments):
                result = await session.call_tool(tool, arguments)
                value = structured(result)
                failed = getattr(result, "is_error", None) or getattr(result, "isError", None)
                assert not failed, value
                return value

            bases = (await call("list_bases"))["models"]
            print("bases", ", ".join(base["model"] for base in bases))
            recipe = f"[data]\ntrain = '{folder}/pirate.jsonl'\nval_size = 20\n[train]\nmax_steps = 8\nlearning_rate = 4e-3\n"
            check = await call("check_recipe", base="tiny", recipe=recipe)
            print("check", check["steps"], "steps,", check["plan"]["bytes"], "bytes")
            run = (await call("start_training", base="tiny", recipe=recipe))["run"]
            position, over, losses = 0, False, []
            while not over:
                answer = await call("training_events", **{"from": position, "wait_seconds": 60})
                position, over = answer["next"], answer["over"]
                losses += [event["loss"] for event in answer["events"] if event.get("event") == "step"]
            print("losses", losses[0], "to", losses[-1])
            assert losses[-1] < losses[0]
            reply = await call("ask", base="tiny", run=run, prompt="What is the capital of Peru?", max_new_tokens=24)
            print("reply", reply["reply"])
            refused = await session.call_tool("check_recipe", {"base": "tiny", "recipe": "[data]\ntrain = '/etc/passwd'\n"})
            problem = structured(refused)["problem"]["message"]
            print("refused", problem)
            assert "neither among the files" in problem


asyncio.run(main(str(pathlib.Path(sys.argv[1]).resolve())))
