#!/usr/bin/env python3
"""A worker in Python, with nothing but its standard library and a Postrider server.

    postrider serve &
    postrider send orders '{"item": "tea"}'
    python3 examples/http/worker.py orders

It leases one message at a time, keeps the lease alive while it works, and acknowledges. An exception is a failed
attempt: the message comes back later, and goes to the dead letters when it has been delivered too often. `Hopeless`
sends it there at once. SIGTERM and SIGINT let the message in hand be finished, and end a wait at once: what the server
had leased for that wait goes back.

Environment: POSTRIDER_URL (http://127.0.0.1:8025), POSTRIDER_TOKEN (when the server has tokens),
POSTRIDER_STOP_WHEN_EMPTY=1 (end when nothing has come for a second).
"""

import http.client
import json
import os
import signal
import socket
import sys
import threading
import urllib.parse
import uuid

URL = os.environ.get("POSTRIDER_URL", "http://127.0.0.1:8025").rstrip("/")
TOKEN = os.environ.get("POSTRIDER_TOKEN")
STOP_WHEN_EMPTY = os.environ.get("POSTRIDER_STOP_WHEN_EMPTY") == "1"
LEASE_SECONDS = 30

stop = threading.Event()
# The connection that waits for messages, while one does.
waiting = None


def on_signal(*_):
    """Cuts a wait. An answer that has arrived can still be read; of another the server takes back what it had leased."""
    stop.set()
    try:
        if waiting is not None and waiting.sock is not None:
            waiting.sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


class Hopeless(Exception):
    """Trying again will not help."""


class Refused(Exception):
    """The server's own words, and whether they are about who we are."""

    def __init__(self, path, status, body):
        try:
            problem = json.loads(body)
            text = f"{problem['code']}: {problem['detail']}"
        except (ValueError, KeyError, TypeError):
            # Something between us and the server has answered.
            text = f"{URL}{path} answers {status}, and not as Postrider does"
        super().__init__(text)
        self.is_about_us = status in (401, 403)


# What a call to the server fails with.
UNDONE = (OSError, http.client.HTTPException, ValueError, Refused)


def handle(message):
    """The work. Replace it by yours."""
    order = json.loads(message["body"])
    if "item" not in order:
        raise Hopeless("there is no item in the order")
    if order["item"] == "unicorn":
        raise RuntimeError("no unicorns today")
    print(f"packed {order['item']} (delivery {message['receive_count']})", flush=True)


def connect(timeout=30):
    place = urllib.parse.urlsplit(URL)
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    connection = kind(place.hostname, place.port, timeout=timeout)
    connection.connect()
    return connection


def ask(connection, path, body):
    """Asks the server over a connection. A refusal is an exception with the server's own words."""
    headers = {"Content-Type": "application/json"}
    if TOKEN:
        headers["Authorization"] = f"Bearer {TOKEN}"
    connection.request("POST", urllib.parse.urlsplit(URL).path + path, json.dumps(body).encode(), headers)
    answer = connection.getresponse()
    read = answer.read()
    if answer.status >= 400:
        raise Refused(path, answer.status, read)
    return json.loads(read)


def call(path, body):
    """The same over a connection of its own."""
    connection = connect()
    try:
        return ask(connection, path, body)
    finally:
        connection.close()


def receive(queue, wanted, timeout):
    """Waits for messages, until a signal ends the wait."""
    global waiting
    connection = waiting = connect(timeout)
    try:
        # A signal that came before there was a connection to cut.
        return [] if stop.is_set() else ask(connection, f"/v1/queues/{queue}/receive", wanted)["messages"]
    finally:
        waiting = None
        connection.close()


def settle(settlement):
    """Ends a lease. When it is over already, somebody else has the message, and there is nothing to do."""
    try:
        row = call("/v1/messages/settle", {"settlements": [settlement]})["results"][0]
    except UNDONE as error:
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
                ask = {"receipts": [self.receipt], "visibility": f"{LEASE_SECONDS}s"}
                row = call("/v1/messages/extend", ask)["results"][0]
                # On some stores the receipt says when the lease ends, and a new one says the new end.
                self.receipt = row.get("new_receipt", self.receipt)
            except UNDONE as error:
                print(f"the lease could not be extended: {error}", file=sys.stderr, flush=True)


def work(message):
    heartbeat = Heartbeat(message["receipt"])
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
    settle({"receipt": heartbeat.receipt, **outcome})


def main():
    queue = sys.argv[1] if len(sys.argv) > 1 else "orders"
    # Of this process alone: two workers on a host are two, also when one follows the other under the same number.
    name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    wait = 1 if STOP_WHEN_EMPTY else 20
    while not stop.is_set():
        wanted = {"max": 1, "visibility": f"{LEASE_SECONDS}s", "wait": f"{wait}s", "worker": name}
        try:
            messages = receive(queue, wanted, timeout=wait + 30)
        except UNDONE as error:
            if stop.is_set():
                return
            print(f"nothing was received: {error}", file=sys.stderr, flush=True)
            if getattr(error, "is_about_us", False):
                sys.exit(1)
            stop.wait(1)
            continue
        if not messages and STOP_WHEN_EMPTY:
            return
        for message in messages:
            if stop.is_set():
                # It came together with the signal, was not begun, and goes back uncounted.
                settle({"receipt": message["receipt"], "outcome": "release"})
            else:
                work(message)


if __name__ == "__main__":
    main()
