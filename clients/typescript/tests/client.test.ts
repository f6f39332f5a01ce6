// The client before a server of its own that fails on demand, and before the fleet that the environment names.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createSecureServer, createServer, type Http2Server } from "node:http2";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { Code, ConnectError, type HandlerContext } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { AeencError, connect, serveOracle, type Client, type RetrieveOptions, type RunOptions } from "aeenc";
import { IndexAdminService, IndexService, type RetrieveRequest } from "aeenc/v1/index";
import { PeopleService } from "aeenc/v1/people";
import { SamplerService } from "aeenc/v1/sampler";
import { WorkState } from "aeenc/v1/types";
import { TrainerService } from "aeenc/v1/trainer";

const failsWith = (code: string) => (error: unknown) => error instanceof AeencError && error.code === code;

interface OddInput {
  field: string; // as this client has it
  coded: unknown;
  status: string;
  at: string; // who refuses it
  error?: AeencError;
}

/** Asks with each input of the table that all clients share. */
async function oddInputs(client: Client): Promise<OddInput[]> {
  const table = JSON.parse(readFileSync(new URL("../../../../tests/support/odd_inputs.json", import.meta.url), "utf8"));
  const decoded = (value: any): any => {
    if (Array.isArray(value)) return value.map(decoded);
    if (value === null || typeof value !== "object") return value ?? undefined;
    if ("number" in value) return { nan: NaN, inf: Infinity, "-inf": -Infinity }[value.number as string];
    const [part, times] = value.repeat;
    return value.as === "text" ? part.repeat(times) : Array(times).fill(part);
  };
  const ended: OddInput[] = [];
  for (const [name, coded, status, at] of table) {
    const field = name.replace(/_(\w)/g, (_: string, letter: string) => letter.toUpperCase());
    const value = decoded(coded);
    if (value === undefined) continue; // absent
    const { corpus, texts, ...options } = { corpus: "science", texts: ["iron"], [field]: value } as any;
    const error = await client.retrieve(corpus, texts, options).then(() => undefined, (error: AeencError) => error);
    ended.push({ field, coded, status, at, error });
  }
  return ended;
}

