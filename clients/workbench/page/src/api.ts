// The calls of the page. All are safe to repeat: answers and leases carry ids of their own.

import { useEffect, useRef } from "preact/hooks";
import { plainly } from "./words";

export type Remark = "irrelevant" | "bad_fact";
export type Word = "explains" | "leaf" | "refuses" | "abstains";
export type NodeVerdict = "" | "complete" | "premise_missing" | "not_explainable";

export interface Person { name: string; role: "annotator" | "adjudicator" | "admin"; csrf: string }
export const ROLES: Person["role"][] = ["annotator", "adjudicator", "admin"]; // each may do what those before it may
export interface Candidate { premise_id: string; text: string; rank: number; score: number }
export interface Task {
  task_id: string; query: string; path: string[]; accepted: Candidate[]; candidates: Candidate[]; model_version: string;
}
export interface Again { model_version: string; task_ids: string[] }
export interface Lease {
  lease_id: string; run_id: string; task: Task; expires_at: string; remaining: number; hypothesis_id: string; node_id: string;
  same_keys: string[];
  given?: JudgedTask & { answer: Answer }; // an answer that is being changed: nobody holds this lease, it stands for the answer
}
export type NodeState = "waiting" | "decided" | "conflict" | "settled" | "pending" | "failed";
export interface TreeNode {
  node_id: string; parent_id: string; premise_id: string; text: string; depth: number; state: NodeState; task_id: string;
  accepted: Verdict[]; holders: string[]; answered: number; overlap: number; answers: Answer[]; author: string;
}
export interface Tree { run_id: string; hypothesis_id: string; nodes: TreeNode[]; finished: boolean; question: string; answer: string }
export interface Counts {
  tasks: number; waiting: number; free: number; leased: number; decided: number; conflicts: number; settled: number;
  mine: number; mine_hour: number; answers_hour: number; run_id: string;
}
export interface Queue {
  name: string; overlap: number; undo: number; guideline: string; max_grade: number; total: Counts; runs: Counts[];
  qualification: { items: number; answered: number; passed: boolean };
}
export interface QueuedRun { run_id: string; queue: string; state: string; created_at: string; trees: number; conflicts: number } // ended ones, too
export interface Verdict {
  premise_id: string; judgement: string; leaf: boolean; grade: number | null; annotator: string; remark: string; text: string; in_sight_ms: number;
}
export interface Change {
  seq: number; kind: string; task_id: string; query: string; person: string; at: string; answer: Answer | null; reason: string; overlap: number;
  model_version: string;
}
export interface Hour { at: string; answers: number }
export interface History { latest: Change[]; answers: Hour[] } // answers by hour, the first first
export interface Answer {
  answer_id: string; annotator: string; at: string; verdicts: Verdict[]; note: string; additions: Verdict[]; written: string[];
  intermediates: string[]; alternatives: { premise_ids: string[] }[]; inference: string; node_verdict: string;
}
export interface JudgedTask { task: Task; state: string; answers: Answer[]; conflicts: string[]; decision: Answer; question: string; question_answer: string; hypothesis_id: string }
export interface Dispute { run_id: string; judged: JudgedTask }
export interface Hit { id: string; text: string; score: number }
export interface Agreement {
  cohen_kappa: number | null; fleiss_kappa: number | null; krippendorff_alpha: number | null; positive_agreement: number | null;
  edge_f1: number | null; candidates: number;
  reports: { annotator: string; answers: number; late: number; control_verdicts: number; control_correct: number; median_elapsed: number; answers_hour: number; refused_share: number | null; positive_agreement: (number | null)[] }[];
  controls: Control[];
}
export type Upheld = Record<string, [same: number, decided: number]>; // by person, of what an adjudicator decided
export interface Control {
  query: string; answers: number; verdicts: number; correct: number; mistakes: { right: Verdict; people: number }[];
}
export type WorkState = "unspecified" | "pending" | "running" | "succeeded" | "failed" | "cancelled";
export interface Job {
  id: string; state: WorkState; error: string; version: string; created_at: string;
  config: { corpus: string; run_ids: string[] };
  progress: {
    phase: string; epochs: number; epochs_done: number; steps_done: number; steps: number; loss: number; validation_map: number;
    positives: number; negatives: number;
  };
}
export interface Label { space_id: string; name: string; versions: string[]; previous_versions: string[]; revision: number }
export type Versions = Record<string, { space_id: string; pretrained: boolean; created_at: string }>;
export interface Overview { runs: { id: string; corpus: string; state: string; queue: string; created_at: string; trees: number; positives: number; refused: number }[]; jobs: Job[]; versions: Versions; labels: Label[]; gold: number }
export interface Measured { version: string; queries: number; strict: { map: number; ndcg: number; hit_at_10: number; hit_at_50: number } }
export interface Publication { complete: boolean; generation: string; label: Label }
export interface QueueEvent { event: string; run: string; task: string; detail?: string }

