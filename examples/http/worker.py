#!/usr/bin/env python3
"""A worker in Python, with only the standard library, on a Postrider server.

    postrider serve &
    postrider send orders '{"item": "tea"}'
    python3 examples/http/worker.py orders

It leases one message at a time, renews the lease while it works, and acknowledges. An exception is a failed attempt: the
message is retried later, and dead-lettered after too many deliveries. `PermanentError` dead-letters it at once. After
SIGTERM or SIGINT it finishes the running message and cancels a wait for messages: the server releases what it had leased
for it.

Environment: POSTRIDER_URL (http://127.0.0.1:8025), POSTRIDER_TOKEN (if the server has tokens),
POSTRIDER_STOP_WHEN_EMPTY=1 (exit after a second without messages).
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
# The connection that waits for messages, if any.
waiting = None


def on_signal(*_):
    """Cancels a wait. A response that has arrived can still be read; otherwise the server releases the leased messages."""
    stop.set()
    try:
        if waiting is not None and waiting.sock is not None:
            waiting.sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


class PermanentError(Exception):
    """A failure that no retry can fix."""


class Refused(Exception):
    """The server refused a request."""

    def __init__(self, path, status, body):
        try:
            problem = json.loads(body)
            text = f"{problem['code']}: {problem['detail']}"
        except (ValueError, KeyError, TypeError):
            # A proxy has answered instead of the server.
            text = f"{URL}{path} returned {status} and no error of Postrider; it may not be a Postrider server"
        super().__init__(text)
        self.is_about_token = status in (401, 403)


# The exceptions of a failed request.
FAILED = (OSError, http.client.HTTPException, ValueError, Refused)


def handle(message):
    """Handles a message. Replace it by your own work."""
    order = json.loads(message["body"])
    if "item" not in order:
        raise PermanentError("the order has no item")
    if order["item"] == "unicorn":
        raise RuntimeError("no unicorns today")
    print(f"packed {order['item']} (delivery {message['receive_count']})", flush=True)


def connect(timeout=30):
    url = urllib.parse.urlsplit(URL)
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.hostname, url.port, timeout=timeout)
    connection.connect()
    return connection


def request(connection, path, body):
    """Sends a request on a connection. Raises the server's error text if it refuses."""
    headers = {"Content-Type": "application/json"}
    if TOKEN:
        headers["Authorization"] = f"Bearer {TOKEN}"
    connection.request("POST", urllib.parse.urlsplit(URL).path + path, json.dumps(body).encode(), headers)
    response = connection.getresponse()
    text = response.read()
    if response.status >= 400:
        raise Refused(path, response.status, text)
    return json.loads(text)


def call(path, body):
    """Sends a request on a new connection."""
    connection = connect()
    try:
        return request(connection, path, body)
    finally:
        connection.close()


def receive(queue, options, timeout):
    """Waits for messages until a signal cancels the wait."""
    global waiting
    connection = waiting = connect(timeout)
    try:
        # The signal may have come before there was a connection to close.
        return [] if stop.is_set() else request(connection, f"/v1/queues/{queue}/receive", options)["messages"]
    finally:
        waiting = None
        connection.close()


def settle(settlement):
    """Settles a message. If its lease has ended, another worker has the message, and nothing is left to do."""
    try:
        row = call("/v1/messages/settle", {"settlements": [settlement]})["results"][0]
    except FAILED as error:
        # The message is delivered again when its lease ends.
        print(f"not settled: {error}", file=sys.stderr, flush=True)
        return
    if "problem" in row:
        print(f"not settled: {row['problem']['detail']}", file=sys.stderr, flush=True)


class Heartbeat(threading.Thread):
    """Renews a lease until the work is done."""

    def __init__(self, receipt):
        super().__init__(daemon=True)
        self.receipt = receipt
        self.done = threading.Event()

    def run(self):
        while not self.done.wait(LEASE_SECONDS / 3):
            try:
                body = {"receipts": [self.receipt], "visibility": f"{LEASE_SECONDS}s"}
                row = call("/v1/messages/extend", body)["results"][0]
                # On some stores the receipt contains the end of the lease, and an extension returns a new receipt.
                self.receipt = row.get("new_receipt", self.receipt)
            except FAILED as error:
                print(f"the lease could not be extended: {error}", file=sys.stderr, flush=True)


def work(message):
    heartbeat = Heartbeat(message["receipt"])
    heartbeat.start()
    try:
        handle(message)
        outcome = {"outcome": "ack"}
    except (PermanentError, json.JSONDecodeError) as error:
        outcome = {"outcome": "dead_letter", "reason": "rejected", "error": str(error)}
    except Exception as error:
        outcome = {"outcome": "retry", "error": str(error)}
    finally:
        heartbeat.done.set()
    settle({"receipt": heartbeat.receipt, **outcome})


def main():
    queue = sys.argv[1] if len(sys.argv) > 1 else "orders"
    # Unique for each process, even if the system reuses a process id.
    name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    wait = 1 if STOP_WHEN_EMPTY else 20
    while not stop.is_set():
        options = {"max": 1, "visibility": f"{LEASE_SECONDS}s", "wait": f"{wait}s", "worker": name}
        try:
            messages = receive(queue, options, timeout=wait + 30)
        except FAILED as error:
            if stop.is_set():
                return
            print(f"nothing was received: {error}", file=sys.stderr, flush=True)
            if getattr(error, "is_about_token", False):
                sys.exit(1)
            stop.wait(1)
            continue
        if not messages and STOP_WHEN_EMPTY:
            return
        for message in messages:
            if stop.is_set():
                # It arrived together with the signal and is released, so that its delivery is not counted.
                settle({"receipt": message["receipt"], "outcome": "release"})
            else:
                work(message)


if __name__ == "__main__":
    main()
