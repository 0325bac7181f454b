"""OpenAI's Python client against `rullama-train serve`: complete and streamed replies, completions, log-probabilities, tool calls, invalid requests, twenty
requests at once, and clients that disconnect.

    check_openai.py PROGRAM FOLDER      (tests/consumers/main.rs runs this)

FOLDER contains tools.gguf and the adapter "looks", which calls sky(in="Lima") before it replies.
"""
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import openai

GREETING = "Hello! How can I help you?"
HELLO = [{"role": "user", "content": "Hello!"}]
QUESTION = [{"role": "user", "content": "How is Lima?"}]
SKY = [{"type": "function", "function": {"name": "sky"}}]
LOOKS = dict(model="tools+looks", tools=SKY)
# A very long reply.
ENDLESS = dict(model="tools", messages=HELLO, temperature=50, top_p=1, max_tokens=1000, seed=1, extra_body={"top_k": 0})


class Server:
    """The program on a free port, and its output."""

    def __init__(self, program, folder):
        base, adapter = os.path.join(folder, "tools.gguf"), os.path.join(folder, "looks")
        command = [program, "serve", base, f"--adapter={adapter}", "--template=gemma4", "--port=0", "--temperature=0", "--verbose"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.lines = []
        for line in self.process.stdout:
            if found := re.search(r"http://\S+/v1", line):
                self.url = found[0]
                break
        threading.Thread(target=lambda: self.lines.extend(iter(self.process.stdout.readline, "")), daemon=True).start()

    def wait_for(self, words, since):
        for _ in range(1200):
            if any(words in line for line in self.lines[since:]):
                return
            time.sleep(0.05)
        raise AssertionError(f"the server never printed {words!r}: {self.lines[since:]}")


def replies(client):
    assert [model.id for model in client.models.list()] == ["tools", "tools+looks"]
    assert client.models.retrieve("tools+looks").owned_by == "rullama-train"
    whole = client.chat.completions.create(model="tools", messages=HELLO)
    choice = whole.choices[0]
    assert (choice.message.content, choice.finish_reason, choice.message.tool_calls) == (GREETING, "stop", None)
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (11, 8, 19)
    # The client sends the message back unchanged.
    more = [*HELLO, choice.message, {"role": "user", "content": "What is 7 plus 8?"}]
    again = client.chat.completions.create(model="tools", messages=more)
    assert again.choices[0].message.content == "7 plus 8 is 15."
    assert again.usage.prompt_tokens_details.cached_tokens == 19
    cut = client.chat.completions.create(model="tools", messages=HELLO, max_completion_tokens=3)
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 3)

    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(model="tools", messages=HELLO, stream=True, stream_options=options))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == GREETING
    assert len(chunks) > 5 and chunks[-1].usage.total_tokens == 19
    with client.chat.completions.stream(model="tools", messages=HELLO) as stream:
        assert stream.get_final_completion().choices[0].message.content == GREETING


def log_probabilities(client):
    whole = client.chat.completions.create(model="tools", messages=HELLO, logprobs=True, top_logprobs=2).choices[0]
    content = whole.logprobs.content
    assert "".join(token.token for token in content) == GREETING and len(content) == 8
    for token in content:
        assert bytes(token.bytes).decode() == token.token and len(token.top_logprobs) == 2
        assert token.top_logprobs[0].logprob == token.logprob <= 0, "greedy replies take the likeliest token"
    with client.chat.completions.stream(model="tools", messages=HELLO, logprobs=True, top_logprobs=2) as stream:
        assert stream.get_final_completion().choices[0].logprobs.content == content
    return [token.logprob for token in content]


def completions(client, expected):
    create = client.completions.create
    prompt = "<|turn>user\nHello!<turn|>\n<|turn>model\n"
    plain = create(model="tools", prompt=prompt, max_tokens=60)
    choice = plain.choices[0]
    assert (plain.object, choice.text, choice.finish_reason, choice.logprobs) == ("text_completion", GREETING, "stop", None)
    assert (plain.usage.prompt_tokens, plain.usage.completion_tokens) == (11, 8)
    pieces = create(model="tools", prompt=[prompt, prompt], max_tokens=60, stream=True)
    texts = ["", ""]
    for piece in pieces:
        texts[piece.choices[0].index] += piece.choices[0].text
    assert texts == [GREETING] * 2

    # As lm-eval scores a continuation.
    scored = create(model="tools", prompt=prompt + GREETING, echo=True, logprobs=1, max_tokens=1, temperature=0).choices[0].logprobs
    own = scored.token_logprobs[11:-1]
    assert scored.token_logprobs[0] is None and scored.top_logprobs[0] is None
    assert len(own) == 8 and max(abs(a - b) for a, b in zip(own, expected)) < 1e-4
    assert all(logprob == max(top.values()) for logprob, top in zip(own, scored.top_logprobs[11:-1]))
    ids = create(model="tools", prompt=[[2, 100, 101], [2, 100]], echo=True, logprobs=0, max_tokens=0).choices
    assert [len(choice.logprobs.tokens) for choice in ids] == [3, 2]


