// What no message can hold is refused before it is sent, by the name that the caller gave it.

import { type DescEnum, type DescField, type DescMessage, ScalarType } from "@bufbuild/protobuf";
import { AeencError } from "./errors.js";

const HALF = /\p{Surrogate}/u; // a lone surrogate, which UTF-8 cannot hold
const WHOLE: Partial<Record<ScalarType, [number | bigint, number | bigint]>> = {
  [ScalarType.INT32]: [-(2 ** 31), 2 ** 31 - 1],
  [ScalarType.UINT32]: [0, 2 ** 32 - 1],
  [ScalarType.INT64]: [-(2n ** 63n), 2n ** 63n - 1n],
  [ScalarType.UINT64]: [0, 2n ** 64n - 1n],
};

/** Throws INVALID_ARGUMENT for the first value that a message of `schema` cannot hold. `names` are what the caller
 * calls fields by other names. */
export function refuseOdd(schema: DescMessage, input: object, names: Readonly<Record<string, string>> = {}): void {
  const given = input as Record<string, unknown>;
  for (const field of schema.fields) {
    const chosen = field.oneof && (given[field.oneof.localName] as { case?: string; value?: unknown } | undefined);
    const value = field.oneof ? (chosen?.case === field.localName ? chosen.value : undefined) : given[field.localName];
    if (value !== undefined) refuseValue(field, value, names[field.localName] ?? field.localName, names);
  }
}

function refuseValue(field: DescField, value: unknown, name: string, names: Readonly<Record<string, string>>): void {
  const message = field.fieldKind === "scalar" ? undefined : field.message;
  if (field.fieldKind === "list") {
    listOf(name, value).forEach((one, place) => {
      const part = names[name] ?? `${name}[${place}]`;
      if (message) refuseOdd(message, objectOf(part, one), names);
      else if (field.listKind === "scalar") refuseScalar(field.scalar, one, part);
      else if (field.listKind === "enum") refuseEnum(field.enum, one, part);
    });
  } else if (field.fieldKind === "map") {
    for (const [key, one] of Object.entries(objectOf(name, value))) {
      if (field.mapKind === "scalar") refuseScalar(field.scalar, one, `${name}.${key}`);
    }
  } else if (field.fieldKind === "scalar") {
    refuseScalar(field.scalar, value, name);
  } else if (field.fieldKind === "enum") {
    refuseEnum(field.enum, value, name);
  } else if (message) {
    refuseOdd(message, objectOf(name, value), names);
  }
}

/** Refuses what is no number; which numbers there are is the service's to know. */
function refuseEnum({ name: kind }: DescEnum, value: unknown, name: string): void {
  const isNumber = Number.isInteger(value) && (value as number) === ((value as number) | 0);
  if (!isNumber) refuse(name, value, `give a value of the enum ${kind}`);
}

function refuseScalar(kind: ScalarType, value: unknown, name: string): void {
  const range = WHOLE[kind];
  if (kind === ScalarType.STRING) {
    if (typeof value !== "string") refuse(name, value, "give text");
    if (HALF.test(value)) throw new AeencError("INVALID_ARGUMENT", `${name}: has half a character; give whole characters`);
  } else if (kind === ScalarType.BOOL) {
    if (typeof value !== "boolean") refuse(name, value, "give true or false");
  } else if (kind === ScalarType.FLOAT || kind === ScalarType.DOUBLE) {
    if (typeof value !== "number") refuse(name, value, "give a number");
    const isTooLarge = kind === ScalarType.FLOAT && Number.isFinite(value) && !Number.isFinite(Math.fround(value));
    if (isTooLarge) refuse(name, value, "give a number that 32 bits hold");
  } else if (kind === ScalarType.BYTES) {
    if (!(value instanceof Uint8Array)) refuse(name, value, "give a Uint8Array");
  } else if (range) {
    const isWhole = typeof value === "bigint" || Number.isInteger(value);
    if (!isWhole || (value as number) < range[0] || (value as number) > range[1]) {
      refuse(name, value, `give a whole number from ${range[0]} to ${range[1]}`);
    }
  }
}

/** Returns a list. Throws INVALID_ARGUMENT for anything else, one text among it. */
export function listOf(name: string, given: unknown): readonly unknown[] {
  if (!Array.isArray(given)) refuse(name, given, "give a list");
  return given;
}

/** Returns what alone may be found; undefined or null: all. Throws INVALID_ARGUMENT for an empty list, to a message the same. */
export function allowed<T>(name: string, given: readonly T[] | null | undefined): readonly T[] {
  if (given === undefined || given === null) return [];
  return listOf(name, given).length ? given : refuse(name, given, "leave it out to search all, or give at least one");
}

/** Returns an object. Throws INVALID_ARGUMENT for anything else. */
export function objectOf(name: string, given: unknown): object {
  return typeof given === "object" && given ? given : refuse(name, given, "give an object");
}

/** Returns what a name stands for. Throws INVALID_ARGUMENT for an unknown one. */
export function pick<T>(field: string, table: Readonly<Record<string, T>>, name: unknown): T {
  const found = typeof name === "string" && Object.hasOwn(table, name) ? table[name] : undefined;
  return found ?? refuse(field, name, `give one of ${Object.keys(table).join(", ")}`);
}

/** Returns a time limit. Throws INVALID_ARGUMENT for anything else; Infinity is none. */
export function milliseconds(given: unknown): number {
  return typeof given === "number" && given > 0 ? given : refuse("timeoutMs", given, "give milliseconds above 0");
}

export function refuse(name: string, value: unknown, remedy: string): never {
  const shown = ["bigint", "number"].includes(typeof value) ? `${value}` : `${JSON.stringify(value) ?? typeof value}`;
  throw new AeencError("INVALID_ARGUMENT", `${name}: is ${shown.slice(0, 60)}; ${remedy}`);
}
