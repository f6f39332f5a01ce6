// The candidates of a task: the sentence, whether it is accepted, and whether it was read.
import { useLayoutEffect, useRef } from "preact/hooks";
import type { Lease } from "./api";
import { accepts, type Draft, type Fold } from "./draft";
import { Marked } from "./marked";
import { reveal } from "./sight";
import { SAID } from "./words";

interface Props {
  lease: Lease; draft: Draft; folds: Fold[]; focus: number; keyed: number; moved: Map<string, number> | null; showScores: boolean; several: boolean; maxGrade: number; otherwise: Record<string, string>;
  setWay: (premiseId: string, way: number) => void; grade: (premiseId: string, grade: number) => void; tick: (index: number) => void; look: (index: number) => void; line: (index: number, drawn?: boolean) => void;
}

// `keyed` counts the keys that have moved the frame: after each the framed row is wholly in sight, and has the focus.
export function Candidates({ lease, draft, folds, focus, keyed, moved, showScores, several, maxGrade, otherwise, grade, setWay, tick, look, line }: Props) {
  const list = useRef<HTMLOListElement>(null);
  const drags = useRef(false); // the line, by its label
  function drag(event: PointerEvent): void {
    const over = document.elementFromPoint(event.clientX, event.clientY)?.closest<HTMLElement>("[data-premise]");
    const index = folds.findIndex(({ head }) => head.premise_id === over?.dataset["premise"]);
    if (drags.current && index >= 0) line(index, true);
  }
  useLayoutEffect(() => {
    if (!keyed) return;
    const row = list.current?.querySelector<HTMLElement>(".focused");
    row?.querySelector<HTMLElement>(".tick")?.focus({ preventScroll: true });
    reveal(row);
  }, [keyed]);
  const { query, path } = lease.task;
  const above = new Set([...path, query]);
  const page = Math.floor(focus / 9) * 9;
  return (
    <ol class="candidates" ref={list} aria-label="Candidates, best first"
      onPointerDown={(event) => { drags.current = (event.target as HTMLElement).matches(".mark"); if (drags.current) event.currentTarget.setPointerCapture(event.pointerId); }} onPointerMove={drag} onPointerUp={() => { drags.current = false; }} onPointerCancel={() => { drags.current = false; }}>
      {folds.map(({ head, others }, index) => {
        const id = head.premise_id;
        const said = draft.remarks[id] ?? draft.verdicts[id];
        const accepted = accepts(draft, id);
        const seen = draft.read.includes(id) && (head.rank <= draft.seenUpto || draft.verdicts[id] !== undefined);
        const isLine = head.rank <= draft.seenUpto && (folds[index + 1]?.head.rank ?? 0) > draft.seenUpto;
        const digit = index >= page && index < page + 9 && index > 8 ? `${index - page + 1}` : "";
        return (
          <li key={id} data-premise={id} class={`candidate ${draft.verdicts[id] ?? (seen ? "unticked" : "unseen")} ${index === focus ? "focused" : ""} ${isLine ? "line" : ""}`} aria-current={index === focus ? "true" : undefined} onClick={() => look(index)}>
            <button type="button" class="tick" aria-pressed={accepted} aria-label={`Accept candidate ${index + 1}: ${head.text}`} onClick={(event) => { event.stopPropagation(); tick(index); }}>{index + 1}</button>
            <div class="sentence">
              <Marked text={head.text} query={query} />
              {said && said !== "explains" && <span class="chip">{SAID[said]}</span>}
              {otherwise[id] && <span class="chip">{otherwise[id]}</span>}
              {digit && <span class="digit">key <kbd>{digit}</kbd></span>}
              {moved && <Moved rank={head.rank} before={moved.get(id)} />}
              {several && accepted && <Way of={draft.ways[id]} choose={(way) => setWay(id, way)} />}
              {maxGrade > 0 && accepted && <Grade of={draft.grades[id]} max={maxGrade} give={(value) => grade(id, value)} />}
              {showScores && <span class="score">{head.score.toFixed(3)}</span>}
              {above.has(head.text) && <span class="warning">says what is to be explained: a tree may not lead back to itself</span>}
              {others.length > 0 && <details class="others"><summary>{others.length} in other words</summary>{others.map((other) => <p key={other.premise_id}>{other.text}</p>)}</details>}
            </div>
            <span class={`gutter ${seen ? "seen" : ""}`} title={`${seen ? "Read: if you leave it unticked, it is refused" : "Not read yet: it counts only after a second whole in sight"}. A click says that you stopped here`} onClick={(event) => { event.stopPropagation(); line(index); }}>{seen ? "✓ read" : "unread"}</span>
            {isLine && <span class="mark" onClick={(event) => event.stopPropagation()}>You stopped here: nothing below counts as read. Drag it, or press <kbd>s</kbd>.</span>}
          </li>
        );
      })}
    </ol>
  );
}

// Which of several explanations something accepted belongs to; none, or 0: to each.
export function Way({ of, choose }: { of: number | undefined; choose: (way: number) => void }) {
  return <label class="grade" title="Which of the ways this belongs to">way <select value={of ?? 0} onClick={(event) => event.stopPropagation()} onChange={(event) => choose(Number(event.currentTarget.value))}><option value="0">each</option>{[1, 2, 3, 4].map((way) => <option key={way} value={way}>{way}</option>)}</select></label>;
}

export function Grade({ of, max, give }: { of: number | undefined; max: number; give: (grade: number) => void }) {
  return <label class="grade">grade <input type="number" min="1" max={max} step="any" value={of ?? ""} onClick={(event) => event.stopPropagation()} onInput={(event) => give(event.currentTarget.valueAsNumber)} /></label>;
}

// Where a candidate stood before it was ranked again.
function Moved({ rank, before }: { rank: number; before: number | undefined }) {
  if (before === undefined) return <span class="moved new">new</span>;
  if (before === rank) return null;
  const up = before > rank;
  return <span class={`moved ${up ? "up" : "down"}`}>{up ? "▲" : "▼"} was {before}</span>;
}
