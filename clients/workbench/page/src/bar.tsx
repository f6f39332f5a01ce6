// The bar below a task: what can be said of the framed candidate, and of the whole.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { NodeVerdict, Remark, Word } from "./api";
import { unseen, type Draft, type Fold } from "./draft";
import { SAYS } from "./words";

// A press on what has appeared more recently than this was meant for what stood there before: a task of which nothing was
// said yet is not submitted, a question not answered.
export const ARMED_MS = 1000;
const VERDICTS: { word: Word; key: string; means: string }[] = [
  { word: "explains", key: "a", means: "It is needed to explain the sentence above, and is to be explained itself" },
  { word: "leaf", key: "l", means: "It is needed to explain the sentence above, and needs no explanation itself" },
  { word: "refuses", key: "r", means: "It does not explain the sentence above. What you have read and left unticked is refused in any case" },
  { word: "abstains", key: "x", means: "You cannot tell: nothing is learnt from it" },
];
const REMARKS: { remark: Remark; label: string; key: string; means: string }[] = [
  { remark: "irrelevant", label: "Irrelevant", key: "i", means: "It is true but does not belong here: refused, with this remark" },
  { remark: "bad_fact", label: "Bad fact", key: "b", means: "It is wrong or garbled: nothing is learnt from it, with this remark" },
];

interface Props {
  draft: Draft; folds: Fold[]; focus: number; busy: boolean; over: boolean; asking: boolean; cleared: boolean; given: boolean; search: preact.ComponentChildren; told: preact.ComponentChildren;
  judge: (word: Word) => void; mark: (remark: Remark) => void; submit: () => void; send: (why: NodeVerdict) => void; back: () => void;
  find: () => void; skip: () => void; clear: () => void; help: () => void;
}

export function Bar({ draft, folds, focus, busy, over, asking, cleared, given, search, told, judge, mark, submit, send, back, find, skip, clear, help }: Props) {
  const id = folds[focus]?.head.premise_id ?? "";
  const left = unseen(draft, folds);
  return (
    <footer class="bar">
      {told}
      {search}
      {asking && <Question left={left} all={folds.length} send={send} skip={skip} back={back} />}
      <div class="said" role="group" aria-label={`Verdict on candidate ${focus + 1}`} inert={busy || asking}>
        <span class="quiet" aria-hidden="true">{focus + 1}</span>
        {VERDICTS.map(({ word, key, means }) => (
          <button type="button" key={word} class={word} aria-pressed={draft.verdicts[id] === word} title={means} onClick={() => judge(word)}>{SAYS[word]} <kbd>{key}</kbd></button>
        ))}
        {REMARKS.map(({ remark, label, key, means }) => (
          <button type="button" key={remark} class="plain" aria-pressed={draft.remarks[id] === remark} title={means} onClick={() => mark(remark)}>{label} <kbd>{key}</kbd></button>
        ))}
      </div>
      <div class="actions">
        <button type="button" class="primary" disabled={busy} onClick={submit}>{busy ? "Sending…" : given ? "Save the change" : "Submit"} <kbd>Ctrl ↵</kbd></button>
        <span class="quiet" title="What was not whole in sight for a second is sent as unseen: nothing is learnt from it">{left === 0 ? "all seen" : `${left} of ${folds.length} not seen`}</span>
        <button type="button" onClick={find} title="Search the corpus for what these candidates lack">Search <kbd>/</kbd></button>
        <button type="button" disabled={busy} onClick={skip} title={given ? "The answer stands as it is; what you have changed is kept in this browser" : "Give this task back and take another one"}>{given ? "Leave it" : "Skip"} <kbd>k</kbd></button>
        <button type="button" class="plain" disabled={busy} onClick={clear} title={given ? "The answer as it was given" : "Takes back all that you have said of this task"}>{cleared ? "Bring back" : "Clear"}</button>
        <button type="button" class="plain" onClick={help}>Guideline and keys <kbd>?</kbd></button>
        {over && !given && <span class="left">the lease is over; submit anyway</span>}
      </div>
    </footer>
  );
}

// An answer that accepts nothing is easily sent by mistake, and so is this by whoever presses Submit twice.
function Question({ left, all, send, skip, back }: { left: number; all: number; send: (why: NodeVerdict) => void; skip: () => void; back: () => void }) {
  const asked = useRef<HTMLDivElement>(null);
  const [armed, arm] = useState(false);
  useLayoutEffect(() => { asked.current!.focus({ preventScroll: true }); }, []);
  useEffect(() => { const arming = setTimeout(() => arm(true), ARMED_MS); return () => clearTimeout(arming); }, []);
  const none = all > 0 && left === all;
  return (
    <div class="question" role="alertdialog" aria-label="Nothing is accepted" tabIndex={-1} ref={asked}>
      <strong>{none ? "You have accepted nothing, and no candidate was in sight for a second yet." : `You have accepted nothing${left > 0 ? `, and ${left} of ${all} were not seen` : ""}.`}</strong>
      <div class="choices" inert={!armed}>
        {!none && <button type="button" onClick={() => send("not_explainable")}>Nothing explains it</button>}
        {!none && <button type="button" onClick={() => send("premise_missing")}>A premise is missing</button>}
        <button type="button" onClick={skip}>Skip it <kbd>k</kbd></button>
        <button type="button" class="plain" onClick={back}>Go on reading <kbd>Esc</kbd></button>
      </div>
    </div>
  );
}

