#!/usr/bin/env node
// A worker in Node (18 or newer), without any package, and a Postrider server.
//
//     postrider serve &
//     postrider send orders '{"item": "tea"}'
//     node examples/http/worker.mjs orders
//
// It handles several messages at a time, renews their leases, and settles finished messages in the same request that
// receives the next ones. An error is a failed attempt; `PermanentError` dead-letters a message at once. After SIGTERM or
// SIGINT it finishes running messages and cancels a wait for messages: the server releases what it had leased for it.
//
// Environment: POSTRIDER_URL (http://127.0.0.1:8025), POSTRIDER_TOKEN (if the server has tokens),
// POSTRIDER_STOP_WHEN_EMPTY=1 (exit after a second without messages).

import { randomUUID } from "node:crypto";
import { hostname } from "node:os";

const url = (process.env.POSTRIDER_URL ?? "http://127.0.0.1:8025").replace(/\/$/, "");
const token = process.env.POSTRIDER_TOKEN;
const stopWhenEmpty = process.env.POSTRIDER_STOP_WHEN_EMPTY === "1";
const queue = process.argv[2] ?? "orders";
const leaseSeconds = 30;
const maxMessages = 5;

// Unique for each process, even if the system reuses a process id.
const worker = `${hostname()}:${process.pid}:${randomUUID().slice(0, 8)}`;

let stopping = false;
/** Cancels the wait for messages, while there is one. */
let wait = null;
for (const name of ["SIGTERM", "SIGINT"]) {
  process.on(name, () => {
    stopping = true;
    wait?.abort();
  });
}

/** A failure that no retry can fix. */
class PermanentError extends Error {}

/** Handles a message. Replace it by your own work. */
async function handle(message) {
  let order;
  try {
    order = JSON.parse(message.body);
  } catch {
    throw new PermanentError("the order is not JSON");
  }
  if (!order.item) throw new PermanentError("the order has no item");
  if (order.item === "unicorn") throw new Error("no unicorns today");
  console.log(`packed ${order.item} (delivery ${message.receive_count})`);
}

/** Sends a request to the server. Throws the server's error text if it refuses. */
async function call(path, body, signal) {
  const headers = { "content-type": "application/json" };
  if (token) headers.authorization = `Bearer ${token}`;
  const response = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body), signal });
  // A proxy may have answered instead of the server.
  const json = await response.json().catch(() => {
    throw new Error(`${url + path} returned ${response.status} and no JSON; it may not be a Postrider server`);
  });
  if (!response.ok) throw new Error(`${json.code}: ${json.detail}`);
  return json;
}

/** Heartbeats of messages that are not settled yet, by settlement. */
const heartbeats = new Map();

/** Handles one message and returns its settlement. */
async function work(message) {
  const settlement = { receipt: message.receipt };
  const extend = async () => {
    const body = { receipts: [settlement.receipt], visibility: `${leaseSeconds}s` };
    const [row] = (await call("/v1/messages/extend", body)).results;
    // On some stores the receipt contains the end of the lease, and an extension returns a new receipt.
    settlement.receipt = row.new_receipt ?? settlement.receipt;
  };
  const heartbeat = setInterval(() => {
    extend().catch((error) => console.error(`the lease could not be extended: ${error.message}`));
  }, (leaseSeconds * 1000) / 3);
  // Runs until the settlement is sent, because other messages of the batch may take longer.
  heartbeats.set(settlement, heartbeat);
  try {
    await handle(message);
    return Object.assign(settlement, { outcome: "ack" });
  } catch (error) {
    const { message: text } = error;
    if (!(error instanceof PermanentError)) return Object.assign(settlement, { outcome: "retry", error: text });
    return Object.assign(settlement, { outcome: "dead_letter", reason: "rejected", error: text });
  }
}

/** Ends the heartbeats of settled messages and reports failures. */
function report(settlements, rows) {
  for (const [index, row] of rows.entries()) {
    clearInterval(heartbeats.get(settlements[index]));
    heartbeats.delete(settlements[index]);
    if (row.problem) console.error(`not settled: ${row.problem.detail}`);
  }
}

let settlements = [];
while (!stopping) {
  try {
    const body = { queues: [queue], settlements, max: maxMessages, visibility: `${leaseSeconds}s`, worker };
    // A request with settlements returns at once. Only one without may wait, because it can be canceled without harm.
    body.wait = settlements.length > 0 ? "0s" : stopWhenEmpty ? "1s" : "20s";
    if (settlements.length === 0) wait = new AbortController();
    const round = await call("/v1/receive", body, wait?.signal);
    wait = null;
    report(settlements, round.settled);
    const isOver = round.messages.length === 0 && settlements.length === 0 && stopWhenEmpty;
    settlements = [];
    if (isOver) break;
    // Messages that arrive together with the signal are released, so that their delivery is not counted.
    const release = ({ receipt }) => ({ receipt, outcome: "release" });
    settlements = stopping ? round.messages.map(release) : await Promise.all(round.messages.map(work));
  } catch (error) {
    wait = null;
    if (stopping) break;
    console.error(`the request failed: ${error.message}`);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
if (settlements.length > 0) report(settlements, (await call("/v1/messages/settle", { settlements })).results);
