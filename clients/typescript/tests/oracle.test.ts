// The oracle's server, called as the sampler calls it, by a client that knows nothing but the protos.

import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { createClient, type ConnectError } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { serveOracle, type Answer, type NodeAnswer, type OracleOptions, type Task } from "aeenc";
import { Judgement, NodeVerdict, OracleService, Remark } from "aeenc/v1/oracle";

const NO_PEM = fileURLToPath(import.meta.url);
const CANDIDATES = ["a", "b", "c"].map((id, place) => ({ premise: { id, text: id }, rank: place + 1, score: 0.5 }));

async function ask(judge: (task: Task) => Answer | Promise<Answer>, sent = "secret", token = sent) {
  const { verdicts } = await answerOf(judge, sent, token);
  return Object.fromEntries(verdicts.map((verdict) => [verdict.premiseId, verdict]));
}

async function answerOf(judge: (task: Task) => Answer | NodeAnswer | Promise<Answer>, sent = "secret", token = sent) {
  const server = await serveOracle({ name: "test", judge }, { address: "127.0.0.1:0", token });
  const baseUrl = `http://${server.address}`;
  const sessionManager = new Http2SessionManager(baseUrl);
  const client = createClient(OracleService, createGrpcTransport({ baseUrl, sessionManager }));
  try {
    const tasks = [{ taskId: "t", query: "query", path: ["root"], candidates: CANDIDATES, modelVersion: "v3" }];
    const { answers } = await client.judge({ runId: "r", tasks }, { headers: { authorization: `Bearer ${sent}` } });
    assert.deepEqual(answers.map(({ taskId, annotator }) => [taskId, annotator]), [["t", "test"]]);
    return answers[0];
  } finally {
    sessionManager.abort();
    await server.stop(0);
  }
}

const judgements = (verdicts: Record<string, { judgement: Judgement }>) =>
  Object.values(verdicts).map(({ judgement }) => Judgement[judgement]);

test("what a list names explains, and all others are refused", async () => {
  assert.deepEqual(judgements(await ask(() => ["b"])), ["DOES_NOT_EXPLAIN", "EXPLAINS", "DOES_NOT_EXPLAIN"]);
  assert.deepEqual(judgements(await ask(() => new Set<string>())), Array(3).fill("DOES_NOT_EXPLAIN"));
});

test("what judgements by id leave out is unseen, never refused", async () => {
  assert.deepEqual(judgements(await ask(() => new Map([["c", "abstains" as const]]))), ["UNSEEN", "UNSEEN", "ABSTAIN"]);
  assert.deepEqual(judgements(await ask(() => ({}))), ["UNSEEN", "UNSEEN", "UNSEEN"]);
});

test("a verdict carries leaf, grade, annotator and remark", async () => {
  const { a, b } = await ask(async () => ({
    a: { judgement: "explains", leaf: true, grade: 0.5, annotator: "Ada" },
    b: { judgement: "refuses", remark: "bad_fact" },
  }));
  assert.deepEqual([a.judgement, a.leaf, a.grade, a.annotator], [Judgement.EXPLAINS, true, 0.5, "Ada"]);
  assert.deepEqual([a.remark, b.remark], [Remark.UNSPECIFIED, Remark.BAD_FACT]);
});

test("an answer may speak of the node as a whole", async () => {
  const said = { additions: ["d"], alternatives: [["a"], ["d"]], intermediates: ["so it is"], inference: "because" };
  const answer = await answerOf(() => ({ verdicts: ["a"], nodeVerdict: "premise_missing", ...said }));
  assert.deepEqual(answer.verdicts.map(({ judgement }) => judgement), [1, 2, 2]);
  assert.deepEqual([answer.nodeVerdict, answer.inference], [NodeVerdict.PREMISE_MISSING, "because"]);
  assert.deepEqual([answer.additions[0].premiseId, answer.intermediates], ["d", ["so it is"]]);
  assert.deepEqual(answer.alternatives.map(({ premiseIds }) => premiseIds), said.alternatives);
});

