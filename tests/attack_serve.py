"""Attacks on `rullama-train serve`, run by hand: python3 tests/attack_serve.py target/release/rullama-train

Prints, per attack, how long another client waits for an answer, and the largest memory of the server. Fails if a client waits
longer than a second, or if the server takes more than 512 MiB. The machine must be idle.
"""

import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request

LONGEST_WAIT = 1.0  # seconds
MOST_MEMORY = 512  # MiB
BODY = json.dumps({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 1}).encode()


def start(program, limit):
    command = f"ulimit -n {limit}; exec {program} serve tiny --port 0"
    server = subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE, text=True)
    for line in server.stdout:
        if found := re.search(r"http://([\d.]+):(\d+)/", line):
            threading.Thread(target=server.stdout.read, daemon=True).start()
            return server, (found[1], int(found[2]))
    sys.exit("the server does not start")


def memory(server):
    status = open(f"/proc/{server.pid}/status").read()
    return {key: int(re.search(rf"{key}:\s+(\d+)", status)[1]) // 1024 for key in ("VmRSS", "VmHWM")}


def ask(address):
    """Seconds that another client waits for a reply."""
    begin = time.time()
    url = f"http://{address[0]}:{address[1]}/v1/chat/completions"
    request = urllib.request.Request(url, BODY, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        json.load(reply)
    return time.time() - begin


def connect(address):
    stream = socket.create_connection(address)
    stream.settimeout(60)
    return stream


def head(address, length, route="chat/completions"):
    host = f"{address[0]}:{address[1]}"
    return f"POST /v1/{route} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n".encode()


def send(stream, data):
    try:
        stream.sendall(data)
    except OSError:
        pass  # refused before its end


def idle(address):
    return [connect(address) for _ in range(500)]


def half_open(address):
    streams = idle(address)
    for stream in streams:
        send(stream, b"GET /v1/models HTTP/1.1\r\nHost: local")
    return streams


def large_bodies(address):
    streams = [connect(address) for _ in range(40)]
    for stream in streams:
        send(stream, head(address, 1_050_000) + b" " * 1_049_000)
    return streams


def too_large_bodies(address):
    streams = [connect(address) for _ in range(40)]
    threads = [threading.Thread(target=send, args=(s, head(address, 16 << 20) + b" " * (16 << 20))) for s in streams]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return streams


def headers(address):
    streams = [connect(address) for _ in range(100)]
    for stream in streams:
        send(stream, b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (n, b"y" * 1000) for n in range(1000)))
    return streams


def huge_prompts(address):
    streams = []
    for text in ["<" * 1_000_000, "a" * 1_000_000, "word " * 200_000] * 5:
        body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
        streams.append(connect(address))
        send(streams[-1], head(address, len(body)) + body)
    return streams


def complete(address, body):
    """Sends a request for completions and does not wait."""
    data = json.dumps(body).encode()
    stream = connect(address)
    send(stream, head(address, len(data), "completions") + data)
    return stream


def huge_lists(address):
    """Prompts that are refused: too long, too many, or too many tokens together."""
    long = [{"prompt": text} for text in ("<" * 1_000_000, "<turn|>" * 140_000, "word " * 200_000)]
    many = [{"prompt": ["a"] * 200_000}, {"prompt": [[2] * 1000] * 128, "echo": True, "logprobs": 20, "max_tokens": 0}, {"prompt": [2] * 400_000}]
    return [complete(address, body) for body in (long + many) * 5]


def scored_prompts(address):
    """Clients that want as many log-probabilities as one request may ask for, and leave."""
    body = {"prompt": [[2] * 100] * 128, "echo": True, "logprobs": 20, "max_tokens": 0, "stream": True}
    for _ in range(10):
        stream = complete(address, body)
        time.sleep(0.1)
        stream.close()
    return []


def leaves(address):
    for _ in range(20):
        body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1000, "temperature": 50, "top_k": 0}).encode()
        stream = connect(address)
        send(stream, head(address, len(body)) + body)
        time.sleep(0.05)
        stream.close()
    return []


def reads_nothing(address):
    """Clients that send requests until the server reads no more. It drops them after a minute."""
    streams = [connect(address) for _ in range(16)]
    requests = f"GET /v1/models HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n\r\n".encode() * 1000

    def flood(stream):
        stream.settimeout(120)
        try:
            while True:
                stream.sendall(requests)
        except TimeoutError:
            stayed.append(stream)
        except OSError:
            pass  # dropped

    stayed = []
    threads = [threading.Thread(target=flood, args=[stream]) for stream in streams]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    if stayed:
        sys.exit(f"{len(stayed)} clients that read nothing are still connected")
    return streams


def main():
    longest, most = 0, 0
    for limit in (1024, 256):
        server, address = start(sys.argv[1], limit)
        try:
            print(f"at most {limit} open files; alone: {ask(address):.2f} s, {memory(server)} MiB")
            for attack in (idle, half_open, large_bodies, too_large_bodies, headers, huge_prompts, huge_lists, scored_prompts, leaves, reads_nothing):
                held = attack(address)
                waits = [ask(address) for _ in range(3)]
                longest, most = max(longest, *waits), max(most, memory(server)["VmHWM"])
                print(f"  {attack.__name__:18} another client waits {max(waits):.2f} s at most; {memory(server)} MiB")
                [stream.close() for stream in held]
        finally:
            server.kill()
    print(f"longest wait {longest:.2f} s, most memory {most} MiB")
    sys.exit(longest > LONGEST_WAIT or most > MOST_MEMORY)


main()