describe("before a server that fails on demand", () => {
  let server: Http2Server;
  let client: Client;
  let calls: HandlerContext[] = [];
  let failures: ConnectError[] = [];
  const requestIds: string[] = [];
  const jobKeys: string[] = [];
  const froms: bigint[] = [];
  const sizes: number[] = [];
  const seqs: bigint[] = [];
  const asked: RetrieveRequest[] = [];

  function note(context: HandlerContext): void {
    calls.push(context);
    const failure = failures.shift();
    if (failure) throw failure;
  }

  before(async () => {
    const handler = connectNodeAdapter({
      routes(router) {
        router.service(IndexService, {
          async retrieve(request, context) {
            const { texts } = request;
            asked.push(request);
            note(context);
            if (texts[0] === "slow") await new Promise((resolve) => context.signal.addEventListener("abort", resolve));
            return { results: texts.map((text) => ({ premises: [{ premise: { id: "p", text }, score: 0.5 }] })), generation: "g", unknownTags: ["phisics"] };
          },
        });
        router.service(IndexAdminService, {
          deleteGeneration({ requestId }, context) {
            requestIds.push(requestId);
            note(context);
            return {};
          },
        });
        router.service(TrainerService, {
          startJob({ config }, context) {
            jobKeys.push(config?.idempotencyKey ?? "");
            note(context);
            return { job: { id: "j", config } };
          },
        });
        router.service(SamplerService, {
          async *watchRun({ fromSeq }) {
            froms.push(fromSeq);
            yield { seq: fromSeq, run: { id: "r" } };
            if (fromSeq < 3n) throw new ConnectError("restarts", fromSeq < 2n ? Code.Unavailable : Code.ResourceExhausted);
          },
          getRun: () => ({ run: { id: "r" } }),
          async startRun(messages) {
            let count = 0;
            for await (const { hypotheses } of messages) {
              sizes.push(hypotheses.reduce((sum, { text }) => sum + text.length, 0));
              count += hypotheses.length;
            }
            return { run: { id: `${count}` } };
          },
        });
        router.service(PeopleService, {
          submitVerdicts({ clientSeq }, context) {
            seqs.push(clientSeq);
            note(context);
            return {};
          },
        });
      },
    });
    server = createServer(handler);
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const target = `127.0.0.1:${(server.address() as AddressInfo).port}`;
    client = connect({ index: target, sampler: target, trainer: target, token: "common", adminToken: "admin" });
  });

  after(() => {
    client.close();
    server.close();
  });

  test("features and several cross-encoders reach the index", async () => {
    const fusion = { lexicalWeight: 0.25, features: { first: 3.5, rank: 0.5 } };
    await client.retrieve("science", ["text"], { mode: "hybrid", fusion, rerank: 20, rerankVersions: ["x1", "x2"] });
    const request = asked.at(-1);
    assert.deepEqual(request?.options?.fusion?.features, fusion.features);
    assert.equal(request?.options?.fusion?.lexicalWeight, 0.25);
    assert.deepEqual(request?.options?.rerankVersions, ["x1", "x2"]);
  });

  test("a transient failure is repeated under the same request id", async () => {
    calls = [];
    const codes = [Code.ResourceExhausted, Code.Unavailable, Code.Canceled]; // the last: dropped by a server's gRPC
    failures = codes.map((code) => new ConnectError("", code));
    const { results, generation, unknownTags } = await client.retrieve("science", ["text"]);
    assert.deepEqual(results, [[{ id: "p", text: "text", score: 0.5 }]]);
    assert.equal(generation, "g");
    assert.deepEqual(unknownTags, ["phisics"]);
    assert.equal(calls.length, 4);
    assert.equal(new Set(calls.map((call) => call.requestHeader.get("x-request-id"))).size, 1);
    assert.equal(calls[0].requestHeader.get("authorization"), "Bearer common");
  });

  test("a refusal for good is not repeated", async () => {
    calls = [];
    failures = [new ConnectError("unknown corpus", Code.NotFound)];
    await assert.rejects(client.retrieve("nope", ["text"]), failsWith("NOT_FOUND"));
    assert.equal(calls.length, 1);
  });

  test("a message that is too large for gRPC is not sent again", async () => {
    calls = [];
    failures = [new ConnectError("Received message larger than max (5 vs. 4)", Code.ResourceExhausted)];
    const refusal = { code: "INVALID_ARGUMENT", reason: "OVER_LIMIT", message: /5 vs\. 4.*; split the call/ };
    await assert.rejects(client.retrieve("science", ["text"]), refusal);
    assert.equal(calls.length, 1);
  });

  test("a value of the wrong kind is refused by name", async () => {
    const fusion = "reciprocal_rank" as unknown as RetrieveOptions["fusion"];
    await assert.rejects(client.retrieve("science", ["text"], { mode: "hybrid", fusion }), /fusion: is "reciprocal_rank"; give an object/);
    await assert.rejects(client.watchRun("r", { fromSeq: 1.5 }).next(), /fromSeq: is 1\.5; give a whole number/);
    const model = "stable" as unknown as RunOptions["model"];
    await assert.rejects(client.startRun([], { corpus: "science", oracle: "o", model }), /model: is "stable"; give an object/);
    const nothing = [{ id: "h", text: "a nail rusts", onlyIds: [] }]; // in a message: everything
    await assert.rejects(client.startRun(nothing, { corpus: "science", oracle: "o" }), /hypotheses\[0\]\.onlyIds: is \[\]; leave it out/);
    assert.throws(() => connect({ timeoutMs: NaN }), /timeoutMs: is NaN; give milliseconds above 0/);
  });

  test("a call that changes something repeats itself under one id of its own, with the admin token", async () => {
    calls = [];
    failures = [new ConnectError("starts", Code.Unavailable)];
    await client.service(IndexAdminService).deleteGeneration({ corpus: "science", generation: "g" });
    assert.equal(requestIds.length, 2);
    assert.ok(requestIds[0]);
    assert.equal(requestIds[0], requestIds[1]);
    assert.equal(calls[0].requestHeader.get("authorization"), "Bearer admin");
  });

  test("a training job is started once, under a key of its own, unless the caller names one", async () => {
    failures = [new ConnectError("starts", Code.Unavailable)];
    const config = { corpus: "science", runIds: ["r"] };
    const { job } = await client.trainer.startJob({ config });
    assert.equal(jobKeys.length, 2);
    assert.ok(jobKeys[0]);
    assert.equal(jobKeys[0], jobKeys[1]);
    assert.deepEqual([job?.config?.corpus, job?.config?.runIds], ["science", ["r"]]);
    await client.trainer.startJob({ config });
    assert.ok(!["", jobKeys[0]].includes(jobKeys[2]), "another call is another job");
    await client.trainer.startJob({ config: { ...config, idempotencyKey: "mine" } });
    assert.equal(jobKeys[3], "mine");
    assert.equal("idempotencyKey" in config, false, "the caller's message stays as it is");
  });

  test("a deadline ends a call and says so", async () => {
    await assert.rejects(client.retrieve("science", ["slow"], { timeoutMs: 100 }), {
      code: "DEADLINE_EXCEEDED",
      message: /did not answer within 0.1 s; allow more time/,
    });
  });

  test("an abort ends a call", async () => {
    calls = [];
    const caller = new AbortController();
    const call = client.retrieve("science", ["slow"], { signal: caller.signal });
    while (!calls.length) await new Promise((resolve) => setTimeout(resolve, 5));
    caller.abort();
    await assert.rejects(call, failsWith("CANCELLED"));
    assert.equal(calls.length, 1);
  });

  test("a watch goes on after the last event that it has seen", async () => {
    froms.length = 0;
    const seen: number[] = [];
    for await (const { seq } of client.watchRun("r")) seen.push(seq);
    assert.deepEqual(seen, [1, 2, 3]);
    assert.deepEqual(froms, [1n, 2n, 3n]);
  });

  test("what the Python client refuses of the table of odd inputs is refused, and nothing else", async () => {
    const refused = (await oddInputs(client)).filter(({ error, field }) => error?.code === "INVALID_ARGUMENT" && error.message.startsWith(field));
    assert.deepEqual(refused.filter(({ status }) => status === "OK"), []);
    const sent = (await oddInputs(client)).filter(({ error }) => !error).map(({ at }) => at);
    assert.ok(!sent.includes("client"));
    assert.ok(refused.length + sent.length >= 150);
  });

  test("hypotheses are sent in messages of a size that the sampler accepts", async () => {
    const hypotheses = Array.from({ length: 600 }, (_, n) => ({ id: `${n}`, text: "x".repeat(15_000) }));
    const run = await client.startRun(hypotheses, { corpus: "science", oracle: "o" });
    assert.equal(run.id, "600");
    assert.ok(Math.max(...sizes) < 4 * 1024 * 1024, `${sizes}`);
    assert.equal((await client.startRun([], { corpus: "science", oracle: "o" })).id, "0");
  });

  test("an answer that is sent again is known by its number", async () => {
    failures = [new ConnectError("restarts", Code.Unavailable)];
    await client.people.submitVerdicts({ leaseId: "l" });
    assert.ok(seqs[0] > 0n);
    assert.equal(seqs[0], seqs[1]);
    await client.people.submitVerdicts({ leaseId: "l" });
    assert.notEqual(seqs[0], seqs[2]);
  });

  test("a closed client refuses calls", async () => {
    const other = connect({ index: "127.0.0.1:1" });
    other.close();
    await assert.rejects(other.retrieve("science", ["text"]), failsWith("FAILED_PRECONDITION"));
  });
});

