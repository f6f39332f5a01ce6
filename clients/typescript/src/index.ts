// AE-Enc for Node: premises that explain, and an oracle of yours. Messages and enums of the protos: `aeenc/v1/*`.

export { Client, connect } from "./client.js";
export type { CallOptions, Hit, Mode, Retrieved, RetrieveOptions, RunEvent, RunOptions } from "./client.js";
export { AeencError } from "./errors.js";
export type { ErrorCode, FieldViolation } from "./errors.js";
export { serveOracle } from "./oracle.js";
export type {
  Answer, Candidate, Judgement, NodeAnswer, Oracle, OracleOptions, OracleServer, Task, Verdict,
} from "./oracle.js";
export type { ConnectOptions, ServiceName } from "./targets.js";
