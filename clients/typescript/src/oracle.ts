// The oracle's server side: give `judge`, serve it; the sampler calls it over gRPC.
//
// An exception in `judge`, and an answer that names no candidates of the task, reach the sampler as UNAVAILABLE, and
// the task is tried again; they never count as a refusal.

import { createHash, timingSafeEqual } from "node:crypto";
import { createSecureServer, createServer, type Http2Server, type ServerHttp2Session } from "node:http2";
import type { AddressInfo } from "node:net";
import { Code, ConnectError, type ConnectRouter, type HandlerContext } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { pairOf } from "./channel.js";
import { AeencError } from "./errors.js";
import { listOf, pick, refuse, refuseOdd } from "./inputs.js";
import {
  AnswerSchema, Judgement as JudgementNumber, NodeVerdict, OracleService, Remark, type OracleTask,
} from "./gen/aeenc/v1/oracle_pb.js";
import { type RankedPremise } from "./gen/aeenc/v1/types_pb.js";
import { ErrorInfoSchema } from "./gen/google/rpc/error_details_pb.js";
import { bare, isLocal } from "./targets.js";

/** `refuses` makes a hard negative; `abstains` and `unseen` never make one. */
export type Judgement = "explains" | "refuses" | "abstains" | "unseen";

const NUMBERS: Record<Judgement, JudgementNumber> = {
  explains: JudgementNumber.EXPLAINS,
  refuses: JudgementNumber.DOES_NOT_EXPLAIN,
  abstains: JudgementNumber.ABSTAIN,
  unseen: JudgementNumber.UNSEEN,
};

const NODE_NUMBERS: Record<NonNullable<NodeAnswer["nodeVerdict"]>, NodeVerdict> = {
  complete: NodeVerdict.COMPLETE,
  premise_missing: NodeVerdict.PREMISE_MISSING,
  not_explainable: NodeVerdict.NOT_EXPLAINABLE,
};

const REMARK_NUMBERS: Record<NonNullable<Verdict["remark"]>, Remark> = {
  irrelevant: Remark.IRRELEVANT,
  bad_fact: Remark.BAD_FACT,
};

/** A premise put before the oracle; `rank` counts from 1, `score` is a cosine. */
export interface Candidate {
  id: string;
  text: string;
  rank: number;
  score: number;
}

/** One node to judge: which `candidates` explain `query`? `path` holds the texts from the root to its parent. */
export interface Task {
  taskId: string;
  runId: string;
  query: string;
  path: string[];
  accepted: Candidate[];
  candidates: Candidate[];
  /** The encoder version that retrieved the candidates; empty where it was not noted. */
  modelVersion: string;
}

/** The judgement of one candidate. A `leaf` explains the query and needs no explanation itself. */
export interface Verdict {
  judgement: Judgement;
  leaf?: boolean;
  /** A grade on a scale of yours. */
  grade?: number;
  /** Who judged, unless it was the oracle itself. */
  annotator?: string;
  /** What was remarked on the candidate beside the judgement; it decides nothing. */
  remark?: "irrelevant" | "bad_fact";
}

/**
 * The ids of the candidates that explain, and all others are refused; or judgements by id (a Map or an object), and
 * what it leaves out is unseen.
 */
export type Answer =
  | readonly string[]
  | ReadonlySet<string>
  | ReadonlyMap<string, Judgement | Verdict>
  | Readonly<Record<string, Judgement | Verdict>>;

/** An answer with what is to be said of the node as a whole, as `Answer` in oracle.proto has it. */
export interface NodeAnswer {
  verdicts: Answer;
  note?: string;
  nodeVerdict?: "complete" | "premise_missing" | "not_explainable";
  /** Premises of the corpus (ids) that explain the query and are missing among the candidates. */
  additions?: readonly string[];
  intermediates?: readonly string[];
  /** Sets of accepted premises (ids) that each explain the query. */
  alternatives?: readonly (readonly string[])[];
  inference?: string;
  written?: readonly string[];
}

export interface Oracle {
  /** The annotator in the log of pairs. Default: `oracle`. */
  name?: string;
  judge(task: Task): Answer | NodeAnswer | Promise<Answer | NodeAnswer>;
}

