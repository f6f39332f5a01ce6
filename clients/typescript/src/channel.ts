// A connection to one service: credential, request id, deadline, retries, and errors as AeencError.

import { createPrivateKey, randomInt, randomUUID, X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import type { DescMessage, DescMethodStreaming, DescMethodUnary, MessageInitShape } from "@bufbuild/protobuf";
import type { StreamResponse, Transport, UnaryResponse } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { AeencError } from "./errors.js";
import { milliseconds, refuseOdd } from "./inputs.js";
import { isLocal } from "./targets.js";

const RETRIES = 4; // 0.1 + 0.2 + 0.4 + 0.8 s: a service that is away fails after about 1.5 s
const FIRST_PAUSE_MS = 100;
const LAST_ATTEMPT_MS = 2000; // an attempt with less time that ends by its deadline hides the refusal before it
const LONGEST_MS = 99_999_999; // gRPC's header has 8 digits; who gives more has no deadline
const PING_MS = 330_000; // of silence during a call; gRPC's own default allows one ping in five minutes
const PING_TIMEOUT_MS = 60_000;

export interface ChannelOptions {
  token: string | undefined;
  ca: string | undefined;
  cert: string | undefined;
  key: string | undefined;
  tls: boolean;
  plainToken: boolean;
  timeoutMs: number;
}

/** Calls the service at `target` (`host:port`). Throws INVALID_ARGUMENT for anything else. */
export class Channel implements Transport {
  readonly #inner: Transport;
  readonly #sessions: Http2SessionManager;
  #isClosed = false;

  constructor(
    readonly target: string,
    readonly options: ChannelOptions,
  ) {
    if (!/^(\[[^\]]+\]|[^:/,]+):\d+$/.test(target)) {
      throw new AeencError("INVALID_ARGUMENT", `address ${JSON.stringify(target)} is not host:port; give one server`);
    }
    if (options.token && !options.tls && !options.plainToken && !isLocal(target)) {
      throw new AeencError(
        "INVALID_ARGUMENT",
        `plainToken: is off, so no token travels to ${target}, another host, without TLS; give ca, or tls: true where a public authority certifies it or, in a network that you trust, plainToken: true`,
      );
    }
    const { ca, cert, key } = options;
    if (!cert !== !key) {
      throw new AeencError("INVALID_ARGUMENT", "cert and key belong together; give both or neither");
    }
    if (cert && !options.tls) {
      throw new AeencError("INVALID_ARGUMENT", "cert: needs TLS; give ca or tls: true, or leave out cert and key");
    }
    const baseUrl = `${options.tls ? "https" : "http"}://${target}`;
    const tls = { ca: authority(ca), ...(cert && key ? pairOf(cert, key) : {}) };
    this.#sessions = new Http2SessionManager(baseUrl, { pingIntervalMs: PING_MS, pingTimeoutMs: PING_TIMEOUT_MS }, tls);
    this.#inner = createGrpcTransport({ baseUrl, sessionManager: this.#sessions });
  }

  /** A unary call: transient failures are repeated with growing pauses within the deadline. */
  async unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    header: HeadersInit | undefined,
    input: MessageInitShape<I>,
  ): Promise<UnaryResponse<I, O>> {
    const budgetMs = milliseconds(timeoutMs ?? this.options.timeoutMs);
    const deadline = performance.now() + budgetMs;
    const headers = this.#headers(header);
    const message = withRequestId(method.input, input);
    refuseOdd(method.input, message);
    let refusal: AeencError | undefined;
    for (let attempt = 0; ; attempt++) {
      const leftMs = Math.max(Math.ceil(deadline - performance.now()), 1);
      try {
        return await this.#inner.unary(method, signal, limited(leftMs), headers, message);
      } catch (error) {
        const failure = this.#explained(error, signal, budgetMs);
        if (refusal && leftMs < LAST_ATTEMPT_MS && failure.code === "DEADLINE_EXCEEDED") throw refusal;
        const pauseMs = (failure.retryAfterMs ?? FIRST_PAUSE_MS * 2 ** attempt) * (0.8 + 0.4 * Math.random());
        if (!failure.isTransient || attempt >= RETRIES || pauseMs > deadline - performance.now()) throw failure;
        await pause(pauseMs, signal, (refusal = failure));
        this.#refuseClosed();
      }
    }
  }

  /** A streaming call; never repeated. No default deadline where the service streams: a watch may last. */
  async stream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodStreaming<I, O>,
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    header: HeadersInit | undefined,
    input: AsyncIterable<MessageInitShape<I>>,
  ): Promise<StreamResponse<I, O>> {
    const limitMs = timeoutMs ?? (method.methodKind === "client_streaming" ? this.options.timeoutMs : undefined);
    const raised: unknown[] = []; // by the caller's own messages
    const messages = checked(method.input, input, (error) => raised.push(error));
    const translate = (error: unknown) => (raised.length ? raised[0] : this.#explained(error, signal, limitMs));
    try {
      const within = limitMs === undefined ? limitMs : limited(milliseconds(limitMs));
      const response = await this.#inner.stream(method, signal, within, this.#headers(header), messages);
      return { ...response, message: translated(response.message, translate) };
    } catch (error) {
      throw translate(error);
    }
  }

  /** Ends the connection and the calls in flight. Later calls throw FAILED_PRECONDITION. */
  close(): void {
    this.#isClosed = true;
    this.#sessions.abort();
  }

  /** What a call has raised, with what gRPC itself reports in our words. */
  #explained(error: unknown, signal: AbortSignal | undefined, limitMs: number | undefined): AeencError {
    const failure = AeencError.from(error, this.target, limitMs);
    if (failure.requestId || signal?.aborted || this.#isClosed) return failure;
    if (failure.code === "CANCELLED") {
      const message = `${this.target} has dropped the call, as a server with too many does; try later`;
      return new AeencError("UNAVAILABLE", message, { cause: error });
    }
    if (failure.code === "RESOURCE_EXHAUSTED" && failure.message.includes("larger than max")) {
      const message = `a message to or from ${this.target} is too large (${failure.message}); split the call`;
      return new AeencError("INVALID_ARGUMENT", message, { reason: "OVER_LIMIT", cause: error });
    }
    return failure;
  }

  #refuseClosed(): void {
    if (this.#isClosed) {
      throw new AeencError("FAILED_PRECONDITION", `the connection to ${this.target} is closed; connect again`);
    }
  }

  #headers(given: HeadersInit | undefined): Headers {
    this.#refuseClosed();
    const headers = new Headers(given);
    if (!headers.has("x-request-id")) headers.set("x-request-id", randomUUID().replaceAll("-", ""));
    if (this.options.token) headers.set("authorization", `Bearer ${this.options.token}`);
    return headers;
  }
}

