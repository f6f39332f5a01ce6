// What a person has said of a task so far. It survives a reload, a lost connection and an undo.
import type { Spent } from "./sight";
import type { Candidate, Lease, NodeVerdict, Remark, Word } from "./api";

export interface Draft {
  verdicts: Record<string, Word>;
  grades: Record<string, number>;
  remarks: Record<string, Remark>;
  ways: Record<string, number>; // which of several explanations a premise belongs to; 0, or not there: to each
  read: string[]; // what was in sight for a second
  seenUpto: number; // the rank below which nothing counts as read
  additions: Record<string, { text: string; leaf: boolean }>;
  written: string[];
  intermediates: string[]; // of what is written: nodes that are retrieved for
  note: string;
  inference: string;
  nodeVerdict: NodeVerdict;
  spentMs: number;
  sightMs: Record<string, number>; // for which each candidate was in sight
}

const KEPT = 50; // drafts
const DRAFTS = "aeenc.draft.";
let owner = "";
const name = (id: string): string => `${DRAFTS}${owner}.${id}`;
const draftId = (lease: Lease): string => (lease.given ? lease.lease_id : `${lease.run_id}.${lease.task.task_id}`); // another run has other texts
export const heldKey = (): string => `aeenc.lease.${owner}`;
export const metKey = (): string => `aeenc.met.${owner}`;
export const queueKey = (): string => `aeenc.queue.${owner}`;
export const lastKey = (): string => `aeenc.last.${owner}`;

// Whose lease and drafts these are. The next person at this browser has others: answers are blind.
export function belongsTo(person: string): void {
  owner = encodeURIComponent(person);
}

export function emptyDraft(lease: Lease): Draft {
  const seenUpto = Math.max(0, ...lease.task.candidates.map((one) => one.rank));
  return { verdicts: {}, grades: {}, remarks: {}, ways: {}, read: [], seenUpto, additions: {}, written: [], intermediates: [], note: "", inference: "", nodeVerdict: "", spentMs: 0, sightMs: {} };
}

// The draft with what was spent on it since.
export function timed(draft: Draft, { ms, rows }: Spent): Draft {
  const sightMs = { ...draft.sightMs };
  for (const [id, more] of Object.entries(rows)) sightMs[id] = (sightMs[id] ?? 0) + more;
  return { ...draft, spentMs: draft.spentMs + ms, sightMs };
}

// The draft for the same node with other candidates: what was said of those that are still there, and all else.
export function carried(draft: Draft, lease: Lease): Draft {
  const there = new Set(lease.task.candidates.map((one) => one.premise_id));
  const verdicts = Object.fromEntries(Object.entries(draft.verdicts).filter(([id]) => there.has(id)));
  const additions = Object.fromEntries(Object.entries(draft.additions).filter(([id]) => !there.has(id)));
  for (const [id, one] of Object.entries(draft.additions)) if (there.has(id)) verdicts[id] ??= one.leaf ? "leaf" : "explains";
  return { ...draft, verdicts, additions, seenUpto: emptyDraft(lease).seenUpto };
}

// The draft of a task, or how it begins.
export function loadDraft(lease: Lease, begins = emptyDraft(lease)): Draft {
  try {
    const stored = localStorage.getItem(name(draftId(lease)));
    if (stored) return { ...begins, ...(JSON.parse(stored) as Partial<Draft>) };
  } catch { /* a damaged draft is none */ }
  return begins;
}

export function saveDraft(lease: Lease, draft: Draft): void {
  try {
    localStorage.setItem(name(draftId(lease)), JSON.stringify(draft));
    const drafts = Object.keys(localStorage).filter((key) => key.startsWith(DRAFTS) && key !== name(draftId(lease)));
    for (const key of drafts.slice(0, Math.max(0, drafts.length - KEPT))) localStorage.removeItem(key);
  } catch { /* without storage, a draft lasts as long as the page */ }
}

export function dropDraft(lease: Lease): void {
  localStorage.removeItem(name(draftId(lease)));
}

// The task that this browser holds.
export function heldLease(): Lease | null {
  const stored = localStorage.getItem(heldKey());
  return stored ? (JSON.parse(stored) as Lease) : null;
}

export interface Fold { head: Candidate; others: Candidate[] }

// Candidates that say the same in other words, as their keys tell, stand under the best of them.
export function folded(candidates: Candidate[], keys: string[]): Fold[] {
  const folds = new Map<string, Fold>();
  for (const [place, candidate] of candidates.entries()) {
    const key = keys[place] || candidate.premise_id;
    const fold = folds.get(key);
    if (fold) fold.others.push(candidate);
    else folds.set(key, { head: candidate, others: [] });
  }
  return [...folds.values()];
}

export const accepts = (draft: Draft, id: string): boolean => ["explains", "leaf"].includes(draft.verdicts[id] ?? "") || id in draft.additions;

// What is accepted so far, by id.
export function acceptedIn(draft: Draft): string[] {
  return [...new Set([...Object.keys(draft.verdicts), ...Object.keys(draft.additions)])].filter((id) => accepts(draft, id));
}

// Grades are sent of what explains; a field that was emptied again holds none.
export function sentGrades(draft: Draft): Record<string, number> {
  return Object.fromEntries(Object.entries(draft.grades).filter(([id, grade]) => accepts(draft, id) && Number.isFinite(grade)));
}

// For how long each of these candidates was in sight, in whole ms.
export const sentSight = (draft: Draft, ids: string[]): Record<string, number> => Object.fromEntries(ids.map((id) => [id, Math.round(draft.sightMs[id] ?? 0)]));

// The sets of premises that each explain the query, where there is more than one.
export function sentWays(draft: Draft): string[][] {
  const accepted = acceptedIn(draft);
  const ways = [...new Set(accepted.map((id) => draft.ways[id] ?? 0).filter((way) => way > 0))].sort();
  if (ways.length < 2) return [];
  return ways.map((way) => accepted.filter((id) => [0, way].includes(draft.ways[id] ?? 0)));
}

// How many of the candidates in the list nothing is said of, as they were not read.
export const unseen = (draft: Draft, folds: Fold[]): number => {
  const sent = sentVerdicts(draft, folds);
  return folds.filter(({ head }) => sent[head.premise_id] === "unseen").length;
};

// Whether an answer accepts nothing and does not say why.
export const saysNothing = (draft: Draft): boolean => acceptedIn(draft).length + draft.intermediates.length === 0 && draft.nodeVerdict === "";

// What is sent, of every candidate: only what was read is refused, whether it was left unticked or refused by a key. A
// candidate folded under another is not in sight: where that one was judged or read it is abstained from.
export function sentVerdicts(draft: Draft, folds: Fold[]): Record<string, Word | "unseen"> {
  const sent: Record<string, Word | "unseen"> = { ...draft.verdicts };
  for (const { head, others } of folds) {
    const said = sent[head.premise_id] ?? (head.rank <= draft.seenUpto ? "refuses" : "unseen");
    sent[head.premise_id] = said === "refuses" && !draft.read.includes(head.premise_id) ? "unseen" : said;
    for (const one of others) if (!sent[one.premise_id] || sent[one.premise_id] === "refuses") sent[one.premise_id] = sent[head.premise_id] === "unseen" ? "unseen" : "abstains";
  }
  return sent;
}
