// Addresses and credentials: what is given, AEENC_* variables, the local fleet's file, this machine's default ports.

import { readFileSync } from "node:fs";
import { BlockList, isIP } from "node:net";
import { join } from "node:path";
import { AeencError } from "./errors.js";

const DEFAULTS = {
  encoder: "127.0.0.1:50051",
  index: "127.0.0.1:50052",
  sampler: "127.0.0.1:50053",
  trainer: "127.0.0.1:50054",
};

/** The services that one can call. */
export type ServiceName = keyof typeof DEFAULTS;

/** Options of `connect`. What is left out is found: AEENC_INDEX …, `.aeenc/fleet.json`, the default ports. */
export interface ConnectOptions extends Partial<Record<ServiceName, string>> {
  /** The credential of all calls. Default: AEENC_TOKEN. */
  token?: string;
  /** The credential of calls that change what is served. Default: AEENC_ADMIN_TOKEN, else `token`. */
  adminToken?: string;
  /** A PEM file with the authority of the services' certificates: the calls are TLS. Default: AEENC_CA. */
  ca?: string;
  /** PEM files of the client certificate that the services ask for, and of its key. Default: AEENC_CERT, AEENC_KEY. */
  cert?: string;
  key?: string;
  /** Whether the calls are TLS, also without `ca`: for certificates of authorities that Node knows (and those in
   * NODE_EXTRA_CA_CERTS). Default: AEENC_TLS. */
  tls?: boolean;
  /** Whether a token may travel to another host without TLS, in a network you trust. Default: AEENC_PLAIN_TOKEN. */
  plainToken?: boolean;
  /** The default deadline of a call, its retries included, in milliseconds. Default: AEENC_TIMEOUT_S, else 60,000. */
  timeoutMs?: number;
}

export interface Targets extends Record<ServiceName, string> {
  token: string | undefined;
  adminToken: string | undefined;
  ca: string | undefined;
  cert: string | undefined;
  key: string | undefined;
  tls: boolean;
  plainToken: boolean;
  timeoutMs: number;
}

/** Finds what was not given. Throws INVALID_ARGUMENT for a malformed fleet file. */
export function findTargets(given: ConnectOptions): Targets {
  const fleet = readFleet(join(process.env["AEENC_HOME"] || ".aeenc", "fleet.json"));
  const address = (name: ServiceName) => given[name] || variable(name) || fleet[name] || DEFAULTS[name];
  const token = bare(given.token || variable("token"));
  const ca = given.ca || variable("ca");
  const tls = given.tls ?? isOn("tls");
  if (ca && tls === false) {
    throw new AeencError(
      "INVALID_ARGUMENT",
      `tls: is off, and ca ${JSON.stringify(ca)} makes connections TLS; leave out one of them (AEENC_TLS, AEENC_CA)`,
    );
  }
  return {
    encoder: address("encoder"),
    index: address("index"),
    sampler: address("sampler"),
    trainer: address("trainer"),
    token,
    adminToken: bare(given.adminToken || variable("admin_token")) || token,
    ca,
    cert: given.cert || variable("cert"),
    key: given.key || variable("key"),
    tls: tls ?? Boolean(ca),
    plainToken: given.plainToken ?? isOn("plain_token") ?? false,
    timeoutMs: 1000 * seconds(),
  };
}

/** Returns a token without blanks around it. Throws INVALID_ARGUMENT for one that no header holds; it is not shown. */
export function bare(token: string | undefined): string | undefined {
  if (!token || /^[!-~]{1,8192}$/.test(token.trim())) return token?.trim();
  throw new AeencError(
    "INVALID_ARGUMENT",
    "token: is blank or has characters, blanks among them, that are not visible ASCII; read it from its file anew",
  );
}

function seconds(): number {
  const found = Number(variable("timeout_s") ?? 60);
  if (found > 0 && Number.isFinite(found)) return found;
  throw new AeencError("INVALID_ARGUMENT", `AEENC_TIMEOUT_S must be seconds above 0, got ${variable("timeout_s")}`);
}

/** Reads a switch. Throws INVALID_ARGUMENT for a value that is none. */
function isOn(name: string): boolean | undefined {
  const value = variable(name);
  const found = /^(?:(true|1)|false|0)$/i.exec(value ?? "");
  if (value === undefined || found) return found ? Boolean(found[1]) : undefined;
  throw new AeencError("INVALID_ARGUMENT", `AEENC_${name.toUpperCase()} must be true or false, got ${value}`);
}

function variable(name: string): string | undefined {
  return process.env[`AEENC_${name.toUpperCase()}`] || undefined;
}

const LOOPBACK = new BlockList();
LOOPBACK.addSubnet("127.0.0.0", 8, "ipv4");
LOOPBACK.addAddress("::1", "ipv6");

/** Whether what is sent to an address stays on this machine. */
export function isLocal(target: string): boolean {
  const host = target.replace(/:\d+$/, "").replace(/^\[|\]$/g, "");
  return host.toLowerCase() === "localhost" || (isIP(host) > 0 && LOOPBACK.check(host, isIP(host) === 6 ? "ipv6" : "ipv4"));
}

/** Refuses addresses of other hosts: a file of the working directory must send credentials to nobody else. */
function checked(path: string, targets: Record<string, string>): Record<string, string> {
  for (const [name, target] of Object.entries(targets)) {
    if (!isLocal(String(target))) {
      throw new AeencError(
        "INVALID_ARGUMENT",
        `${path}: ${name} is at ${target}, and a fleet file may name this machine alone; give that address by AEENC_${name.toUpperCase()}`,
      );
    }
  }
  return targets;
}

function readFleet(path: string): Partial<Record<string, string>> {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (error) {
    if (["ENOENT", "ENOTDIR"].includes((error as NodeJS.ErrnoException).code ?? "")) return {};
    const remedy = "run as the account that started the fleet";
    throw new AeencError("FAILED_PRECONDITION", `${path} cannot be read (${error}); ${remedy}`);
  }
  try {
    const fleet = JSON.parse(text);
    if (fleet.format_version === 1 && typeof fleet.targets === "object") {
      return checked(path, fleet.targets);
    }
  } catch (error) {
    if (error instanceof AeencError) throw error;
    // not JSON
  }
  throw new AeencError("INVALID_ARGUMENT", `${path} is not a fleet file of format_version 1; restart the fleet`);
}
