// The tree that grows, as an outline: d3-hierarchy holds it, and screen readers read it as a tree.
import { hierarchy, type HierarchyNode } from "d3-hierarchy";
import type { Tree, TreeNode } from "./api";

export interface Growing { text: string; leaf: boolean }
interface Row { id: string; text: string; leaf: boolean; node?: TreeNode; growing?: boolean; children: Row[]; author?: string }

const STATES: Record<string, string> = {
  pending: "being retrieved", waiting: "open", decided: "decided", conflict: "disputed", settled: "", failed: "unanswered",
};

// The tree's rows; below the node in work stands what is accepted so far.
export function rowsOf(tree: Tree, current: string, growing: Growing[]): Row | undefined {
  const nodes = new Map(tree.nodes.map((node) => [node.node_id, node]));
  const grown = new Map(tree.nodes.map((node) => [`${node.parent_id}/${node.premise_id || node.text}`, node.node_id]));
  const build = (node: TreeNode): Row => ({
    id: node.node_id,
    text: node.text,
    leaf: false,
    node,
    author: node.author,
    children: [
      ...node.accepted.map((premise) => {
        const id = `${node.node_id}/${premise.premise_id || premise.text}`;
        const below = nodes.get(grown.get(id) ?? "");
        return below ? build(below) : { id, text: premise.text, leaf: premise.leaf, author: premise.annotator, children: [] };
      }),
      ...(node.node_id === current ? growing.map((one) => ({ ...one, id: `+${one.text}`, growing: true, children: [] })) : []),
    ],
  });
  const root = tree.nodes[0];
  return root ? build(root) : undefined;
}

export function TreeView({ tree, current, growing }: { tree: Tree | null; current: string; growing: Growing[] }) {
  const top = tree ? rowsOf(tree, current, growing) : undefined;
  if (!top) return <p class="quiet">The tree appears with its first task.</p>;
  const root = hierarchy<Row>(top);
  return (
    <ul class="tree" role="tree" aria-label="Entailment tree">
      <Branch row={root} current={current} />
    </ul>
  );
}

function Branch({ row, current }: { row: HierarchyNode<Row>; current: string }) {
  const { node, text, leaf, growing, author } = row.data;
  const held = node?.state === "waiting" && node.holders.length > 0;
  const state = held ? "in work" : node ? STATES[node.state] ?? "" : leaf ? "leaf" : "";
  const here = node !== undefined && node.node_id === current;
  return (
    <li role="treeitem" aria-level={row.depth + 1} aria-expanded={row.children ? true : undefined} aria-current={here ? "true" : undefined} aria-selected={here}>
      <div class={`row ${here ? "here" : ""} ${node?.state ?? "fact"} ${growing ? "growing" : ""}`}>
        <span class="text">{text}</span>
        {state && <span class={`state ${node?.state ?? "leaf"}`}>{state}{node && node.overlap > 1 && node.state !== "settled" ? ` ${node.answered}/${node.overlap}` : ""}</span>}
        {author && <span class="author">written by {author}</span>}
        {node?.answers.map(({ inference }) => inference && <span class="inference" key={inference}>{inference}</span>)}
      </div>
      {row.children && <ul role="group">{row.children.map((child) => <Branch key={child.data.id} row={child} current={current} />)}</ul>}
    </li>
  );
}
