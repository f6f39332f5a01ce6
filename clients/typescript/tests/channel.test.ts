// Calls that end before their time: by their caller, by a limit, by a close, and by what cannot be sent.

import assert from "node:assert/strict";
import { createServer, type Http2Server } from "node:http2";
import type { AddressInfo } from "node:net";
import { after, before, beforeEach, mock, test } from "node:test";
import { Code, ConnectError, type HandlerContext } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { AeencError, connect, type Client } from "aeenc";
import { IndexService } from "aeenc/v1/index";
import { SamplerService } from "aeenc/v1/sampler";

const AWAY = new ConnectError("away", Code.Unavailable);
const OPTIONS = { timeoutMs: 2000 };
let server: Http2Server;
let client: Client;
let calls: HandlerContext[] = [];
let sessions = 0;
let answer: (context: HandlerContext) => Promise<void> | void = () => undefined;
let watch: (fromSeq: bigint, context: HandlerContext) => AsyncGenerator<{ seq: bigint; run: { id: string } }>;

const silent = (context: HandlerContext) => new Promise<void>((end) => context.signal.addEventListener("abort", () => end()));
// Until a failure has reached the client and its pause has begun.
const paused = () => new Promise<void>((come) => {
  const from = AeencError.from;
  mock.method(AeencError, "from", (...failed: Parameters<typeof from>) => { setImmediate(come); return from(...failed); }, { times: 1 });
});
const retrieve = (options = {}) => client.retrieve("science", ["text"], options);

before(async () => {
  const handler = connectNodeAdapter({
    routes(router) {
      router.service(IndexService, {
        async retrieve(_, context) {
          calls.push(context);
          await answer(context);
          return { generation: "g" };
        },
      });
      router.service(SamplerService, {
        getRun: () => ({ run: { id: "r" } }),
        async *watchRun({ fromSeq }, context) {
          calls.push(context);
          yield* watch(fromSeq, context);
        },
        async startRun(messages) {
          for await (const _ of messages) continue;
          return { run: { id: "r" } };
        },
      });
    },
  });
  server = createServer(handler).on("session", () => sessions++);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
});

beforeEach(() => {
  calls = [];
  answer = () => undefined;
  client?.close();
  const target = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  client = connect({ index: target, sampler: target, ...OPTIONS });
});

after(() => {
  client.close();
  server.close();
});

test("who breaks off a watch ends its call", async () => {
  watch = async function* (seq, context) {
    yield { seq, run: { id: "r" } };
    await silent(context);
  };
  for await (const _ of client.watchRun("r")) break;
  if (!calls[0].signal.aborted) await silent(calls[0]);
});

test("an abort says the same while a call or a watch waits for its next attempt, and why it waited", async () => {
  answer = () => { throw AWAY; };
  watch = async function* () { throw AWAY; };
  for (const wait of [(signal: AbortSignal) => retrieve({ signal }), (signal: AbortSignal) => client.watchRun("r", { signal }).next()]) {
    const caller = new AbortController();
    const waits = paused();
    const ended = assert.rejects(wait(caller.signal), { code: "CANCELLED", message: /no service answers at .*away/ });
    await waits;
    caller.abort();
    await ended;
  }
});

test("a client that is closed while a call waits for its next attempt makes none", async () => {
  answer = () => { throw AWAY; };
  const waits = paused();
  const ended = assert.rejects(retrieve(), { code: "FAILED_PRECONDITION", message: /is closed; connect again/ });
  await waits;
  client.close();
  const opened = sessions;
  await ended;
  assert.deepEqual([calls.length, sessions], [1, opened]);
});

test("a last attempt that has no time to end does not hide the refusal before it", async () => {
  answer = (context) => {
    if (calls.length > 1) return silent(context);
    throw new ConnectError("full", Code.ResourceExhausted);
  };
  await assert.rejects(retrieve({ timeoutMs: 1900 }), { code: "RESOURCE_EXHAUSTED", message: /full/ });
  assert.equal(calls.length, 2);
});

test("a time limit is milliseconds above 0, and may be longer than a header or a timer holds", async () => {
  for (const timeoutMs of [Infinity, 200_000_000, 2 ** 31, 0.5 + 5000]) await retrieve({ timeoutMs });
  connect({ timeoutMs: Infinity }).close();
  async function* nothing() {}
  for (const timeoutMs of [0, -5, NaN, "5"] as number[]) {
    const refusal = { code: "INVALID_ARGUMENT", message: /^timeoutMs: is .*; give milliseconds above 0/ };
    await assert.rejects(retrieve({ timeoutMs }), refusal);
    await assert.rejects(client.sampler.startRun(nothing(), { timeoutMs }), refusal);
  }
});

test("what the caller's own messages raise is raised, and an odd one is refused before it is sent", async () => {
  async function* raising() {
    yield { config: { corpus: "science" } };
    throw new TypeError("mine");
  }
  await assert.rejects(client.sampler.startRun(raising()), TypeError);
  const odd = [{ config: { corpus: "a \ud83d b" } }, { config: { corpus: 5 } }, { hypotheses: [{ id: "a", text: "b" }, { id: 5 }] }];
  for (const message of odd as object[]) {
    async function* one() { yield message; }
    await assert.rejects(client.sampler.startRun(one()), { code: "INVALID_ARGUMENT", message: /^(corpus|id): / });
  }
});

test("a value of an enum is a number, also within a list and a message", async () => {
  const odd: [string, object][] = [["precision", { precision: "FLOAT32" }], ["mode", { options: { mode: 1.5 } }]];
  for (const [field, one] of odd) {
    const request = { corpus: "science", texts: ["text"], ...one };
    await assert.rejects(client.index.retrieve(request), (error: AeencError) => error.code === "INVALID_ARGUMENT" && error.message.startsWith(`${field}: is `));
  }
  assert.equal(calls.length, 0);
});

test("two restarts with silence between them are two outages", async () => {
  client.close();
  client = connect({ sampler: `127.0.0.1:${(server.address() as AddressInfo).port}`, timeoutMs: 1000 });
  watch = async function* (seq) {
    if (calls.length === 2) await new Promise((resolve) => setTimeout(resolve, 1000)); // as long as an outage may last
    if (calls.length < 3) throw AWAY;
    yield { seq, run: { id: "r" } };
  };
  const seen = [];
  for await (const { seq } of client.watchRun("r")) seen.push(seq);
  assert.deepEqual([seen, calls.length], [[1], 3]);
});