export class Problem extends Error {
  constructor(readonly status: number, readonly reason: string, detail: string) {
    super(detail);
  }
}

const PAUSES_MS = [300, 800, 1500, 3000, 5000];
const REOPEN_MS = 1000;
const AWAY = [502, 503, 504]; // the workbench behind its proxy, or a service behind the workbench
let csrf = "";
let onConnection: (connected: boolean) => void = () => undefined;
let onSignedOut: (problem: Problem) => void = () => undefined;

export function watchConnection(told: (connected: boolean) => void, signedOut: (problem: Problem) => void): void {
  onConnection = told;
  onSignedOut = signedOut;
}

// What answers a call in place of the workbench; undefined: the workbench does.
let here: (path: string, body?: object) => unknown = () => undefined;
export function answerHere(by: typeof here): void {
  here = by;
}

// Calls again while the workbench or a service is away, so that a lost connection loses no answer.
export async function call<T>(path: string, body?: object): Promise<T> {
  const answered = here(path, body);
  if (answered !== undefined) return answered as T;
  for (let attempt = 0; ; attempt++) {
    let response: Response | undefined;
    try {
      response = await fetch(path, body === undefined ? {} : {
        method: "POST",
        headers: { "content-type": "application/json", "x-csrf-token": csrf },
        body: JSON.stringify(body),
      });
    } catch {
      response = undefined;
    }
    if (response?.ok) {
      onConnection(true);
      return response.status === 204 ? (undefined as T) : ((await response.json()) as T);
    }
    const away = response === undefined || AWAY.includes(response.status);
    if (!away) {
      onConnection(true);
      const told = await response!.json().catch(() => ({})) as { detail?: string; reason?: string };
      const problem = new Problem(response!.status, told.reason ?? "", plainly(told.reason ?? "", told.detail ?? response!.statusText));
      if (problem.status === 401) onSignedOut(problem);
      throw problem;
    }
    onConnection(false);
    await new Promise((go) => setTimeout(go, PAUSES_MS[Math.min(attempt, PAUSES_MS.length - 1)]));
  }
}

export async function signedIn(): Promise<Person> {
  const person = await call<Person>("/api/me");
  csrf = person.csrf;
  return person;
}

// Follows a stream until the function that it returns is called. A browser connects again after a lost connection, but
// never after an answer other than 200: then this opens the stream anew, once the workbench is there again.
export function listen<T>(path: string, told: (event: T) => void, opened: () => void = () => undefined): () => void {
  let source: EventSource;
  let stopped = false;
  function open(): void {
    if (stopped) return;
    source = new EventSource(path);
    source.onmessage = (message) => told(JSON.parse(message.data as string) as T);
    source.onopen = opened;
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) setTimeout(() => void call("/api/me").catch(() => undefined).then(open), REOPEN_MS);
    };
  }
  open();
  return () => { stopped = true; source.close(); };
}

export function follow(told: (event: QueueEvent) => void): () => void {
  return listen("/api/events", told, () => told({ event: "connected", run: "", task: "" }));
}

// Draws the answer to the latest question alone: one to an earlier question that comes late is dropped, and so is its error.
// So is one that comes when what asked for it is no longer in sight.
export function useLatest(): <T>(asked: Promise<T>, draw: (found: T) => void, failed: (error: Error) => void) => Promise<T | null> {
  const latest = useRef(0);
  useEffect(() => () => { latest.current++; }, []);
  return async (asked, draw, failed) => {
    const mine = ++latest.current;
    try {
      const found = await asked;
      if (mine === latest.current) draw(found);
      return found;
    } catch (error) {
      if (mine === latest.current) failed(error as Error);
      return null;
    }
  };
}

const LETTERS = "aeenc.keys"; // "off": no key of a single letter, digit or sign does anything
export const lettersOn = (): boolean => localStorage.getItem(LETTERS) !== "off";
export const setLettersOn = (on: boolean): void => localStorage.setItem(LETTERS, on ? "on" : "off");

export const fresh = (): string => crypto.randomUUID();
export const freshSeq = (): number => Math.floor(Math.random() * (Number.MAX_SAFE_INTEGER - 1)) + 1;
