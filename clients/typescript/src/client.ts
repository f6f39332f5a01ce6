// The client: retrieval and runs under one roof, and every other call of the protos through `service`.

import { randomUUID } from "node:crypto";
import type { DescService, MessageInitShape } from "@bufbuild/protobuf";
import { timestampDate } from "@bufbuild/protobuf/wkt";
import { createClient, type Client as ServiceClient } from "@connectrpc/connect";
import { Channel, pause } from "./channel.js";
import { AeencError } from "./errors.js";
import { allowed, listOf, milliseconds, objectOf, pick, refuse, refuseOdd } from "./inputs.js";
import { EncoderService } from "./gen/aeenc/v1/encoder_pb.js";
import { FusionMethod, IndexService, RetrieveMode, RetrieveRequestSchema } from "./gen/aeenc/v1/index_pb.js";
import { PeopleService } from "./gen/aeenc/v1/people_pb.js";
import { HypothesisSchema, type Run, RunConfigSchema, SamplerService, WatchRunRequestSchema } from "./gen/aeenc/v1/sampler_pb.js";
import { TrainerService } from "./gen/aeenc/v1/trainer_pb.js";
import { Precision, Truncate } from "./gen/aeenc/v1/types_pb.js";
import { type ConnectOptions, findTargets, type ServiceName, type Targets } from "./targets.js";

const HOSTS: Record<string, ServiceName> = { Registry: "trainer", People: "sampler" }; // whose server serves them
const PAUSE_MS = 500;
const CHUNK_HYPOTHESES = 512;
const CHUNK_BYTES = 1024 * 1024; // of hypotheses in a message; services accept 4 MiB

/** How to match texts and premises: by the encoder, by words (BM25), by both, or by words in rounds. */
export type Mode = "dense" | "lexical" | "hybrid" | "iterative_lexical";

const MODES: Record<Mode, RetrieveMode> = {
  dense: RetrieveMode.DENSE,
  lexical: RetrieveMode.LEXICAL,
  hybrid: RetrieveMode.HYBRID,
  iterative_lexical: RetrieveMode.ITERATIVE_LEXICAL,
};
const METHODS = { min_max: FusionMethod.MIN_MAX, reciprocal_rank: FusionMethod.RECIPROCAL_RANK };
const PRECISIONS = {
  float32: Precision.FLOAT32,
  float16: Precision.FLOAT16,
  int8: Precision.INT8,
};

/** What `retrieve` calls fields of its request. */
const NAMES = { excludeIds: "exclude", anySplit: "splits", premiseIds: "accepted", allOf: "tags", noneOf: "tags" };

/** Options of one call. */
export interface CallOptions {
  /** The deadline, retries included, in milliseconds. Default: that of the client. */
  timeoutMs?: number;
  /** Ends the call when it is aborted. */
  signal?: AbortSignal;
}

/** Options of `retrieve`, as the message RetrieveRequest describes them. */
export interface RetrieveOptions extends CallOptions {
  /** The number of premises per text. Default: 10. */
  k?: number;
  mode?: Mode;
  /** How mode `hybrid` combines both rankings; `lexicalWeight` is BM25's share, 0 to 1. `features` are weights by
   * which the first 100 premises are ordered anew, as `aeenc tune-retrieval` finds them. */
  fusion?: { method?: keyof typeof METHODS; lexicalWeight?: number; features?: Readonly<Record<string, number>> };
  /** The query encoder by label. Default: `stable`. */
  label?: string;
  /** The query encoder by version, instead of `label`. */
  version?: string;
  /** Ids of the premises already found, one list per text: seeks what these leave unexplained. */
  accepted?: readonly (readonly string[])[];
  /** The share, 0 to 1, of premises that explained similar hypotheses. */
  prior?: number;
  /** The share, 0 to 1, of the first premises' direction that is taken off the query. */
  negativeFeedback?: number;
  /** How many of the first premises a cross-encoder re-ranks, at least `k`. */
  rerank?: number;
  rerankWeight?: number;
  /** Several cross-encoders, by version; they rank by the sum of their ranks. */
  rerankVersions?: readonly string[];
  /** Whether to drop a premise whose text is the query's. Default: true. */
  dropSelf?: boolean;
  /** Ids never to return. */
  exclude?: readonly string[];
  /** Only premises with one of these splits, or without any. Empty lists, here and below, are refused: leave them out. */
  splits?: readonly string[];
  /** Only these premises, by id. */
  onlyIds?: readonly string[];
  /** Only premises that were inserted before this one. */
  beforeId?: string;
  /** Only premises that fit one of these clauses, such as `physics,-draft`. */
  tags?: readonly string[];
  /** Searches exactly, whatever the engine. */
  exact?: boolean;
  nprobe?: number;
  efSearch?: number;
  /** The generation to search. Default: the active one. */
  generation?: string;
  /** Cuts texts that are too long for the model, instead of refusing them. */
  truncate?: boolean;
  precision?: keyof typeof PRECISIONS;
  /** Calls with the same key take the same route while a canary has a share. */
  routingKey?: string;
}