/** Waits before the next attempt. Throws CANCELLED, with what it waited for, when `signal` is aborted. */
export async function pause(pauseMs: number, signal: AbortSignal | undefined, failure: AeencError): Promise<void> {
  await sleep(pauseMs, undefined, { signal }).catch(() => {
    throw new AeencError("CANCELLED", `aborted while it waited: ${failure.message}`, { cause: failure });
  });
}

const limited = (limitMs: number): number | undefined => (limitMs > LONGEST_MS ? undefined : limitMs);

/** Reads the certificates of an authority. Throws INVALID_ARGUMENT for a file that has none. */
function authority(path: string | undefined): Buffer | undefined {
  const ca = bytesOf("ca", path);
  try {
    if (ca) new X509Certificate(ca);
  } catch (error) {
    throw new AeencError("INVALID_ARGUMENT", `ca: ${JSON.stringify(path)} cannot be used (${error}); give a PEM file`);
  }
  return ca;
}

/** Reads a certificate and its key. Throws INVALID_ARGUMENT for files that are no pair. */
export function pairOf(certPath: string, keyPath: string): { cert: Buffer; key: Buffer } {
  const [cert, key] = [bytesOf("cert", certPath)!, bytesOf("key", keyPath)!];
  let reason = "they are no pair";
  try {
    if (new X509Certificate(cert).checkPrivateKey(createPrivateKey(key))) return { cert, key };
  } catch (error) {
    reason = String(error);
  }
  const remedy = "give PEM files, and the key of the certificate";
  throw new AeencError("INVALID_ARGUMENT", `cert ${certPath} and key ${keyPath} cannot be used (${reason}); ${remedy}`);
}

function bytesOf(name: string, path: string | undefined): Buffer | undefined {
  try {
    return path ? readFileSync(path) : undefined;
  } catch (error) {
    throw new AeencError("INVALID_ARGUMENT", `${name}: ${JSON.stringify(path)} cannot be read (${error})`);
  }
}

/** Gives a call that changes something an id of its own, so that repeating it changes nothing twice: its `request_id`,
 * the `idempotency_key` of its `config`, or its `client_seq`. */
function withRequestId<I extends DescMessage>(schema: I, input: MessageInitShape<I>): MessageInitShape<I> {
  const { requestId, config } = input as { requestId?: string; config?: { idempotencyKey?: string } };
  if (hasField(schema, "request_id") && !requestId) {
    return { ...input, requestId: randomUUID() } as MessageInitShape<I>;
  }
  const configured = schema.fields.find((field) => field.name === "config")?.message;
  if (configured && hasField(configured, "idempotency_key") && config && !config.idempotencyKey) {
    return { ...input, config: { ...config, idempotencyKey: randomUUID() } } as MessageInitShape<I>;
  }
  const numbered = input as { clientSeq?: bigint };
  if (hasField(schema, "client_seq") && !numbered.clientSeq) {
    return { ...input, clientSeq: BigInt(randomInt(1, 2 ** 47)) } as MessageInitShape<I>;
  }
  return input;
}

function hasField(schema: DescMessage, name: string): boolean {
  return schema.fields.some((field) => field.name === name);
}

/** The messages that a caller streams, each checked before it is sent; `failed` gets what making or checking one raises. */
async function* checked<I extends DescMessage>(
  schema: I,
  given: AsyncIterable<MessageInitShape<I>>,
  failed: (error: unknown) => void,
): AsyncGenerator<MessageInitShape<I>> {
  let isSending = false; // what is raised meanwhile is the transport's
  try {
    for await (const message of given) {
      refuseOdd(schema, message);
      isSending = true;
      yield message;
      isSending = false;
    }
  } catch (error) {
    if (!isSending) failed(error);
    throw error;
  }
}

async function* translated<T>(messages: AsyncIterable<T>, translate: (error: unknown) => unknown): AsyncIterable<T> {
  try {
    yield* messages;
  } catch (error) {
    throw translate(error);
  }
}
