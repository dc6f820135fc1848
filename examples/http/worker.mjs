#!/usr/bin/env node
// A worker in Node (18 or newer), without any package, and a Postrider server.
//
//     postrider serve &
//     postrider send orders '{"item": "tea"}'
//     node examples/http/worker.mjs orders
//
// It works on several messages at a time, keeps their leases alive, and settles what is done together with the request
// for what is next: a whole round is one request. An error is a failed attempt; `Hopeless` sends a message to the dead
// letters at once. SIGTERM and SIGINT let what was begun be finished, and end a wait at once: what the server had leased
// for that wait goes back.
//
// Environment: POSTRIDER_URL (http://127.0.0.1:8025), POSTRIDER_TOKEN (when the server has tokens),
// POSTRIDER_STOP_WHEN_EMPTY=1 (end when nothing has come for a second).

import { randomUUID } from "node:crypto";
import { hostname } from "node:os";

const url = (process.env.POSTRIDER_URL ?? "http://127.0.0.1:8025").replace(/\/$/, "");
const token = process.env.POSTRIDER_TOKEN;
const stopWhenEmpty = process.env.POSTRIDER_STOP_WHEN_EMPTY === "1";
const queue = process.argv[2] ?? "orders";
const leaseSeconds = 30;
const atOnce = 5;

// Of this process alone: two workers on a host are two, also when one follows the other under the same number.
const worker = `${hostname()}:${process.pid}:${randomUUID().slice(0, 8)}`;

let stopping = false;
/** Ends the wait for messages, while there is one. */
let wait = null;
for (const name of ["SIGTERM", "SIGINT"]) {
  process.on(name, () => {
    stopping = true;
    wait?.abort();
  });
}

/** Trying again will not help. */
class Hopeless extends Error {}

/** The work. Replace it by yours. */
async function handle(message) {
  let order;
  try {
    order = JSON.parse(message.body);
  } catch {
    throw new Hopeless("the order is no JSON");
  }
  if (!order.item) throw new Hopeless("there is no item in the order");
  if (order.item === "unicorn") throw new Error("no unicorns today");
  console.log(`packed ${order.item} (delivery ${message.receive_count})`);
}

/** Asks the server. A refusal is an error with the server's own words. */
async function call(path, body, signal) {
  const headers = { "content-type": "application/json" };
  if (token) headers.authorization = `Bearer ${token}`;
  const answer = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body), signal });
  // Something between us and the server may have answered.
  const json = await answer.json().catch(() => {
    throw new Error(`${url + path} answers ${answer.status}, and not as Postrider does`);
  });
  if (!answer.ok) throw new Error(`${json.code}: ${json.detail}`);
  return json;
}

/** Heartbeats of messages whose leases have not been ended yet, by their settlements. */
const alive = new Map();

/** Does the work of one message and says how its lease ends. */
async function work(message) {
  const settlement = { receipt: message.receipt };
  const extend = async () => {
    const ask = { receipts: [settlement.receipt], visibility: `${leaseSeconds}s` };
    const [row] = (await call("/v1/messages/extend", ask)).results;
    // On some stores the receipt says when the lease ends, and a new one says the new end.
    settlement.receipt = row.new_receipt ?? settlement.receipt;
  };
  const heartbeat = setInterval(() => {
    extend().catch((error) => console.error(`the lease could not be extended: ${error.message}`));
  }, (leaseSeconds * 1000) / 3);
  // Kept until the server has been told: others of the round may take longer.
  alive.set(settlement, heartbeat);
  try {
    await handle(message);
    return Object.assign(settlement, { outcome: "ack" });
  } catch (error) {
    const { message: text } = error;
    if (!(error instanceof Hopeless)) return Object.assign(settlement, { outcome: "retry", error: text });
    return Object.assign(settlement, { outcome: "dead_letter", reason: "rejected", error: text });
  }
}

/** What became of settlements, in their order. */
function told(settlements, rows) {
  for (const [place, row] of rows.entries()) {
    clearInterval(alive.get(settlements[place]));
    alive.delete(settlements[place]);
    if (row.problem) console.error(`not settled: ${row.problem.detail}`);
  }
}

let settlements = [];
while (!stopping) {
  try {
    const ask = { queues: [queue], settlements, max: atOnce, visibility: `${leaseSeconds}s`, worker };
    // What is done is told at once. Only a request that tells of nothing waits, so that it can be given up.
    ask.wait = settlements.length > 0 ? "0s" : stopWhenEmpty ? "1s" : "20s";
    if (settlements.length === 0) wait = new AbortController();
    const round = await call("/v1/receive", ask, wait?.signal);
    wait = null;
    told(settlements, round.settled);
    const isOver = round.messages.length === 0 && settlements.length === 0 && stopWhenEmpty;
    settlements = [];
    if (isOver) break;
    // What came together with the signal was not begun, and goes back uncounted.
    const release = ({ receipt }) => ({ receipt, outcome: "release" });
    settlements = stopping ? round.messages.map(release) : await Promise.all(round.messages.map(work));
  } catch (error) {
    wait = null;
    if (stopping) break;
    console.error(`the server did not do it: ${error.message}`);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
if (settlements.length > 0) told(settlements, (await call("/v1/messages/settle", { settlements })).results);
