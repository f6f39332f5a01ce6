// Words of sentences: which a candidate shares with the query. Which sentences say the same, the sampler tells. And the
// words of the page itself: one for each verdict, run and refusal, in every view.
import type { Versions, Word } from "./api";

export const SAYS: Record<Word, string> = { explains: "Accept", leaf: "Leaf", refuses: "Refuse", abstains: "Abstain" };
export const SAID: Record<string, string> = {
  explains: "accepted", leaf: "leaf", refuses: "refused", does_not_explain: "refused", abstains: "abstained", abstain: "abstained", unseen: "not seen", irrelevant: "irrelevant", bad_fact: "bad fact",
};

export const moment = (at: string): string => new Date(at).toLocaleString(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

// Versions as people call them; their ids are their titles.
export const versionNames = (ids: string[], known: Versions): string =>
  ids.map((id) => { const one = known[id]; return one ? (one.pretrained ? "pre-trained" : `trained ${moment(one.created_at)}`) : id; }).join(" and ");

// The answers to a node, in the view in which they were given.
export const nodeLink = (run: string, task: string): string => `/#annotate/${encodeURIComponent(run)}/${encodeURIComponent(task)}`;

// A run as people call it; its id is its title.
export const runName = ({ queue, created_at, trees }: { queue: string; created_at: string; trees: number }): string =>
  [queue || "imported", moment(created_at), trees > 0 && `${trees} ${trees === 1 ? "tree" : "trees"}`].filter(Boolean).join(", ");

const REASONS: Record<string, string> = {
  LEASE_ANSWERED: "This task was answered before, perhaps in another tab. Your earlier answer stands; it can be changed: o.",
  TASK_ANSWERED: "Others were faster: the task has all its answers, and this one was not needed.",
  LEASE_RELEASED: "You had given this task back, perhaps in another tab.",
  TASK_WITHDRAWN: "The task was retrieved again meanwhile and comes back with other candidates.",
  RUN_ENDED: "This run has ended and takes no answer any more. What you had ticked is kept in this browser.",
  LEASE_EXPIRED: "Your time for this task has ended.",
};
const FIELDS: Record<string, string> = { written: "What you wrote", intermediates: "Your conclusion", note: "The note", inference: "“Because”", epochs: "Epochs", additions: "What you added" };

// A refusal in the page's terms: fields as people see them, ids left out.
export function plainly(reason: string, detail: string): string {
  const [, field, rest] = /^([a-z_]+)(?:\[\d+\])?(?:\.[a-z_]+)*: (.*)$/s.exec(detail) ?? [];
  return REASONS[reason] ?? (field && FIELDS[field] ? `${FIELDS[field]}: ${rest}` : detail);
}

const NOTHING = new Set(["a", "an", "the", "is", "are", "was", "were", "be", "of", "to", "in", "on", "and", "or", "for", "by", "as", "it", "that", "with", "from", "can"]);

function stem(word: string): string {
  const plain = word.toLowerCase();
  if (plain.length <= 3 || !plain.endsWith("s") || plain.endsWith("ss")) return plain;
  return plain.endsWith("ies") ? `${plain.slice(0, -3)}y` : plain.slice(0, -1);
}

export interface Piece { text: string; shared: boolean }

export function pieces(text: string, query: string): Piece[] {
  const known = new Set((query.match(/[\p{L}\p{N}]+/gu) ?? []).map(stem).filter((word) => !NOTHING.has(word)));
  return text.split(/([\p{L}\p{N}]+)/u).filter((part) => part !== "").map((part) => ({ text: part, shared: known.has(stem(part)) }));
}
