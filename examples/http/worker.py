#!/usr/bin/env python3
"""A worker in Python, with nothing but its standard library and a Postrider server.

    postrider serve &
    postrider send orders '{"item": "tea"}'
    python3 examples/http/worker.py orders

It leases one message at a time, keeps the lease alive while it works, and acknowledges. An exception is a failed
attempt: the message comes back later, and goes to the dead letters when it has been delivered too often. `Hopeless`
sends it there at once. SIGTERM and SIGINT let the message in hand be finished.

Environment: POSTRIDER_URL (http://127.0.0.1:8025), POSTRIDER_TOKEN (when the server has tokens),
POSTRIDER_STOP_WHEN_EMPTY=1 (end when nothing has come for a second).
"""

import json
import os
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request

URL = os.environ.get("POSTRIDER_URL", "http://127.0.0.1:8025").rstrip("/")
TOKEN = os.environ.get("POSTRIDER_TOKEN")
STOP_WHEN_EMPTY = os.environ.get("POSTRIDER_STOP_WHEN_EMPTY") == "1"
LEASE_SECONDS = 30

stop = threading.Event()


class Hopeless(Exception):
    """Trying again will not help."""


class Refused(Exception):
    """The server's own words, and whether they are about who we are."""

    def __init__(self, error):
        try:
            problem = json.load(error)
            text = f"{problem['code']}: {problem['detail']}"
        except (ValueError, KeyError, TypeError):
            # Something between us and the server has answered.
            text = f"{error.url} answers {error.code}, and not as Postrider does"
        super().__init__(text)
        self.is_about_us = error.code in (401, 403)


def handle(message):
    """The work. Replace it by yours."""
    order = json.loads(message["body"])
    if "item" not in order:
        raise Hopeless("there is no item in the order")
    if order["item"] == "unicorn":
        raise RuntimeError("no unicorns today")
    print(f"packed {order['item']} (delivery {message['receive_count']})", flush=True)


def call(path, body, timeout=30):
    """Asks the server. A refusal is an exception with the server's own words."""
    headers = {"Content-Type": "application/json"}
    if TOKEN:
        headers["Authorization"] = f"Bearer {TOKEN}"
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise Refused(error) from error


def settle(settlement):
    """Ends a lease. When it is over already, somebody else has the message, and there is nothing to do."""
    try:
        row = call("/v1/messages/settle", {"settlements": [settlement]})["results"][0]
    except (OSError, Refused) as error:
        # The message comes back when its lease ends.
        print(f"not settled: {error}", file=sys.stderr, flush=True)
        return
    if "problem" in row:
        print(f"not settled: {row['problem']['detail']}", file=sys.stderr, flush=True)


class Heartbeat(threading.Thread):
    """Keeps a lease alive until the work is done."""

    def __init__(self, receipt):
        super().__init__(daemon=True)
        self.receipt = receipt
        self.done = threading.Event()

    def run(self):
        while not self.done.wait(LEASE_SECONDS / 3):
            try:
                call("/v1/messages/extend", {"receipts": [self.receipt], "visibility": f"{LEASE_SECONDS}s"})
            except (OSError, Refused) as error:
                print(f"the lease could not be extended: {error}", file=sys.stderr, flush=True)


def work(message):
    receipt = message["receipt"]
    heartbeat = Heartbeat(receipt)
    heartbeat.start()
    try:
        handle(message)
        outcome = {"outcome": "ack"}
    except (Hopeless, json.JSONDecodeError) as error:
        outcome = {"outcome": "dead_letter", "reason": "rejected", "error": str(error)}
    except Exception as error:
        outcome = {"outcome": "retry", "error": str(error)}
    finally:
        heartbeat.done.set()
    settle({"receipt": receipt, **outcome})


def main():
    queue = sys.argv[1] if len(sys.argv) > 1 else "orders"
    name = f"{socket.gethostname()}:{os.getpid()}"
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    wait = 1 if STOP_WHEN_EMPTY else 20
    while not stop.is_set():
        ask = {"max": 1, "visibility": f"{LEASE_SECONDS}s", "wait": f"{wait}s", "worker": name}
        try:
            messages = call(f"/v1/queues/{queue}/receive", ask, timeout=wait + 30)["messages"]
        except (OSError, Refused) as error:
            print(f"nothing was received: {error}", file=sys.stderr, flush=True)
            if getattr(error, "is_about_us", False):
                sys.exit(1)
            stop.wait(1)
            continue
        if not messages and STOP_WHEN_EMPTY:
            return
        for message in messages:
            work(message)


if __name__ == "__main__":
    main()
