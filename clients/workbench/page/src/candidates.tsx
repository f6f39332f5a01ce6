// The candidates of a task, the verdict on each, and the line down to which they were looked at.
import { useEffect, useRef } from "preact/hooks";
import type { Lease, Remark, Word } from "./api";
import { acceptedIn, accepts, type Draft, type Fold } from "./draft";
import { Marked } from "./marked";

const VERDICTS: { word: Word; label: string; key: string }[] = [
  { word: "explains", label: "Accept", key: "a" },
  { word: "leaf", label: "Leaf", key: "l" },
  { word: "refuses", label: "Refuse", key: "r" },
  { word: "abstains", label: "Abstain", key: "x" },
];

const REMARKS: { remark: Remark; label: string; key: string }[] = [
  { remark: "irrelevant", label: "true but irrelevant", key: "i" },
  { remark: "bad_fact", label: "bad fact", key: "b" },
];

interface Props {
  lease: Lease; draft: Draft; folds: Fold[]; focus: number; moved: Map<string, number> | null; showScores: boolean; maxGrade: number;
  setWay: (premiseId: string, way: number) => void; grade: (premiseId: string, grade: number) => void; mark: (premiseId: string, remark: Remark) => void;
  say: (premiseId: string, word: Word) => void; look: (index: number) => void; draw: (rank: number) => void;
}

export function Candidates({ lease, draft, folds, focus, moved, showScores, maxGrade, grade, setWay, mark, say, look, draw }: Props) {
  const list = useRef<HTMLOListElement>(null);
  useEffect(() => list.current?.querySelector(".focused")?.scrollIntoView({ block: "nearest" }), [focus]);
  const { query, path } = lease.task;
  const several = acceptedIn(draft).length > 1;
  const above = new Set([...path, query]);
  return (
    <ol class="candidates" ref={list} aria-label="Candidates, best first">
      {folds.map(({ head, others }, index) => {
        const said = draft.verdicts[head.premise_id];
        const accepted = accepts(draft, head.premise_id);
        const seen = head.rank <= draft.seenUpto;
        const isLine = seen && !(folds[index + 1] && folds[index + 1]!.head.rank <= draft.seenUpto);
        const state = said ?? (seen ? "unticked" : "unseen");
        return (
          <li key={head.premise_id} class={`candidate ${state} ${index === focus ? "focused" : ""} ${isLine ? "line" : ""}`} aria-current={index === focus ? "true" : undefined} onClick={() => look(index)}>
            <div class="said" role="group" aria-label={`Verdict on candidate ${index + 1}`}>
              <span class="number" aria-hidden="true">{index + 1}</span>
              {VERDICTS.map(({ word, label, key }) => (
                <button type="button" key={word} class={word} aria-pressed={said === word} title={`${label} (${key})`} onClick={(event) => { event.stopPropagation(); look(index); say(head.premise_id, word); }}>{label}</button>
              ))}
            </div>
            <div class="sentence">
              <Marked text={head.text} query={query} />
              {moved && <Moved rank={head.rank} before={moved.get(head.premise_id)} />}
              <span class="remarks" role="group" aria-label={`Remark on candidate ${index + 1}`}>
                {REMARKS.map(({ remark, label, key }) => (
                  <button type="button" key={remark} class="plain" aria-pressed={draft.remarks[head.premise_id] === remark} title={`${label} (${key})`} onClick={(event) => { event.stopPropagation(); look(index); mark(head.premise_id, remark); }}>{label}</button>
                ))}
              </span>
              {several && accepted && <label class="grade">way <select value={draft.ways[head.premise_id] ?? 0} onClick={(event) => event.stopPropagation()} onChange={(event) => setWay(head.premise_id, Number(event.currentTarget.value))}><option value="0">each</option>{[1, 2, 3, 4].map((way) => <option key={way} value={way}>{way}</option>)}</select></label>}
              {maxGrade > 0 && accepted && <label class="grade">grade <input type="number" min="1" max={maxGrade} step="any" value={draft.grades[head.premise_id] ?? ""} onClick={(event) => event.stopPropagation()} onInput={(event) => grade(head.premise_id, event.currentTarget.valueAsNumber)} /></label>}
              {showScores && <span class="score">{head.score.toFixed(3)}</span>}
              {above.has(head.text) && <span class="warning">says what is to be explained: a tree may not lead back to itself</span>}
              {others.length > 0 && <details class="others"><summary>{others.length} in other words</summary>{others.map((other) => <p key={other.premise_id}>{other.text}</p>)}</details>}
            </div>
            {isLine ? <span class="mark">read down to here: unticked above is refused, below is unseen</span> : <button type="button" class="plain draw" onClick={(event) => { event.stopPropagation(); draw(head.rank); }}>{seen ? "Unread below" : "Read down to here"}</button>}
          </li>
        );
      })}
    </ol>
  );
}

// Where a candidate stood before it was ranked again.
function Moved({ rank, before }: { rank: number; before: number | undefined }) {
  if (before === undefined) return <span class="moved new">new</span>;
  if (before === rank) return null;
  const up = before > rank;
  return <span class={`moved ${up ? "up" : "down"}`}>{up ? "▲" : "▼"} was {before}</span>;
}