test("the task has query, path, candidates and the encoder's version", async () => {
  const tasks: Task[] = [];
  await ask((task) => (tasks.push(task), []));
  assert.deepEqual([tasks[0].runId, tasks[0].query, tasks[0].path], ["r", "query", ["root"]]);
  assert.equal(tasks[0].modelVersion, "v3");
  assert.deepEqual(tasks[0].candidates[1], { id: "b", text: "b", rank: 2, score: 0.5 });
});

const wrong: [string, unknown, RegExp][] = [
  ["a text instead of an id", ["iron is a metal"], /not a candidate/],
  ["one string", "a", /return a list of ids/],
  ["nothing", undefined, /return a list of ids/],
  ["an unknown judgement", { a: "perhaps" }, /perhaps/],
  ["an unknown remark", { a: { judgement: "refuses", remark: "boring" } }, /boring/],
  ["a judgement by an inherited name", { a: "toString" }, /toString/],
  ["one text as intermediates", { verdicts: [], intermediates: "so it is" }, /intermediates: is "so it is"; give a list/],
  ["one text as an addition", { verdicts: [], additions: "d" }, /additions: is "d"; give a list/],
  ["one text as an alternative", { verdicts: [], alternatives: ["ab"] }, /alternatives\[0\]: is "ab"; give a list/],
  ["an unknown word for the node", { verdicts: [], nodeVerdict: "Complete" }, /nodeVerdict: is "Complete"; give one of complete/],
  ["a grade that is no number", { a: { judgement: "explains", grade: "high" } }, /grade: is "high"; give a number/],
  ["half a character", { verdicts: [], inference: "a \ud83d b" }, /inference: has half a character/],
];
for (const [what, answer, message] of wrong) {
  test(`${what} leaves the task unanswered and refuses nothing`, async () => {
    await assert.rejects(ask(() => answer as Answer), (error: ConnectError) => {
      assert.match(error.rawMessage, message);
      return error.code === 14; // UNAVAILABLE
    });
  });
}

test("an exception reaches the sampler as UNAVAILABLE, without its message", async () => {
  const judge = () => {
    throw new TypeError("password in here");
  };
  await assert.rejects(ask(judge), (error: ConnectError) => error.code === 14 && !error.message.includes("password"));
});

test("a caller without the token is refused", async () => {
  await assert.rejects(ask(() => [], "guess", "secret"), (error: ConnectError) => error.code === 16);
});

test("an address beyond loopback needs a token", async () => {
  await assert.rejects(serveOracle({ judge: () => [] }, { address: "0.0.0.0:0" }), { code: "INVALID_ARGUMENT" });
  const half = { address: "127.0.0.1:0", cert: "oracle.pem" };
  await assert.rejects(serveOracle({ judge: () => [] }, half), { code: "INVALID_ARGUMENT" });
});

test("a blank token, an address without a port and files that cannot be used stop the start by name", async () => {
  const wrongs: [OracleOptions, RegExp][] = [
    [{ token: "" }, /^token: is blank/], [{ token: " \n" }, /^token: is blank/], [{ address: "localhost" }, /^address: is "localhost"; give host:port/],
    [{ address: "127.0.0.1:70000" }, /^address: /], [{ cert: "nowhere.pem", key: "nowhere.pem" }, /^cert: .*nowhere\.pem.* cannot be read/],
    [{ cert: NO_PEM, key: NO_PEM }, /^cert .+ and key .+ cannot be used \(/],
  ];
  for (const [options, message] of wrongs) {
    const serves = serveOracle({ judge: () => [] }, { address: "127.0.0.1:0", ...options }).then((server) => server.stop(0));
    await assert.rejects(serves, { code: "INVALID_ARGUMENT", message });
  }
});

test("a token from a file is the one that callers send", async () => {
  assert.deepEqual(judgements(await ask(() => [], "secret", "secret\n")), Array(3).fill("DOES_NOT_EXPLAIN"));
});

test("a taken port is named", async () => {
  const first = await serveOracle({ judge: () => [] }, { address: "127.0.0.1:0" });
  await assert.rejects(serveOracle({ judge: () => [] }, { address: first.address }), { code: "UNAVAILABLE" });
  await first.stop();
});