/** One premise found; `score` is a cosine in mode `dense`. */
export interface Hit {
  id: string;
  text: string;
  score: number;
}

/** The premises found, one list per text, best first, and where they come from. */
export interface Retrieved {
  results: Hit[][];
  modelVersion: string;
  spaceId: string;
  generation: string;
  exact: boolean;
  rerankVersions: string[];
  /** The splits asked for that no premise of the generation has. */
  unknownSplits: string[];
  /** The tags asked for that no premise of the generation has. */
  unknownTags: string[];
}

/** One event of a run; `run` is its state after the event. */
export interface RunEvent {
  seq: number;
  at: Date | undefined;
  run: Run;
}

/** The configuration of a run; `corpus` and `oracle` are needed. */
export type RunOptions = Omit<MessageInitShape<typeof RunConfigSchema>, "$typeName">;

/** Opens the connections to the services at the first call. Close it when you are done, or Node stays alive. */
export function connect(options: ConnectOptions = {}): Client {
  return new Client(options);
}

/** The four services; the sampler's server serves `people`, too. All calls throw `AeencError`. */
export class Client {
  readonly encoder: ServiceClient<typeof EncoderService>;
  readonly index: ServiceClient<typeof IndexService>;
  readonly people: ServiceClient<typeof PeopleService>;
  readonly sampler: ServiceClient<typeof SamplerService>;
  readonly trainer: ServiceClient<typeof TrainerService>;
  readonly #targets: Targets;
  readonly #timeoutMs: number;
  readonly #channels = new Map<string, Channel>();

  constructor(options: ConnectOptions = {}) {
    this.#targets = findTargets(options);
    this.#timeoutMs = milliseconds(options.timeoutMs ?? this.#targets.timeoutMs);
    this.encoder = this.service(EncoderService);
    this.index = this.service(IndexService);
    this.people = this.service(PeopleService);
    this.sampler = this.service(SamplerService);
    this.trainer = this.service(TrainerService);
  }

