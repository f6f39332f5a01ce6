// The tree that grows, drawn from each node to what explains it. What stands in it opens on a click.
import type { Lease, Tree, TreeNode } from "./api";

export interface Growing { text: string; leaf: boolean }
interface Row { id: string; text: string; leaf: boolean; of: TreeNode; premise?: string; node?: TreeNode; growing?: boolean; children: Row[]; author?: string }

const STATES: Record<string, string> = {
  pending: "being retrieved", waiting: "open", decided: "decided", conflict: "disputed", settled: "", failed: "unanswered",
};

// The tree's rows; below the node in work stands what is accepted so far. `of` is the node whose answer says so.
function rowsOf(tree: Tree, current: string, growing: Growing[]): Row | undefined {
  const nodes = new Map(tree.nodes.map((node) => [node.node_id, node]));
  const grown = new Map(tree.nodes.map((node) => [`${node.parent_id}/${node.premise_id || node.text}`, node.node_id]));
  const build = (node: TreeNode): Row => ({
    id: node.node_id,
    text: node.text,
    leaf: false,
    of: node,
    node,
    author: node.author,
    children: [
      ...node.accepted.map((premise) => {
        const id = `${node.node_id}/${premise.premise_id || premise.text}`;
        const below = nodes.get(grown.get(id) ?? "");
        return below ? build(below) : { id, text: premise.text, leaf: premise.leaf, of: node, premise: premise.premise_id, author: premise.annotator, children: [] };
      }),
      ...(node.node_id === current ? growing.map((one) => ({ ...one, id: `+${one.text}`, of: node, growing: true, children: [] })) : []),
    ],
  });
  const root = tree.nodes[0];
  return root ? build(root) : undefined;
}

export type Open = (node: TreeNode, premiseId?: string) => void; // the answer that accepts a premise, or the node itself
interface Props { tree: Tree | null; current: string; growing: Growing[]; open: Open }

export function TreeView({ tree, current, growing, open }: Props) {
  const top = tree ? rowsOf(tree, current, growing) : undefined;
  if (!top) return <p class="quiet">The tree appears with its first task.</p>;
  return (
    <ul class="tree" role="tree" aria-label="Entailment tree">
      <Branch row={top} depth={1} current={current} open={open} />
    </ul>
  );
}

function Branch({ row, depth, current, open }: { row: Row; depth: number; current: string; open: Open }) {
  const { node, of, premise, text, leaf, growing, author } = row;
  const held = node?.state === "waiting" && node.holders.length > 0;
  const state = held ? "in work" : node ? STATES[node.state] ?? "" : leaf ? "leaf" : "";
  const here = node !== undefined && node.node_id === current;
  const opens = of.task_id !== "" && of.node_id !== current && !held && of.state !== "pending";
  const title = of.state === "waiting" ? "Work on this node" : "Open the answer that says so";
  return (
    <li role="treeitem" aria-level={depth} aria-expanded={row.children.length > 0 ? true : undefined} aria-current={here ? "true" : undefined} aria-selected={here}>
      <div class={`row ${here ? "here" : ""} ${node?.state ?? "fact"} ${growing ? "growing" : ""}`}>
        {opens ? <button type="button" class="text" title={title} onClick={() => open(of, premise)}>{text}</button> : <span class="text">{text}</span>}
        {state && <span class={`state ${node?.state ?? "leaf"}`}>{state}{node && node.overlap > 1 && node.state !== "settled" ? ` ${node.answered}/${node.overlap}` : ""}</span>}
        {author && <span class="author">written by {author}</span>}
        {node?.answers.map(({ inference }) => inference && <span class="inference" key={inference}>{inference}</span>)}
      </div>
      {row.children.length > 0 && <ul role="group">{row.children.map((child) => <Branch key={child.id} row={child} depth={depth + 1} current={current} open={open} />)}</ul>}
    </li>
  );
}

// Whether a tree of several nodes has nothing left to judge, and will not grow by what was decided.
export const isWhole = ({ nodes }: Tree): boolean => nodes.length > 1 && nodes.every(({ state }) => ["decided", "settled", "failed"].includes(state));

// A finished tree: what explains what, and what it lacks.
export function Whole({ tree, busy, open, next }: { tree: Tree; busy: boolean; open: Open; next: () => void }) {
  const lacks = tree.nodes.flatMap((node) => {
    const says = node.accepted.length === 0 ? "nothing explains it" : node.answers.some((one) => one.node_verdict === "premise_missing") ? "a premise is missing" : "";
    return says ? [{ node, says }] : [];
  });
  return (
    <section aria-label="Finished tree">
      <h1><span class="ask">This tree is finished</span> {tree.nodes[0]!.text}</h1>
      {lacks.length === 0 ? <p>Each of its {tree.nodes.length} nodes is explained. Read it as a whole: is anything missing, or not needed? A click on a sentence opens the answer that says so.</p> : <>
        <p>Not explained entirely:</p>
        <ul class="lacks">{lacks.map(({ node, says }) => <li key={node.node_id}><button type="button" onClick={() => open(node)}>{node.text}</button> <span class="state">{says}</span></li>)}</ul>
      </>}
      <TreeView tree={tree} current="" growing={[]} open={open} />
      <p><button type="button" class="primary" autoFocus disabled={busy} onClick={next}>Next tree <kbd>k</kbd></button></p>
    </section>
  );
}

export const treePath = (run: string, hypothesis: string): string => `/api/runs/${encodeURIComponent(run)}/tree?hypothesis=${encodeURIComponent(hypothesis)}`;

// A task that no tree asks: its path is all there is to draw.
export function pathTree(lease: Lease): Tree {
  const texts = [...lease.task.path, lease.task.query];
  const nodes = texts.map((text, depth) => ({
    node_id: `${depth}`, parent_id: depth ? `${depth - 1}` : "", premise_id: depth ? `p${depth}` : "", text, depth, task_id: "",
    ...(depth === texts.length - 1 ? { state: "waiting" as const, holders: ["you"] } : { state: "settled" as const, holders: [] }),
    answered: 0, overlap: 1, answers: [], author: "",
    accepted: depth < texts.length - 1 ? [{ premise_id: `p${depth + 1}`, text: texts[depth + 1]!, judgement: "explains", leaf: false, grade: null, annotator: "", remark: "", in_sight_ms: 0 }] : [],
  }));
  return { run_id: lease.run_id, hypothesis_id: "", nodes, finished: false, question: "", answer: "" };
}