export interface OracleOptions {
  /** `host:port`; port 0 takes a free one. Default: 127.0.0.1:50060. */
  address?: string;
  /** What callers must send. Needed beyond loopback, unless `allowInsecure`. */
  token?: string;
  allowInsecure?: boolean;
  /** PEM files of the server's certificate and its key: the server speaks TLS. */
  cert?: string;
  key?: string;
}

/** A running oracle. */
export interface OracleServer {
  /** Where it listens, as `host:port`. */
  readonly address: string;
  /** Stops when the calls in flight are done, after `graceMs` (default: 1,000) at most. */
  stop(graceMs?: number): Promise<void>;
}

/** Serves an oracle. Throws INVALID_ARGUMENT for an open address without a token, for a blank token and for files that
 * cannot be used, UNAVAILABLE for a taken port. */
export async function serveOracle(oracle: Oracle, options: OracleOptions = {}): Promise<OracleServer> {
  const { address = "127.0.0.1:50060", cert, key } = options;
  const token = bare(options.token === "" ? " " : options.token); // an empty one, which would admit all, is blank
  const colon = address.lastIndexOf(":");
  const host = address.slice(0, colon).replace(/^\[|\]$/g, "");
  if (!/^.*:\d{1,5}$/.test(address) || Number(address.slice(colon + 1)) > 65535) refuse("address", address, "give host:port");
  if (!token && !options.allowInsecure && !isLocal(address)) {
    throw new AeencError(
      "INVALID_ARGUMENT",
      `${address} is reachable from other machines; give a token, or allowInsecure: true if you mean it`,
    );
  }
  if (!cert !== !key) throw new AeencError("INVALID_ARGUMENT", "cert and key belong together; give both or neither");
  const routes = (router: ConnectRouter) =>
    router.service(OracleService, {
      async judge({ runId, tasks }, context) {
        authenticate(context, token);
        return { answers: await Promise.all(tasks.map((task) => answerOf(oracle, runId, task))) };
      },
    });
  const handler = connectNodeAdapter({ routes, connect: false, grpcWeb: false });
  const server: Http2Server = cert && key ? createSecureServer(pairOf(cert, key), handler) : createServer(handler);
  const sessions = new Set<ServerHttp2Session>();
  server.on("session", (session) => sessions.add(session.once("close", () => sessions.delete(session))));
  await new Promise<void>((resolve, reject) => {
    server.once("error", (error) =>
      reject(new AeencError("UNAVAILABLE", `cannot listen on ${address} (${error.message}); is it taken?`)),
    );
    server.listen(Number(address.slice(colon + 1)), host, resolve);
  });
  const { port } = server.address() as AddressInfo;
  return { address: `${address.slice(0, colon)}:${port}`, stop: (graceMs = 1000) => stop(server, sessions, graceMs) };
}

async function stop(server: Http2Server, sessions: Set<ServerHttp2Session>, graceMs: number): Promise<void> {
  const closed = new Promise<void>((resolve) => server.close(() => resolve()));
  for (const session of sessions) session.close();
  const timer = setTimeout(() => sessions.forEach((session) => session.destroy()), graceMs);
  await closed;
  clearTimeout(timer);
}

function authenticate(context: HandlerContext, token: string | undefined): void {
  const sent = context.requestHeader.get("authorization") ?? "";
  if (token && !timingSafeEqual(digest(sent), digest(`Bearer ${token}`))) {
    throw refusal(Code.Unauthenticated, "UNAUTHENTICATED", "the oracle needs its token as `authorization: Bearer …`");
  }
}

async function answerOf(oracle: Oracle, runId: string, message: OracleTask) {
  const task: Task = {
    taskId: message.taskId,
    runId,
    query: message.query,
    path: message.path,
    accepted: message.accepted.map(candidateOf),
    candidates: message.candidates.map(candidateOf),
    modelVersion: message.modelVersion,
  };
  const answer = await judged(oracle, task);
  const whole = isWhole(answer, task) ? answer : undefined;
  const verdicts = readAnswer(task, whole ? whole.verdicts : answer);
  try {
    const sent = messageOf(oracle, task, verdicts, whole);
    refuseOdd(AnswerSchema, sent);
    return sent;
  } catch (error) {
    throw error instanceof AeencError ? wrong(`cannot be sent: ${error.message}`) : error;
  }
}