test("a service that is away fails soon and says where it was looked for", async () => {
  using client = connect({ index: "127.0.0.1:1" });
  const startedAt = performance.now();
  const away = { code: "UNAVAILABLE", message: /127\.0\.0\.1:1 .*running/ };
  await assert.rejects(client.retrieve("science", ["text"]), away);
  assert.ok(performance.now() - startedAt < 5000);
});

test("a token travels to another host without TLS only where asked", () => {
  const away = { index: "192.0.2.1:50052", token: "secret" };
  assert.throws(() => connect(away), { code: "INVALID_ARGUMENT", message: /^plainToken: .*192\.0\.2\.1/ });
  for (const index of ["unix:1", "127.999.1.1:1"]) { // hosts of these names
    assert.throws(() => connect({ ...away, index }), { message: /^plainToken: / }, index);
  }
  connect({ ...away, index: "[0:0:0:0:0:0:0:1]:50052" }).close();
  connect({ ...away, plainToken: true }).close();
  connect({ ...away, tls: true }).close();
  assert.throws(() => connect({ tls: false, ca: "ca.pem" }), { code: "INVALID_ARGUMENT", message: /^tls: is off/ });
  connect({ ...away, index: "localhost:50052" }).close();
});

test("a token that no header holds is refused without being shown", () => {
  for (const token of ["se cret", "t\u00f6k", "a\nb", "a".repeat(9000), " "]) {
    assert.throws(
      () => connect({ token }),
      (error: AeencError) => error.message.startsWith("token: is blank") && !error.message.includes(token.trim() || "\t"),
    );
  }
  connect({ token: "secret\n" }).close();
});

