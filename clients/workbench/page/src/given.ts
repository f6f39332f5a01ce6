// An answer that was given, judged again as any task: what it was asked, what it says, and what has changed of it.
import type { Answer, JudgedTask, Lease, NodeVerdict, Remark, Verdict, Word } from "./api";
import { acceptedIn, emptyDraft, sentGrades, sentSight, sentVerdicts, sentWays, type Draft, type Fold } from "./draft";
import { SAID } from "./words";

const HOUR_MS = 3_600_000;
const WORDS: Record<string, Word> = { does_not_explain: "refuses", abstain: "abstains" };
const wordOf = ({ judgement, leaf }: Verdict): Word | "unseen" => (judgement === "explains" ? (leaf ? "leaf" : "explains") : WORDS[judgement] ?? "unseen");
const words = (verdicts: Verdict[]): Record<string, Word | "unseen"> => Object.fromEntries(verdicts.map((one) => [one.premise_id, wordOf(one)]));

// A lease that nobody holds and that never ends. Candidates that say the same stand apart: each has its verdict.
export function leaseOfAnswer(run: string, judged: JudgedTask, given: Answer): Lease {
  const { task, hypothesis_id } = judged;
  return { lease_id: given.answer_id, run_id: run, task, expires_at: new Date(Date.now() + 1000 * HOUR_MS).toISOString(), remaining: 0, hypothesis_id, node_id: "", same_keys: [], given: { ...judged, answer: given } };
}

// What the answer says: what it has refused counts as read and is not ticked.
export function draftOfAnswer(lease: Lease): Draft {
  const draft = emptyDraft(lease);
  const answer = lease.given?.answer;
  if (!answer) return draft;
  for (const one of [...answer.verdicts, ...answer.additions]) {
    const { premise_id: id, remark, grade, in_sight_ms: ms } = one;
    const word = wordOf(one);
    const remarked = remark === "irrelevant" || remark === "bad_fact";
    if (word === "refuses") draft.read.push(id);
    if (ms) draft.sightMs[id] = ms;
    if (grade) draft.grades[id] = grade;
    if (remarked) draft.remarks[id] = remark as Remark;
    if (!answer.verdicts.includes(one)) { if (word === "explains" || word === "leaf") draft.additions[id] = { text: one.text, leaf: one.leaf }; }
    else if (word !== "unseen" && (word !== "refuses" || remarked)) draft.verdicts[id] = word;
  }
  const ways = answer.alternatives.map((one) => one.premise_ids);
  for (const id of ways.flat()) if (!ways.every((one) => one.includes(id))) draft.ways[id] = ways.findIndex((one) => one.includes(id)) + 1;
  const { written, intermediates, note, inference, node_verdict } = answer;
  return { ...draft, written: [...written], intermediates: [...intermediates], note, inference, nodeVerdict: node_verdict === "unspecified" ? "" : (node_verdict as NodeVerdict) };
}

// What the sampler is to change of the answer; null: nothing. Texts can be replaced, not taken away: then a word why not.
export function changesOf(lease: Lease, draft: Draft, folds: Fold[]): Record<string, unknown> | null | string {
  const answer = lease.given!.answer;
  const before = draftOfAnswer(lease);
  if ((before.note && !draft.note.trim()) || (before.inference && !draft.inference.trim()) || (before.nodeVerdict && !draft.nodeVerdict)) return "What was said of the node can be replaced, not taken away.";
  const were = words([...answer.verdicts, ...answer.additions]);
  const leaves = (one: Draft): Record<string, Word> => Object.fromEntries(Object.entries(one.additions).map(([id, { leaf }]) => [id, leaf ? "leaf" : "explains"]));
  const now: Record<string, Word | "unseen"> = { ...sentVerdicts(draft, folds), ...leaves(draft) };
  for (const id of Object.keys(before.additions)) now[id] ??= draft.read.includes(id) ? "refuses" : "unseen";
  const [grades, graded] = [sentGrades(draft), sentGrades(before)];
  const changed = Object.entries(now).filter(([id, word]) => word !== (were[id] ?? "unseen") || grades[id] !== graded[id] || draft.remarks[id] !== before.remarks[id]).map(([id]) => id);
  const [ways, waysBefore] = [sentWays(draft), sentWays(before)];
  const body = {
    verdicts: Object.fromEntries(changed.filter((id) => id in were).map((id) => [id, now[id]])), additions: Object.fromEntries(changed.filter((id) => !(id in were)).map((id) => [id, now[id]])),
    grades, remarks: draft.remarks, in_sight_ms: sentSight(draft, changed),
    written: draft.written.filter((text) => !before.written.includes(text)), intermediates: draft.intermediates.filter((text) => !before.intermediates.includes(text)),
    alternatives: JSON.stringify(ways) === JSON.stringify(waysBefore) ? [] : ways.length > 0 ? ways : [acceptedIn(draft)],
    note: draft.note === before.note ? "" : draft.note, inference: draft.inference === before.inference ? "" : draft.inference, node_verdict: draft.nodeVerdict === before.nodeVerdict ? "" : draft.nodeVerdict,
  };
  const { grades: _, remarks: __, ...rest } = body;
  return Object.values(rest).some((one) => (typeof one === "object" ? Object.keys(one).length > 0 : one !== "")) ? body : null;
}

// What became of those verdicts of an answer that others did not share: an answer's author hears of it here.
export function decidedOtherwise({ conflicts, decision }: JudgedTask, answer: Answer): Record<string, string> {
  const found: Record<string, string> = {};
  for (const { premise_id: id, judgement } of [...answer.verdicts, ...answer.additions]) {
    const decided = decision.verdicts.find((one) => one.premise_id === id);
    if (conflicts.includes(id)) found[id] = "disputed";
    else if (decided && decided.judgement !== judgement) found[id] = `decided: ${SAID[decided.judgement] ?? decided.judgement}, by ${decision.annotator || "the others"}`;
  }
  return found;
}