/** The message of an answer. Throws INVALID_ARGUMENT for what is no list, and for an unknown word. */
function messageOf(oracle: Oracle, task: Task, verdicts: Map<string, Verdict>, whole: NodeAnswer | undefined) {
  const texts = (name: "intermediates" | "written" | "additions") => [...listOf(name, whole?.[name] ?? [])] as string[];
  return {
    taskId: task.taskId,
    annotator: oracle.name ?? "oracle",
    note: whole?.note,
    nodeVerdict: whole?.nodeVerdict && pick("nodeVerdict", NODE_NUMBERS, whole.nodeVerdict),
    additions: texts("additions").map((premiseId) => ({ premiseId, judgement: NUMBERS.explains })),
    intermediates: texts("intermediates"),
    alternatives: listOf("alternatives", whole?.alternatives ?? []).map((ids, n) => ({ premiseIds: [...listOf(`alternatives[${n}]`, ids)] as string[] })),
    inference: whole?.inference,
    written: texts("written"),
    verdicts: task.candidates.map(({ id }) => {
      const { judgement, leaf, grade, annotator, remark } = verdicts.get(id) ?? { judgement: "unseen" };
      const remarked = remark && REMARK_NUMBERS[remark];
      return { premiseId: id, judgement: NUMBERS[judgement], leaf, grade, annotator, remark: remarked };
    }),
  };
}

function candidateOf({ premise, rank, score }: RankedPremise): Candidate {
  return { id: premise?.id ?? "", text: premise?.text ?? "", rank, score };
}

function isWhole(answer: unknown, task: Task): answer is NodeAnswer {
  const isObject = typeof answer === "object" && answer !== null && Object.hasOwn(answer, "verdicts");
  return isObject && task.candidates.every(({ id }) => id !== "verdicts");
}

async function judged(oracle: Oracle, task: Task): Promise<unknown> {
  try {
    return await oracle.judge(task);
  } catch (error) {
    console.error("judge failed:", error); // who runs the oracle must see it, not only the sampler
    const name = error instanceof Error ? error.name : typeof error;
    throw refusal(Code.Unavailable, "UNAVAILABLE", `the oracle's judge failed with ${name}; its log says more`);
  }
}

/** The verdicts by id. Throws UNAVAILABLE for an answer that is not about these candidates. */
function readAnswer(task: Task, answer: unknown): Map<string, Verdict> {
  if (typeof answer !== "object" || answer === null) {
    throw wrong(`is ${short(answer)}; return a list of ids, or judgements by id`);
  }
  const isList = Array.isArray(answer) || answer instanceof Set;
  const named = isList ? [...answer] : answer instanceof Map ? [...answer.keys()] : Object.keys(answer);
  const ids = new Set(task.candidates.map(({ id }) => id));
  for (const name of named) {
    if (!ids.has(name)) throw wrong(`names ${short(name)}, which is not a candidate; return ids of task.candidates`);
  }
  if (isList) {
    const chosen = new Set(named);
    return new Map([...ids].map((id) => [id, { judgement: chosen.has(id) ? "explains" : "refuses" }]));
  }
  const given: [string, unknown][] = answer instanceof Map ? [...answer] : Object.entries(answer);
  return new Map(given.map(([id, verdict]) => [id, readVerdict(id, verdict)]));
}

function readVerdict(id: string, given: unknown): Verdict {
  const verdict = (typeof given === "string" ? { judgement: given } : given) as Verdict | null | undefined;
  const isKnown = !verdict?.remark || Object.hasOwn(REMARK_NUMBERS, verdict.remark);
  if (isKnown && verdict && Object.hasOwn(NUMBERS, verdict.judgement)) return verdict;
  throw wrong(`gives ${short(id)} the verdict ${short(given)}; give ${Object.keys(NUMBERS).join(", ")} or a Verdict`);
}

function wrong(problem: string): ConnectError {
  const error = refusal(Code.Unavailable, "WRONG_ANSWER", `the answer of the oracle's judge ${problem}`);
  console.error(error.rawMessage);
  return error;
}

function refusal(code: Code, reason: string, message: string): ConnectError {
  return new ConnectError(message, code, undefined, [{ desc: ErrorInfoSchema, value: { reason, domain: "aeenc" } }]);
}

function short(value: unknown): string {
  const shown = JSON.stringify(value) ?? String(value);
  return shown.length <= 60 ? shown : `${shown.slice(0, 59)}…`;
}

function digest(text: string): Buffer {
  return createHash("sha256").update(text).digest();
}
