// What has become of the answer that was sent last: who else is asked, whether the tree grows, and the way back.
import type { Lease, TreeNode } from "./api";
import type { Draft } from "./draft";

export interface Last { lease: Lease; draft: Draft; until: number; settled: boolean; unseen: number; node?: TreeNode | undefined }

export function After({ last, now, busy, undo, goOn }: { last: Last; now: number; busy: boolean; undo: () => void; goOn: () => void }) {
  const undoS = last.settled ? 0 : Math.max(0, Math.ceil((last.until - now) / 1000));
  return (
    <p class="last">
      <span role="status">Submitted: “<span class="cut" title={last.lease.task.query}>{last.lease.task.query}</span>”{last.unseen > 0 && `, with ${last.unseen} not seen`}. {became(last)}</span>{" "}
      {undoS > 0 && <>
        <button type="button" disabled={busy} onClick={undo}>Undo <kbd>u</kbd> ({undoS} s)</button>
        {last.node?.state === "decided" && <button type="button" onClick={goOn}>Go on now <kbd>g</kbd></button>}
      </>}
    </p>
  );
}

// Only what the sampler has said of the task.
export function became({ settled, node }: Last): string {
  if (settled) return "The run goes on.";
  if (node?.state === "settled") return "The run has gone on with it.";
  if (node?.state === "decided") return "The run goes on with it when the time to undo is over.";
  if (node?.state === "conflict") return "People disagree on it: an adjudicator decides.";
  const missing = node ? node.overlap - node.answered : 0;
  return missing > 0 ? `${missing === 1 ? "One more person answers" : `${missing} more people answer`} it before the tree grows.` : "";
}
