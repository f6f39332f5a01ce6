// The error of every call: status, reason and remedy as the service gave them, or what the transport says instead.

import { Code, ConnectError } from "@connectrpc/connect";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";

/** The gRPC statuses that the services raise. */
export type ErrorCode =
  | "CANCELLED" | "UNKNOWN" | "INVALID_ARGUMENT" | "DEADLINE_EXCEEDED" | "NOT_FOUND" | "ALREADY_EXISTS"
  | "PERMISSION_DENIED" | "RESOURCE_EXHAUSTED" | "FAILED_PRECONDITION" | "ABORTED" | "OUT_OF_RANGE"
  | "UNIMPLEMENTED" | "INTERNAL" | "UNAVAILABLE" | "DATA_LOSS" | "UNAUTHENTICATED";

/** One wrong field of a request: its path (`texts[3]`) and what is wrong with it. */
export interface FieldViolation {
  field: string;
  description: string;
}

export interface ErrorDetails {
  reason?: string;
  violations?: FieldViolation[];
  retryAfterMs?: number;
  requestId?: string;
  metadata?: Record<string, string>;
  cause?: unknown;
}

/** A failed call. Its message names the wrong value and the remedy. */
export class AeencError extends Error {
  override readonly name = "AeencError";
  /** The status. */
  readonly code: ErrorCode;
  /** The stable name of the problem, such as `SPACE_MISMATCH`; the code where the service gave none. */
  readonly reason: string;
  /** The wrong fields of the request. */
  readonly violations: readonly FieldViolation[];
  /** When to come back, after RESOURCE_EXHAUSTED; undefined: the service does not say. */
  readonly retryAfterMs: number | undefined;
  /** The id under which the service's log has the call. Empty: no service answered. */
  readonly requestId: string;
  /** What else the service says, by name. */
  readonly metadata: Readonly<Record<string, string>>;

  constructor(code: ErrorCode, message: string, details: ErrorDetails = {}) {
    super(details.requestId ? `${message} (request ${details.requestId})` : message, { cause: details.cause });
    this.code = code;
    this.reason = details.reason || code;
    this.violations = details.violations ?? [];
    this.retryAfterMs = details.retryAfterMs;
    this.requestId = details.requestId ?? "";
    this.metadata = details.metadata ?? {};
  }

  /** Whether the same call may succeed later. */
  get isTransient(): boolean {
    return this.code === "UNAVAILABLE" || this.code === "RESOURCE_EXHAUSTED";
  }

  /** The error that a call to `target` with `timeoutMs` (undefined: no deadline) has raised. */
  static from(error: unknown, target: string, timeoutMs?: number): AeencError {
    if (error instanceof AeencError) return error;
    const failure = ConnectError.from(error);
    const code = codeOf(failure.code);
    const [info] = failure.findDetails(ErrorInfoSchema);
    if (!info) {
      return new AeencError(code, withoutService(code, failure.rawMessage, target, timeoutMs), { cause: error });
    }
    const [bad] = failure.findDetails(BadRequestSchema);
    const delay = failure.findDetails(RetryInfoSchema)[0]?.retryDelay;
    const fields = (bad?.fieldViolations ?? []).map(({ field }) => field);
    const inMessage = fields.find((field) => failure.rawMessage.startsWith(`${field}: `)) ?? "";
    return new AeencError(code, asInNode(inMessage) + failure.rawMessage.slice(inMessage.length), {
      reason: info.reason,
      violations: (bad?.fieldViolations ?? []).map(({ field, description }) => ({ field: asInNode(field), description })),
      retryAfterMs: delay && Number(delay.seconds) * 1000 + delay.nanos / 1e6,
      requestId: failure.metadata.get("x-request-id") ?? "",
      metadata: info.metadata,
      cause: error,
    });
  }
}

/** A path of the protos as this client has it: `rerank_weight` is `rerankWeight`; what stands in brackets stays. */
const asInNode = (path: string): string =>
  path.replace(/\[[^\]]*\]|_(\w)/g, (whole, letter?: string) => letter?.toUpperCase() ?? whole);

/** The name of a status as gRPC writes it. */
function codeOf(code: Code): ErrorCode {
  if (code === Code.Canceled) return "CANCELLED";
  return Code[code].replace(/(?!^)([A-Z])/g, "_$1").toUpperCase() as ErrorCode;
}

/** The message of a failure in which no service of ours had a say. */
function withoutService(code: ErrorCode, message: string, target: string, timeoutMs?: number): string {
  if (code === "UNAVAILABLE") return `no service answers at ${target} (${message}); is it running there?`;
  if (code === "DEADLINE_EXCEEDED" && timeoutMs) {
    return `${target} did not answer within ${timeoutMs / 1000} s; allow more time`;
  }
  return message;
}