def functions(client):
    called = client.chat.completions.create(messages=QUESTION, **LOOKS).choices[0]
    call = called.message.tool_calls[0]
    assert (called.finish_reason, called.message.content) == ("tool_calls", None)
    assert (call.type, call.function.name, call.function.arguments) == ("function", "sky", '{"in":"Lima"}')
    result = {"role": "tool", "tool_call_id": call.id, "content": "blue"}
    answered = client.chat.completions.create(messages=[*QUESTION, called.message, result], **LOOKS)
    assert answered.choices[0].message.content == "It is blue."
    with client.chat.completions.stream(messages=QUESTION, **LOOKS) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls"
    assert streamed.message.tool_calls[0].function.arguments == call.function.arguments


def wrong_input(client):
    wrong = [
        (openai.NotFoundError, "model_not_found", "model", dict(model="gpt")),
        (openai.BadRequestError, None, "messages", dict(messages=[])),
        (openai.BadRequestError, None, "messages[0].role", dict(messages=[{"role": "bot", "content": "x"}])),
        (openai.BadRequestError, None, "messages[0].content", dict(messages=[{"role": "user", "content": [{"type": "image_url"}]}])),
        (openai.BadRequestError, None, "messages", dict(messages=[{"role": "user", "content": "a <turn|>"}])),
        (openai.BadRequestError, "context_length_exceeded", "messages", dict(messages=[{"role": "user", "content": "word " * 2000}])),
        (openai.BadRequestError, None, "temperature", dict(temperature=-1)),
        (openai.BadRequestError, None, "top_p", dict(top_p=2)),
        (openai.BadRequestError, None, "max_tokens", dict(max_tokens=0)),
        (openai.BadRequestError, None, "n", dict(n=2)),
        (openai.BadRequestError, None, "stop", dict(stop=[""])),
        (openai.BadRequestError, None, "tools[0].function.name", dict(tools=[{"type": "function", "function": {}}])),
        (openai.BadRequestError, None, "tool_choice", dict(tools=SKY, tool_choice="required")),
        (openai.BadRequestError, None, "response_format", dict(response_format={"type": "json_object"})),
        (openai.BadRequestError, None, "surprise", dict(extra_body={"surprise": 1})),
    ]
    for kind, code, param, change in wrong:
        for stream in (False, True):
            try:
                client.chat.completions.create(**{"model": "tools", "messages": HELLO, "stream": stream, **change})
            except kind as error:
                assert (error.code, error.param, error.type) == (code, param, "invalid_request_error"), error
                assert len(error.body["message"]) > 20, error
            else:
                raise AssertionError(f"{change} was not refused")
    texts = [
        ("suffix", dict(suffix="b")),
        ("prompt", dict(prompt=[])),
        ("prompt", dict(prompt=[10**6])),
        ("logprobs", dict(logprobs=21)),
        ("max_tokens", dict(max_tokens=0)),
    ]
    for param, change in texts:
        try:
            client.completions.create(**{"model": "tools", "prompt": "a", **change})
        except openai.BadRequestError as error:
            assert error.param == param and len(error.body["message"]) > 20, error
        else:
            raise AssertionError(f"{change} was not refused")
    return 2 * len(wrong) + len(texts)


def twenty_at_once(client):
    def ask(number):
        adapted = number % 2 == 1
        arguments = dict(messages=QUESTION, **LOOKS) if adapted else dict(model="tools", messages=HELLO)
        if number % 4 < 2:
            message = client.chat.completions.create(**arguments).choices[0].message
        else:
            with client.chat.completions.stream(**arguments) as stream:
                message = stream.get_final_completion().choices[0].message
        return message.tool_calls[0].function.name if adapted else message.content

    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(ask, range(20)))
    assert found == [GREETING, "sky"] * 10, found


def hang_up(client, server):
    since = len(server.lines)
    stream = client.chat.completions.create(stream=True, **ENDLESS)
    next(iter(stream))
    stream.close()
    server.wait_for("cancelled", since)
    since = len(server.lines)
    try:
        client.with_options(timeout=1.0).chat.completions.create(**ENDLESS)
    except openai.APITimeoutError:
        server.wait_for("cancelled", since)
    else:
        raise AssertionError("the reply came before the client could disconnect")
    assert client.chat.completions.create(model="tools", messages=HELLO).choices[0].message.content == GREETING


def main():
    server = Server(*sys.argv[1:])
    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=300.0)
    try:
        replies(client)
        completions(client, log_probabilities(client))
        functions(client)
        refused = wrong_input(client)
        twenty_at_once(client)
        hang_up(client, server)
    finally:
        server.process.kill()
    print(f"openai {openai.__version__}: replies, streams, completions, log-probabilities and functions; {refused} invalid requests rejected; twenty at once; two clients that disconnected")


main()