  /** All calls of a service of `aeenc/v1/*`, typed. Admin services get the admin token. */
  service<S extends DescService>(service: S): ServiceClient<S> {
    const [, name = "", admin] = /^(\w+?)(Admin)?Service$/.exec(service.name) ?? [];
    const place = (HOSTS[name] ?? name.toLowerCase()) as ServiceName;
    const target = this.#targets[place];
    if (service.file.proto.package !== "aeenc.v1" || !target) {
      throw new AeencError("INVALID_ARGUMENT", `${service.typeName} is none of the services; give one of aeenc/v1`);
    }
    const slot = `${place} ${admin ?? ""}`;
    let channel = this.#channels.get(slot);
    if (!channel) {
      const token = admin ? this.#targets.adminToken : this.#targets.token;
      const { ca, cert, key, tls, plainToken } = this.#targets;
      channel = new Channel(target, { token, ca, cert, key, tls, plainToken, timeoutMs: this.#timeoutMs });
      this.#channels.set(slot, channel);
    }
    return createClient(service, channel);
  }

  /** Finds the premises of `corpus` that best explain each text. */
  async retrieve(corpus: string, texts: readonly string[], options: RetrieveOptions = {}): Promise<Retrieved> {
    const { k = 10, mode = "dense", label, version, fusion, accepted = [], precision, signal, timeoutMs } = options;
    const { exclude = [], rerankVersions = [], truncate = false } = options;
    for (const [name, given] of Object.entries({ texts, accepted, exclude, rerankVersions })) {
      listOf(name, given);
    }
    accepted.forEach((ids, place) => listOf(`accepted[${place}]`, ids));
    if (fusion !== undefined) objectOf("fusion", fusion);
    if (typeof truncate !== "boolean") refuse("truncate", truncate, "give true or false");
    if (label !== undefined && typeof label !== "string") refuse("label", label, "give text");
    if (version !== undefined && typeof version !== "string") refuse("version", version, "give text");
    const request = {
      corpus,
      texts: [...texts],
      k,
      options: {
        mode: pick("mode", MODES, mode),
        ...(fusion && {
          fusion: {
            method: pick("fusion.method", METHODS, fusion.method ?? "min_max"),
            lexicalWeight: fusion.lexicalWeight,
            features: { ...fusion.features },
          },
        }),
        prior: options.prior,
        negativeFeedback: options.negativeFeedback,
        rerank: options.rerank,
        rerankWeight: options.rerankWeight,
        rerankVersions: [...rerankVersions],
      },
      accepted: accepted.map((premiseIds) => ({ premiseIds: [...premiseIds] })),
      ...(version ? { model: { selector: { case: "version" as const, value: version } } } : {}),
      ...(label && !version ? { model: { selector: { case: "label" as const, value: label } } } : {}),
      dropSelf: options.dropSelf,
      excludeIds: [...exclude],
      filter: {
        anySplit: [...allowed("splits", options.splits)],
        onlyIds: [...allowed("onlyIds", options.onlyIds)],
        beforeId: options.beforeId,
        anyClause: allowed("tags", options.tags).map(clauseOf),
      },
      generation: options.generation,
      truncate: truncate ? Truncate.END : Truncate.ERROR,
      ...(precision !== undefined && { precision: pick("precision", PRECISIONS, precision) }),
      routingKey: options.routingKey,
      params: { exact: options.exact, nprobe: options.nprobe, efSearch: options.efSearch },
    };
    refuseOdd(RetrieveRequestSchema, request, NAMES);
    const response = await this.index.retrieve(request, { signal, timeoutMs });
    return {
      results: response.results.map(({ premises }) =>
        premises.map(({ premise, score }) => ({ id: premise?.id ?? "", text: premise?.text ?? "", score }))),
      modelVersion: response.modelVersion,
      spaceId: response.spaceId,
      generation: response.generation,
      exact: response.exact,
      rerankVersions: response.rerankVersions,
      unknownSplits: response.unknownSplits,
      unknownTags: response.unknownTags,
    };
  }

  /** Starts a run over hypotheses and returns at once. Makes an idempotency key where none is given. */
  async startRun(
    hypotheses: Iterable<{ id: string; text: string }>,
    config: RunOptions,
    options: CallOptions = {},
  ): Promise<Run> {
    const all = [...hypotheses];
    refuseOdd(RunConfigSchema, config);
    all.forEach((one, place) => {
      const isWhole = typeof one?.id === "string" && typeof one.text === "string";
      if (!isWhole) refuse(`hypotheses[${place}]`, one, "give an id and a text");
      refuseOdd(HypothesisSchema, one);
      if ("onlyIds" in one) allowed(`hypotheses[${place}].onlyIds`, one.onlyIds as readonly string[] | undefined);
    });
    const keyed = { ...config, idempotencyKey: config.idempotencyKey || randomUUID() };
    async function* requests() {
      yield { config: keyed };
      let chunk: typeof all = [];
      let bytes = 0;
      for (const one of all) {
        const size = Buffer.byteLength(one.id) + Buffer.byteLength(one.text);
        if (chunk.length === CHUNK_HYPOTHESES || (chunk.length && bytes + size > CHUNK_BYTES)) {
          yield { hypotheses: chunk };
          [chunk, bytes] = [[], 0];
        }
        chunk.push(one);
        bytes += size;
      }
      if (chunk.length) yield { hypotheses: chunk };
    }
    const { run } = await this.sampler.startRun(requests(), options);
    return present(run);
  }

  /**
   * Replays the events of a run from `fromSeq` on and follows them until it ends, across a restart of the sampler
   * that takes no longer than the client's `timeoutMs`.
   */
  async *watchRun(
    runId: string,
    options: { fromSeq?: number; signal?: AbortSignal } = {},
  ): AsyncGenerator<RunEvent, void, undefined> {
    let next = options.fromSeq ?? 1;
    if (!Number.isSafeInteger(next)) refuse("fromSeq", next, "give a whole number");
    refuseOdd(WatchRunRequestSchema, { runId, fromSeq: BigInt(next) });
    const left = new AbortController(); // by a caller who breaks off: else the call would go on
    const signal = AbortSignal.any([left.signal, ...(options.signal ? [options.signal] : [])]);
    let brokenAt: number | undefined;
    try {
      for (;;) {
        let begunAt = Infinity;
        try {
          if (brokenAt !== undefined) await this.sampler.getRun({ runId }, { signal }); // throws while it is away
          begunAt = performance.now();
          for await (const { seq, at, run } of this.sampler.watchRun({ runId, fromSeq: BigInt(next) }, { signal })) {
            brokenAt = undefined;
            next = Number(seq) + 1;
            yield { seq: Number(seq), at: at && timestampDate(at), run: present(run) };
          }
          return;
        } catch (error) {
          const isAway = error instanceof AeencError && error.isTransient;
          if (!isAway) throw error;
          const now = performance.now();
          if (brokenAt === undefined || now - begunAt > PAUSE_MS) brokenAt = now; // it was there, and silent
          const pauseMs = Math.max(PAUSE_MS, error.retryAfterMs ?? 0) * (0.8 + 0.4 * Math.random());
          if (now + pauseMs - brokenAt > this.#timeoutMs) throw error;
          await pause(pauseMs, signal, error);
        }
      }
    } finally {
      left.abort();
    }
  }

  /** Closes all connections. */
  close(): void {
    for (const channel of this.#channels.values()) channel.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

function clauseOf(text: string, place: number): { allOf: string[]; noneOf: string[] } {
  const names = typeof text === "string" ? text.split(",").map((name) => name.trim()) : [""];
  if (!names.every((name) => name.replace(/^-/, ""))) refuse(`tags[${place}]`, text, "give tags, as in 'physics,-draft'");
  const noneOf = names.filter((name) => name.startsWith("-")).map((name) => name.slice(1));
  return { allOf: names.filter((name) => !name.startsWith("-")), noneOf };
}

function present<T>(value: T | undefined): T {
  if (value === undefined) throw new AeencError("INTERNAL", "the sampler's answer has no run; is it another release?");
  return value;
}