test("a time limit of the environment counts, and a wrong one is named", async () => {
  process.env.AEENC_TIMEOUT_S = "soon";
  try {
    assert.throws(() => connect(), { code: "INVALID_ARGUMENT", message: /AEENC_TIMEOUT_S/ });
    process.env.AEENC_TIMEOUT_S = "0.2";
    using client = connect({ index: "127.0.0.1:1" });
    const startedAt = performance.now();
    await assert.rejects(client.retrieve("science", ["text"]), AeencError);
    assert.ok(performance.now() - startedAt < 1000);
  } finally {
    delete process.env.AEENC_TIMEOUT_S;
  }
});

test("an address that is not one server is refused by name", () => {
  assert.throws(() => connect({ index: "dns:///index:50052" }), { code: "INVALID_ARGUMENT", message: /host:port/ });
});

describe("in a folder of its own", () => {
  const folder = mkdtempSync(join(tmpdir(), "aeenc-"));
  const fleetFile = join(folder, "fleet.json");
  const home = process.env.AEENC_HOME;

  before(() => {
    process.env.AEENC_HOME = folder;
  });

  after(() => {
    if (home === undefined) delete process.env.AEENC_HOME;
    else process.env.AEENC_HOME = home;
    rmSync(folder, { recursive: true });
  });

  function fleetAt(index: unknown): void {
    writeFileSync(fleetFile, JSON.stringify({ format_version: 1, targets: { index } }));
  }

  test("a fleet file may name this machine alone", () => {
    for (const away of ["192.0.2.1:50052", "localhost.example:50052", "127.0.0.1.example:50052", 7]) {
      fleetAt(away);
      assert.throws(() => connect(), { code: "INVALID_ARGUMENT", message: /fleet\.json: index is at .*AEENC_INDEX/ });
    }
    for (const here of ["localhost:1", "127.0.0.1:1", "[::1]:1"]) {
      fleetAt(here);
      connect().close();
    }
  });

  test("a fleet file that cannot be read, or is none, is named", () => {
    writeFileSync(fleetFile, "{");
    assert.throws(() => connect(), { code: "INVALID_ARGUMENT", message: /fleet\.json is not a fleet file/ });
    rmSync(fleetFile);
    mkdirSync(fleetFile); // what not even root reads as a file
    assert.throws(() => connect(), { code: "FAILED_PRECONDITION", message: /fleet\.json cannot be read/ });
    rmSync(fleetFile, { recursive: true });
    connect().close();
  });

  test("a service that asks for a client certificate is shown it", async () => {
    const [cert, key] = ["pem", "key"].map((ending) => join(folder, `own.${ending}`)) as [string, string];
    const made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=own -addext";
    const words = [...made.split(" "), "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert];
    execFileSync("openssl", words, { stdio: "ignore" });
    const handler = connectNodeAdapter({
      routes: (router) => router.service(IndexService, { retrieve: () => ({ results: [{}], generation: "g" }) }),
    });
    const pair = { cert: readFileSync(cert), key: readFileSync(key), ca: readFileSync(cert) };
    const server = createSecureServer({ ...pair, requestCert: true, rejectUnauthorized: true }, handler);
    await new Promise<void>((resolve) => server.listen(0, "localhost", resolve));
    const index = `localhost:${(server.address() as AddressInfo).port}`;
    try {
      using shown = connect({ index, ca: cert, cert, key });
      assert.equal((await shown.retrieve("science", ["text"])).generation, "g");
      using hidden = connect({ index, ca: cert, timeoutMs: 500 });
      await assert.rejects(hidden.retrieve("science", ["text"]), AeencError);
    } finally {
      server.close();
    }
    const together = { code: "INVALID_ARGUMENT", message: /cert and key belong together/ };
    assert.throws(() => connect({ ca: cert, cert }), together);
    assert.throws(() => connect({ ca: cert, key }), together);
    assert.throws(() => connect({ cert, key }), { code: "INVALID_ARGUMENT", message: /^cert: needs TLS/ });
    const unlike = { code: "INVALID_ARGUMENT", message: /^cert .*own\.pem and key .*other\.key cannot be used \(/ };
    const other = join(folder, "other.key");
    execFileSync("openssl", ["genpkey", "-algorithm", "ed25519", "-out", other]);
    assert.throws(() => connect({ ca: cert, cert, key: other }), unlike);
    const none = { code: "INVALID_ARGUMENT", message: /^ca: .*own\.key.* cannot be used \(/ };
    assert.throws(() => connect({ ca: key }), none);
    const missing = { code: "INVALID_ARGUMENT", message: /^ca: .*nowhere\.pem.* cannot be read/ };
    assert.throws(() => connect({ ca: join(folder, "nowhere.pem") }), missing);
  });
});

test("a watch in silence asks whether its connection still lives", async (context) => {
  const handler = connectNodeAdapter({
    routes: (router) =>
      router.service(SamplerService, {
        async *watchRun({ fromSeq }, { signal }) {
          yield { seq: fromSeq, run: { id: "r" } };
          await new Promise((resolve) => signal.addEventListener("abort", resolve));
        },
      }),
  });
  const server = createServer(handler);
  const pinged = new Promise((resolve, reject) => {
    server.on("session", (session) => session.once("ping", resolve));
    setInterval(() => reject(new Error("no ping")), 5000).unref(); // a time limit: setTimeout stands still here
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const client = connect({ sampler: `127.0.0.1:${(server.address() as AddressInfo).port}` });
  try {
    const events = client.watchRun("r")[Symbol.asyncIterator]();
    await events.next();
    const next = events.next().catch(() => undefined);
    context.mock.timers.tick(330_000);
    await pinged;
    client.close();
    await next;
  } finally {
    client.close();
    server.close();
  }
});

describe("before a running fleet", { skip: !process.env.AEENC_TEST_ORACLE }, () => {
  test("premises are found, best first", async () => {
    using client = connect();
    const { results, modelVersion } = await client.retrieve("science", ["iron is a metal", "ice is water"], { k: 3 });
    assert.deepEqual(results.map((hits) => hits.length), [3, 3]);
    assert.ok(results[0][0].score >= results[0][1].score);
    assert.ok(modelVersion);
    const byWords = await client.retrieve("science", ["iron is a metal"], { mode: "lexical", k: 1 });
    assert.equal(byWords.modelVersion, "");
  });

  test("an error names the field, the limit and the call", async () => {
    using client = connect();
    await assert.rejects(client.retrieve("science", ["text"], { k: 0 }), (error: AeencError) => {
      assert.deepEqual(error.violations, [{ field: "k", description: "is 0; give 1 to 1,000" }]);
      assert.match(error.requestId, /^[0-9a-f]{32}$/);
      return error.code === "INVALID_ARGUMENT" && error.message.includes(error.requestId);
    });
  });

  test("a wrong token is refused", async () => {
    using client = connect({ token: "guess" });
    await assert.rejects(client.retrieve("science", ["text"]), failsWith("UNAUTHENTICATED"));
  });

  test("a run asks an oracle of ours and is watched to its end", async () => {
    const judge = ({ candidates }: { candidates: { id: string }[] }) => candidates.slice(0, 1).map(({ id }) => id);
    const oracle = await serveOracle({ name: "first", judge }, { address: process.env.AEENC_TEST_ORACLE });
    try {
      using client = connect();
      const hypotheses = [{ id: "one", text: "iron is a metal" }];
      const { id } = await client.startRun(hypotheses, { corpus: "science", oracle: "node", k: 4, maxJudgements: 4n });
      let last = (await client.sampler.getRun({ runId: id })).run!;
      for await (const event of client.watchRun(id)) last = event.run;
      assert.equal(WorkState[last.state], "SUCCEEDED", last.error);
      assert.deepEqual([last.progress?.positives, last.progress?.negatives], [1n, 3n]);
      const { pairs } = await client.sampler.listPairs({ runId: id });
      assert.deepEqual(pairs.map(({ provenance }) => provenance?.annotator), Array(4).fill("first"));
    } finally {
      await oracle.stop();
    }
  });
});

test("the index that the environment names says of each odd input what it says to all clients", { skip: !process.env.AEENC_TEST_INDEX }, async () => {
  using client = connect({ index: process.env.AEENC_TEST_INDEX });
  const isNamed = ({ field, coded, error }: OddInput) =>
    error?.code !== "INVALID_ARGUMENT" || error.message.startsWith(field) || /^generation .*[\0/]/.test(`${field} ${coded}`); // no folder's name
  const unlike = (await oddInputs(client)).filter((one) => (one.error?.code ?? "OK") !== one.status || !isNamed(one));
  assert.deepEqual(unlike.map(({ field, coded, error }) => [field, coded, error?.message]), []);
});
