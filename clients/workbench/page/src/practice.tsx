// A gold tree of the sample to practise on, judged as any other: the page answers its own calls, so nothing is recorded.
// After each node stands what the gold tree says. A page load of its own (`/?practice`) keeps it apart from real tasks.
import { useEffect, useState } from "preact/hooks";
import { Annotate } from "./annotate";
import { answerHere, type Lease, type Person, type Queue, type Tree, type TreeNode } from "./api";
import { dropDraft, heldKey, lastKey } from "./draft";
import { Sheet } from "./guideline";
import GOLD from "./practice.json";
import { SAID } from "./words";

interface Gold { text: string; accepted: string[]; candidates: string[]; why: Record<string, string | undefined> }
type Said = Record<string, string>; // a verdict by candidate: their texts are their ids

const RUN = "practice";
const DAY_S = 86_400;
const NODES: Gold[] = GOLD;
const said = new Map<string, Said>(); // what was judged, by the text of the node
const isNode = (text: string): boolean => NODES.some((one) => one.text === text);
const parentOf = ({ text }: Gold): Gold | undefined => NODES.find(({ accepted }) => accepted.includes(text));
const isOpen = (node: Gold): boolean => { const parent = parentOf(node); return !said.has(node.text) && (!parent || said.has(parent.text)); };

// Whether this page load is for practice.
export const practises = (): boolean => location.search === "?practice";

// Begins the practice tree anew, in place of the calls for tasks.
export function practise(): void {
  localStorage.removeItem(heldKey());
  localStorage.removeItem(lastKey());
  NODES.forEach((one) => dropDraft(leaseOf(one)!));
  answerHere(answer);
}

// What a call gets, as the workbench would answer it; undefined: the workbench is asked.
function answer(path: string, body?: object): unknown {
  const { task = "", lease = "", verdicts, additions, text = "", exclude = [] } = (body ?? {}) as { task?: string; lease?: string; verdicts?: Said; additions?: Said; text?: string; exclude?: string[] };
  if (path.startsWith(`/api/runs/${RUN}/`)) return treeNow();
  if (body === undefined || !path.startsWith("/api/")) return undefined;
  if (path === "/api/lease") return leaseOf(NODES.find((one) => isOpen(one) && (!task || one.text === task)));
  if (path === "/api/answer") { said.set(lease, { ...verdicts, ...additions }); tell(lease); }
  if (path === "/api/undo") said.delete([...said.keys()].at(-1)!);
  if (path === "/api/search") return { hits: found(text, exclude) };
  return path === "/api/again" ? { model_version: "", task_ids: [] } : {};
}

const pathOf = (node: Gold): Gold[] => { const parent = parentOf(node); return parent ? [...pathOf(parent), parent] : []; };
const ranked = (text: string, place: number): Lease["task"]["candidates"][number] => ({ premise_id: text, text, rank: place + 1, score: 0 });

function leaseOf(node: Gold | undefined): Lease | null {
  if (!node) return null;
  const { text, candidates } = node;
  const task = { task_id: text, query: text, path: pathOf(node).map((one) => one.text), accepted: [], candidates: candidates.map(ranked), model_version: "" };
  return { lease_id: text, run_id: RUN, task, expires_at: new Date(Date.now() + DAY_S * 1000).toISOString(), remaining: DAY_S, hypothesis_id: RUN, node_id: text, same_keys: [] };
}

// The gold tree, as far as it was judged.
function treeNow(): Tree {
  const nodes = NODES.filter((node) => said.has(node.text) || isOpen(node)).map((node): TreeNode => {
    const { text, accepted } = node;
    const path = pathOf(node);
    const known = said.has(text) ? accepted.map((one) => ({ premise_id: one, text: one, judgement: "explains", leaf: !isNode(one), grade: null, annotator: "", remark: "", in_sight_ms: 0 })) : [];
    return { node_id: text, parent_id: path.at(-1)?.text ?? "", premise_id: path.length > 0 ? text : "", text, depth: path.length, state: said.has(text) ? "settled" : "waiting", task_id: text, accepted: known, holders: [], answered: said.has(text) ? 1 : 0, overlap: 1, answers: [], author: "" };
  });
  return { run_id: RUN, hypothesis_id: RUN, nodes, finished: said.size === NODES.length, question: "", answer: "" };
}

// The other facts of the tree that share a word with a text; what is to be explained is none.
function found(text: string, exclude: string[]): { id: string; text: string; score: number }[] {
  const words = text.toLowerCase().match(/[a-z]{3,}/g) ?? [];
  return [...new Set(NODES.flatMap((one) => one.candidates))].filter((one) => !isNode(one) && !exclude.includes(one) && words.some((word) => one.includes(word))).map((one) => ({ id: one, text: one, score: 0 }));
}

let tell: (node: string) => void = () => undefined;

export function Practice({ me, queues }: { me: Person; queues: Queue[] }) {
  const [shown, show] = useState<Gold | null>(null);
  useEffect(() => { tell = (node) => show(NODES.find(({ text }) => text === node && said.has(text)) ?? null); }, []);
  return <>
    <p class="last" role="status">Practice: a tree of {NODES.length} nodes whose answer is known. Nothing that you do here is recorded.</p>
    <Annotate at={null} me={{ ...me, role: "annotator" }} queues={queues.slice(0, 1)} reloadQueues={() => undefined} practice={{ show: (node) => tell(node || [...said.keys()].at(-1) || ""), leave: () => location.assign("/") }} />
    {shown && <GoldSays node={shown} said={said.get(shown.text)!} close={() => show(null)} />}
  </>;
}

// A node as the gold tree has it, beside what was judged.
function GoldSays({ node, said, close }: { node: Gold; said: Said; close: () => void }) {
  const { accepted, candidates, why } = node;
  const took = (text: string): boolean => ["explains", "leaf"].includes(said[text] ?? "");
  const right = accepted.filter(took).length;
  const wrong = Object.keys(said).filter((text) => took(text) && !accepted.includes(text));
  const tempting = candidates.filter((text) => !took(text) && !accepted.includes(text) && why[text]);
  const row = (text: string, says: string, kind: string) => (
    <li key={text}>{text} <span class={`chip ${kind}`}>{says}</span>{why[text] && <span class="quiet"> {why[text]}</span>}</li>
  );
  return (
    <Sheet name="What the gold tree says" close={close}>
      <h3>{node.text}</h3>
      <p>{right === accepted.length && wrong.length === 0 ? "You and the gold tree agree." : `You found ${right} of the ${accepted.length} that explain it${wrong.length > 0 ? `, and accepted ${wrong.length} that ${wrong.length === 1 ? "does" : "do"} not` : ""}.`}</p>
      <ul class="gold">
        {accepted.map((text) => row(text, `${isNode(text) ? "accepted" : "accepted, leaf"}; you: ${SAID[said[text] ?? "unseen"]}`, took(text) ? "yes" : "no"))}
        {wrong.map((text) => row(text, "not needed; you: accepted", "no"))}
        {tempting.map((text) => row(text, `not needed; you: ${SAID[said[text] ?? "unseen"]}`, ""))}
      </ul>
      <button type="button" class="primary" autoFocus onClick={close}>Go on <kbd>Esc</kbd></button>
    </Sheet>
  );
}
