#!/usr/bin/env node
// A worker in Node (18 or newer), without any package, and a Postrider server.
//
//     postrider serve &
//     postrider send orders '{"item": "tea"}'
//     node examples/http/worker.mjs orders
//
// It works on several messages at a time, keeps their leases alive, and settles what is done together with the request
// for what is next: a whole round is one request. An error is a failed attempt; `Hopeless` sends a message to the dead
// letters at once. SIGTERM and SIGINT let what was begun be finished.
//
// Environment: POSTRIDER_URL (http://127.0.0.1:8025), POSTRIDER_TOKEN (when the server has tokens),
// POSTRIDER_STOP_WHEN_EMPTY=1 (end when nothing has come for a second).

import { hostname } from "node:os";

const url = (process.env.POSTRIDER_URL ?? "http://127.0.0.1:8025").replace(/\/$/, "");
const token = process.env.POSTRIDER_TOKEN;
const stopWhenEmpty = process.env.POSTRIDER_STOP_WHEN_EMPTY === "1";
const queue = process.argv[2] ?? "orders";
const leaseSeconds = 30;
const atOnce = 5;

let stopping = false;
for (const name of ["SIGTERM", "SIGINT"]) process.on(name, () => (stopping = true));

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
async function call(path, body) {
  const headers = { "content-type": "application/json" };
  if (token) headers.authorization = `Bearer ${token}`;
  const answer = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) });
  // Something between us and the server may have answered.
  const json = await answer.json().catch(() => {
    throw new Error(`${url + path} answers ${answer.status}, and not as Postrider does`);
  });
  if (!answer.ok) throw new Error(`${json.code}: ${json.detail}`);
  return json;
}

/** Heartbeats of messages whose leases have not been ended yet. */
const alive = new Map();

/** Does the work of one message and says how its lease ends. */
async function work(message) {
  const { receipt } = message;
  const heartbeat = setInterval(() => {
    call("/v1/messages/extend", { receipts: [receipt], visibility: `${leaseSeconds}s` }).catch((error) =>
      console.error(`the lease could not be extended: ${error.message}`),
    );
  }, (leaseSeconds * 1000) / 3);
  // Kept until the server has been told: others of the round may take longer.
  alive.set(receipt, heartbeat);
  try {
    await handle(message);
    return { receipt, outcome: "ack" };
  } catch (error) {
    if (error instanceof Hopeless) return { receipt, outcome: "dead_letter", reason: "rejected", error: error.message };
    return { receipt, outcome: "retry", error: error.message };
  }
}

function told(rows) {
  for (const row of rows) {
    clearInterval(alive.get(row.receipt));
    alive.delete(row.receipt);
    if (row.problem) console.error(`not settled: ${row.problem.detail}`);
  }
}

let settlements = [];
while (!stopping) {
  try {
    const ask = {
      queues: [queue],
      settlements,
      max: atOnce,
      visibility: `${leaseSeconds}s`,
      wait: stopWhenEmpty ? "1s" : "20s",
      worker: `${hostname()}:${process.pid}`,
    };
    const round = await call("/v1/receive", ask);
    told(round.settled);
    settlements = [];
    if (round.messages.length === 0 && stopWhenEmpty) break;
    settlements = await Promise.all(round.messages.map(work));
  } catch (error) {
    console.error(`the server did not do it: ${error.message}`);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
if (settlements.length > 0) told((await call("/v1/messages/settle", { settlements })).results);
