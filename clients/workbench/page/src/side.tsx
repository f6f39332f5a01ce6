// Beside a task: its tree, what to work on, and how far that is.
import type { Queue, Tree } from "./api";
import { TreeView, treePath, type Growing, type Open } from "./tree";

interface Props {
  tree: Tree | null; whole: boolean; current: string; growing: Growing[]; queues: Queue[]; queue: Queue | undefined; from: string; stay: boolean; showScores: boolean; practises: boolean;
  open: Open; chooseQueue: (name: string) => void; setStay: (on: boolean) => void; setShowScores: (on: boolean) => void; reopen: () => void;
}

export function Side({ tree, whole, current, growing, queues, queue, from, stay, showScores, practises, open, chooseQueue, setStay, setShowScores, reopen }: Props) {
  return (
    <aside class="side">
      <h2>Tree</h2>
      {tree?.question && <p class="behind"><span class="quiet">Question</span> {tree.question}{tree.answer && <><br /><span class="quiet">Answer</span> {tree.answer}</>}</p>}
      {!whole && <TreeView tree={tree} current={current} growing={growing} open={open} />}
      {!practises && tree?.hypothesis_id && tree.nodes.some((node) => node.state === "settled" && node.accepted.length > 0) && <p class="quiet"><a href={treePath(tree.run_id, tree.hypothesis_id).replace("/tree?", "/tree.svg?")} target="_blank" rel="noreferrer">The tree as a picture</a></p>}
      {queues.length > 1 && <label>Tasks of <select value={from} onChange={(event) => chooseQueue(event.currentTarget.value)}><option value="">any queue</option>{queues.map((one) => <option key={one.name} value={one.name}>{one.name}, {one.total.free} free</option>)}</select></label>}
      <label class="check"><input type="checkbox" checked={stay} onChange={(event) => setStay(event.currentTarget.checked)} /> stay in this tree</label>
      <label class="check"><input type="checkbox" checked={showScores} onChange={(event) => setShowScores(event.currentTarget.checked)} /> scores</label>
      <p><button type="button" onClick={reopen}>{practises ? "What the gold tree says" : "Reopen an answer"} <kbd>o</kbd></button></p>
      {queue && !practises && <>
        <label class="quiet">{queue.name}: {queue.total.settled} of {queue.total.tasks} nodes done <progress max={Math.max(1, queue.total.tasks)} value={queue.total.settled} /></label>
        <p class="quiet">{queue.total.free} free for you, {queue.total.mine} answered by you ({queue.total.mine_hour} in the last hour)</p>
      </>}
    </aside>
  );
}
