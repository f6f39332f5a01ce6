// One person at work: lease, judge, submit, take back or go on, next.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { call, follow, fresh, freshSeq, Problem, type Hit, type Lease, type NodeVerdict, type Person, type Queue, type Remark, type Tree, type Word } from "./api";
import { Candidates } from "./candidates";
import { accepts, dropDraft, emptyDraft, folded, heldKey, loadDraft, saveDraft, sentGrades, sentVerdicts, sentWays, type Draft } from "./draft";
import { useRerank } from "./rerank";
import { Reopen } from "./reopen";
import { Search } from "./search";
import { TreeView } from "./tree";

const ACTIVE_MS = 120_000; // a lease is renewed while its person does something
const LOOK_MS = 120; // after an event, so that several make one look
const COUNT_MS = 2000; // between two looks at the counts
const OPENS = ["queued", "released", "expired", "undone"]; // events after which there may be a task for somebody
const KEYS: [string, string][] = [
  ["1–9", "tick"], ["↑ ↓", "move"], ["a", "accept"], ["l", "leaf"], ["r", "refuse"], ["x", "abstain"], ["i", "irrelevant"], ["b", "bad fact"], ["s", "read down to here"],
  ["/", "search"], ["n", "note"], ["e", "re-rank"], ["u", "undo"], ["o", "reopen"], ["g", "go on now"], ["k", "skip"], ["Ctrl ↵", "submit"], ["?", "guideline"],
];

interface Last { lease: Lease; draft: Draft; until: number; settled: boolean }

export function Annotate({ queues, reloadQueues, role }: { queues: Queue[]; reloadQueues: () => void; role: Person["role"] }) {
  const [lease, setLease] = useState<Lease | null>(null);
  const [draft, showDraft] = useState<Draft | null>(null);
  const [tree, drawTree] = useState<Tree | null>(null);
  const [last, setLast] = useState<Last | null>(null);
  const [focus, showFocus] = useState(0);
  const [stay, setStay] = useState(true);
  const [searching, setSearching] = useState(false);
  const [guideline, setGuideline] = useState(false);
  const [reopening, setReopening] = useState<string | null>(null); // the run whose answers are in sight; empty: any
  const [showScores, setShowScores] = useState(false);
  const [told, setTold] = useState("");
  const [grows, setGrows] = useState(false);
  const [busy, setBusy] = useState(false);
  const [now, setNow] = useState(Date.now());
  const [ends, setEnds] = useState(0);
  const active = useRef(Date.now());
  const shown = useRef<{ lease: Lease | null; tree: Tree | null }>({ lease: null, tree: null });
  // What keys act upon: two keys may come before the page is drawn again.
  const latest = useRef<{ draft: Draft | null; focus: number }>({ draft: null, focus: 0 });
  const asking = useRef(false);
  const leaving = useRef(false); // "another tree" was pressed while a task was asked for
  const working = useRef(false); // an answer is on its way, there or back
  const typed = useRef<string | null>(null); // what comes after "/" before the search is drawn
  const folds = useMemo(() => (lease ? folded(lease.task.candidates) : []), [lease]);

  const { version: newer, moved, rerank } = useRerank(lease, () => latest.current.draft, open, setTold);

  function setDraft(changed: (before: Draft) => Draft): void {
    if (latest.current.draft) replaceDraft(changed(latest.current.draft));
  }

  function replaceDraft(draft: Draft | null): void {
    latest.current.draft = draft;
    if (draft && shown.current.lease) saveDraft(shown.current.lease, draft); // at once: a reload may come before the page is drawn
    showDraft(draft);
  }

  function setFocus(index: number): void {
    latest.current.focus = index;
    showFocus(index);
  }

  function setTree(tree: Tree | null): void {
    shown.current.tree = tree;
    drawTree(tree);
  }

  function open(found: Lease | null, kept?: Draft): void {
    shown.current.lease = found;
    setLease(found);
    setFocus(0);
    setSearching(false);
    typed.current = null;
    if (!found) {
      localStorage.removeItem(heldKey());
      replaceDraft(null);
      return;
    }
    localStorage.setItem(heldKey(), JSON.stringify(found));
    replaceDraft(kept ?? loadDraft(found));
    setEnds(Date.parse(found.expires_at));
    void showTree(found.run_id, found.hypothesis_id, found);
  }

  async function showTree(run: string, hypothesis: string, of: Lease | null = null): Promise<void> {
    if (!hypothesis) {
      setTree(of && pathTree(of));
      return;
    }
    try {
      setTree(await call<Tree>(`/api/runs/${encodeURIComponent(run)}/tree?hypothesis=${encodeURIComponent(hypothesis)}`));
    } catch (error) {
      setTold((error as Error).message);
    }
  }

  // The next task. While the tree in sight is about to grow, its person waits for it rather than begin another one.
  async function next(elsewhere = false): Promise<void> {
    if (asking.current) {
      leaving.current ||= elsewhere;
      return;
    }
    asking.current = true;
    try {
      const tree = shown.current.tree;
      let found: Lease | null = null;
      if (stay && tree?.hypothesis_id && !elsewhere) {
        found = await call<Lease | null>("/api/lease", { run: tree.run_id, hypothesis: tree.hypothesis_id, request: fresh() }).catch(() => null);
        if (!found) {
          await showTree(tree.run_id, tree.hypothesis_id);
          const grows = shown.current.tree?.nodes.some((node) => node.state === "pending" || (node.state === "decided" && node.accepted.some((one) => !one.leaf))) ?? false;
          setGrows(grows);
          if (grows) { open(null); return; }
        }
      }
      setGrows(false);
      found ??= await call<Lease | null>("/api/lease", { request: fresh() });
      open(found);
    } catch (error) {
      setTold((error as Error).message);
    } finally {
      asking.current = false;
      reloadQueues();
      if (leaving.current && !shown.current.lease) void next(true);
      leaving.current = false;
    }
  }

  useEffect(() => {
    const stored = localStorage.getItem(heldKey());
    const held = stored ? (JSON.parse(stored) as Lease) : null;
    if (held && Date.parse(held.expires_at) > Date.now()) open(held);
    else void next();
    const ticking = setInterval(() => setNow(Date.now()), 500);
    const busyNow = (): void => { active.current = Date.now(); };
    addEventListener("pointerdown", busyNow);
    addEventListener("keydown", busyNow);
    let due: ReturnType<typeof setTimeout> | undefined;
    let counted = 0;
    // Whose tree or queue has changed looks at once; events of others, of which there may be many, are counted now and then.
    const stop = follow((event) => {
      const { lease: held, tree: drawn } = shown.current;
      const mine = event.event === "connected" || drawn?.nodes.some((node) => node.task_id === event.task);
      const grows = drawn !== null && !drawn.finished && event.run === drawn.run_id && ["queued", "settled"].includes(event.event);
      if (Date.now() > counted) { counted = Date.now() + COUNT_MS; reloadQueues(); }
      if (due !== undefined || (held && !mine) || (!mine && !grows && !OPENS.includes(event.event))) return;
      due = setTimeout(() => {
        due = undefined;
        const { lease: held, tree: drawn } = shown.current;
        if (drawn) void showTree(drawn.run_id, drawn.hypothesis_id, held);
        if (!held && !working.current) void next();
      }, LOOK_MS);
    });
    return () => { clearInterval(ticking); stop(); removeEventListener("pointerdown", busyNow); removeEventListener("keydown", busyNow); };
  }, []);

  useEffect(() => {
    if (!lease) return undefined;
    const renewing = setInterval(() => {
      if (Date.now() - active.current > ACTIVE_MS) return;
      call<{ expires_at: string }>("/api/renew", { lease: lease.lease_id })
        .then((renewed) => { setEnds(Date.parse(renewed.expires_at)); localStorage.setItem(heldKey(), JSON.stringify({ ...lease, ...renewed })); })
        .catch((error: Error) => setTold(`${error.message}. You may still submit; if others were faster, it is not counted.`));
    }, Math.max(5000, (lease.remaining * 1000) / 3));
    return () => clearInterval(renewing);
  }, [lease]);

  const change = (part: Partial<Draft>): void => setDraft((before) => ({ ...before, ...part }));

  function say(premiseId: string, word: Word): void {
    setDraft((before) => {
      const verdicts = { ...before.verdicts };
      const remarks = { ...before.remarks };
      delete remarks[premiseId];
      if (verdicts[premiseId] === word) delete verdicts[premiseId];
      else verdicts[premiseId] = word;
      const rank = lease?.task.candidates.find((one) => one.premise_id === premiseId)?.rank ?? 0;
      return { ...before, verdicts, remarks, seenUpto: Math.max(before.seenUpto, rank) };
    });
  }

  // A remark brings the verdict that it means: what is irrelevant is refused, of a bad fact nothing is learnt.
  function mark(premiseId: string, remark: Remark): void {
    const marked = latest.current.draft?.remarks[premiseId] === remark;
    const word: Word = remark === "irrelevant" ? "refuses" : "abstains";
    if (marked || latest.current.draft?.verdicts[premiseId] !== word) say(premiseId, word);
    if (!marked) setDraft((before) => ({ ...before, remarks: { ...before.remarks, [premiseId]: remark } }));
  }

  function grade(premiseId: string, grade: number): void {
    setDraft((before) => ({ ...before, grades: { ...before.grades, [premiseId]: grade } }));
  }

  function look(index: number): void {
    const fold = folds[index];
    if (!fold) return;
    setFocus(index);
    setDraft((before) => ({ ...before, seenUpto: Math.max(before.seenUpto, fold.head.rank) }));
  }

  function add(hit: Hit): void {
    setDraft((before) => {
      const additions = { ...before.additions };
      if (additions[hit.id]) delete additions[hit.id];
      else additions[hit.id] = { text: hit.text, leaf: false };
      return { ...before, additions };
    });
  }

  function write(text: string, intermediate: boolean): void {
    const list = intermediate ? "intermediates" : "written";
    setDraft((before) => ({ ...before, [list]: [...before[list].filter((one) => one !== text), text] }));
  }

  // One answer at a time is sent or taken back, however often somebody presses.
  async function alone(work: () => Promise<void>): Promise<void> {
    if (working.current) return;
    working.current = true;
    setBusy(true);
    setTold("");
    try {
      await work();
    } catch (error) {
      setTold((error as Error).message);
    } finally {
      setBusy(false);
      working.current = false;
    }
  }

  const submit = (): Promise<void> => alone(async () => {
    const draft = latest.current.draft;
    if (!lease || !draft) return;
    const body = {
      lease: lease.lease_id, verdicts: sentVerdicts(draft, folds), grades: sentGrades(draft), remarks: draft.remarks, seen_upto: draft.seenUpto, note: draft.note,
      additions: Object.fromEntries(Object.entries(draft.additions).map(([id, one]) => [id, one.leaf ? "leaf" : "explains"])),
      written: draft.written, alternatives: sentWays(draft), intermediates: draft.intermediates, inference: draft.inference, node_verdict: draft.nodeVerdict,
      elapsed_s: (Date.now() - draft.begun) / 1000, seq: freshSeq(),
    };
    try {
      await call("/api/answer", body);
      const queue = queues.find((one) => one.runs.some((run) => run.run_id === lease.run_id));
      const until = Date.now() + (queue?.undo ?? 0) * 1000;
      dropDraft(lease.task.task_id);
      localStorage.removeItem(heldKey());
      await next();
      setLast({ lease, draft, until, settled: false }); // only now can it be taken back: see `alone`
    } catch (error) {
      const answered = error instanceof Problem && ["TASK_ANSWERED", "LEASE_ANSWERED", "LEASE_RELEASED"].includes(error.reason);
      if (!answered) throw error;
      setTold(error.message);
      localStorage.removeItem(heldKey());
      await next();
    }
  });

  const undo = (): Promise<void> => alone(async () => {
    if (!last) return;
    await call("/api/undo", { run: last.lease.run_id, request: fresh() });
    setLast(null);
    if (lease) await call("/api/release", { lease: lease.lease_id, reason: "undo" });
    const again = await call<Lease | null>("/api/lease", { run: last.lease.run_id, task: last.lease.task.task_id, request: fresh() });
    if (again) open(again, last.draft);
    else { setTold("Taken back; somebody else has that task now."); await next(); }
  });

  function reopen(): void {
    const run = lease?.run_id ?? last?.lease.run_id ?? tree?.run_id ?? "";
    setReopening((before) => (before === null ? run : null));
  }

  async function goOn(): Promise<void> {
    if (!last || last.settled) return;
    try {
      await call("/api/settle", { run: last.lease.run_id, task: last.lease.task.task_id, request: fresh() });
      setLast({ ...last, settled: true });
    } catch (error) {
      setTold((error as Error).message);
    }
  }

  async function skip(): Promise<void> {
    if (lease) await call("/api/release", { lease: lease.lease_id, reason: "skipped" });
    await next(true);
  }

  // Before the next key can come: what is drawn is what keys act upon.
  useLayoutEffect(() => {
    function pressed(event: KeyboardEvent): void {
      if (reopening !== null && !["Escape", "o"].includes(event.key)) return; // keys are for what is in sight, not for the task behind it
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); if (!event.repeat) void submit(); return; }
      if (typed.current !== null && event.key.length === 1) { event.preventDefault(); typed.current += event.key; return; }
      const typing = event.target instanceof HTMLElement && event.target.matches("input:not([type=checkbox]), textarea, select");
      if (event.key === "Escape") { typed.current = null; setSearching(false); setGuideline(false); setReopening(null); (event.target as HTMLElement).blur?.(); return; }
      const heldDown = event.repeat && !event.key.startsWith("Arrow");
      if (typing || heldDown || event.ctrlKey || event.metaKey || event.altKey) return;
      const { focus } = latest.current;
      const focused = folds[focus]?.head.premise_id;
      const does: Record<string, () => unknown> = {
        ArrowDown: () => look(Math.min(focus + 1, folds.length - 1)), ArrowUp: () => look(Math.max(focus - 1, 0)),
        a: () => focused && say(focused, "explains"), l: () => focused && say(focused, "leaf"), r: () => focused && say(focused, "refuses"),
        x: () => focused && say(focused, "abstains"), i: () => focused && mark(focused, "irrelevant"), b: () => focused && mark(focused, "bad_fact"), s: () => folds[focus] && change({ seenUpto: folds[focus]!.head.rank }),
        "/": () => { if (lease) { typed.current = searching ? null : ""; setSearching(true); } }, n: () => document.getElementById("note")?.focus(), e: rerank, u: undo, o: reopen, g: goOn, k: skip, "?": () => setGuideline((open) => !open),
      };
      const page = Math.floor(focus / 9) * 9;
      const digit = /^[1-9]$/.test(event.key) ? folds[page + Number(event.key) - 1] : undefined;
      if (digit) { event.preventDefault(); say(digit.head.premise_id, "explains"); }
      else if (does[event.key]) { event.preventDefault(); void does[event.key]!(); }
    }
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  });

  const queue = queues.find((one) => one.runs.some((run) => run.run_id === lease?.run_id)) ?? queues[0];
  const growing = lease && draft ? [
    ...lease.task.candidates.filter((one) => accepts(draft, one.premise_id)).map((one) => ({ text: one.text, leaf: draft.verdicts[one.premise_id] === "leaf" })),
    ...Object.values(draft.additions),
    ...draft.intermediates.map((text) => ({ text, leaf: false })),
  ] : [];
  const undoS = last && !last.settled ? Math.max(0, Math.ceil((last.until - now) / 1000)) : 0;
  return (
    <div class="annotate">
      <aside class="side">
        <h2>Tree</h2>
        {tree?.question && <p class="behind"><span class="quiet">Question</span> {tree.question}{tree.answer && <><br /><span class="quiet">Answer</span> {tree.answer}</>}</p>}
        <TreeView tree={tree} current={lease ? lease.node_id || `${lease.task.path.length}` : ""} growing={growing} />
        {tree?.hypothesis_id && tree.nodes.some((node) => node.state === "judged" && node.accepted.length > 0) && <p class="quiet"><a href={`/api/runs/${encodeURIComponent(tree.run_id)}/tree.svg?hypothesis=${encodeURIComponent(tree.hypothesis_id)}`} target="_blank" rel="noreferrer">The tree as a picture</a></p>}
        <label class="check"><input type="checkbox" checked={stay} onChange={(event) => setStay(event.currentTarget.checked)} /> stay in this tree</label>
        <p><button type="button" onClick={reopen}>Reopen an answer <kbd>o</kbd></button></p>
        {queue && <p class="quiet">{queue.name}: {queue.total.waiting} wait, {queue.total.settled + queue.total.decided} done, {queue.total.mine} yours ({queue.total.mine_hour} in the last hour)</p>}
      </aside>
      <section class="work" aria-label="Task">
        {told && <p class="problem" role="alert">{told} <button type="button" class="plain" onClick={() => setTold("")}>Dismiss</button></p>}
        {queue?.qualification.state === "open" && <p class="last" role="status">You qualify for {queue.name}: {queue.qualification.answered} of {queue.qualification.items} tasks answered. What you get first was judged before; afterwards you get the open ones.</p>}
        {last && (
          <p class="last">
            <span role="status">Submitted: “{last.lease.task.query}”.{last.settled && " The run goes on."}</span>{" "}
            {!last.settled && (undoS > 0 ? <>
              <button type="button" disabled={busy} onClick={undo}>Undo <kbd>u</kbd> ({undoS} s)</button>
              <button type="button" onClick={goOn}>Go on now <kbd>g</kbd></button>
            </> : "The run goes on with it.")}
          </p>
        )}
        {reopening !== null && <Reopen at={reopening} all={role !== "annotator"} close={() => setReopening(null)} />}
        {guideline && <section class="panel guideline" aria-label="Guideline"><h2>Guideline</h2><pre>{queue?.guideline || "This queue has no guideline."}</pre></section>}
        {!lease || !draft ? <p class="waiting" role="status">{grows ? <>This tree grows as soon as your answer is final. <button type="button" onClick={skip}>Another tree meanwhile <kbd>k</kbd></button></> : "Nothing waits for you at the moment. New tasks appear here by themselves."}</p> : <>
          {lease.task.path.length > 0 && <ol class="path" aria-label="Path from the hypothesis">{lease.task.path.map((text, n) => <li key={n}>{text}</li>)}</ol>}
          {newer && <p class="last" role="status">A newer encoder was published. <button type="button" onClick={rerank}>Re-rank with the new encoder <kbd>e</kbd></button></p>}
          <h1><span class="ask">Which of these explain</span> {lease.task.query}</h1>
          {lease.task.accepted.length > 0 && <ul class="already" aria-label="Accepted before">{lease.task.accepted.map((one) => <li key={one.premise_id}>{one.text}</li>)}</ul>}
          {searching && <Search typed={typed} lease={lease} draft={draft} add={add} write={write} close={() => setSearching(false)} />}
          <Candidates lease={lease} draft={draft} folds={folds} focus={focus} moved={moved} showScores={showScores} maxGrade={queue?.max_grade ?? 0} grade={grade} setWay={(id, way) => change({ ways: { ...draft.ways, [id]: way } })} mark={mark} say={say} look={look} draw={(rank) => change({ seenUpto: rank })} />
          <ul class="added" aria-label="Added">
            {Object.entries(draft.additions).map(([id, one]) => (
              <li key={id}>Added: {one.text}
                <label class="check"><input type="checkbox" checked={one.leaf} onChange={(event) => change({ additions: { ...draft.additions, [id]: { ...one, leaf: event.currentTarget.checked } } })} /> leaf</label>
                <button type="button" class="plain" onClick={() => add({ id, text: one.text, score: 0 })}>Remove</button>
              </li>
            ))}
            {draft.intermediates.map((text) => <li key={`i${text}`}>Intermediate conclusion: {text} <button type="button" class="plain" onClick={() => change({ intermediates: draft.intermediates.filter((one) => one !== text) })}>Remove</button></li>)}
            {draft.written.map((text, n) => <li key={n}>Written: {text} <button type="button" class="plain" onClick={() => change({ written: draft.written.filter((_, at) => at !== n) })}>Remove</button></li>)}
          </ul>
          <div class="node">
            <label>This node is
              <select value={draft.nodeVerdict} onChange={(event) => change({ nodeVerdict: event.currentTarget.value as NodeVerdict })}>
                <option value="">not said</option><option value="complete">explained completely</option>
                <option value="premise_missing">lacking a premise</option><option value="not_explainable">not explainable</option>
              </select>
            </label>
            <label class="grow">Because <input id="inference" value={draft.inference} maxLength={1024} placeholder="… how the query follows, in your words" onInput={(event) => change({ inference: event.currentTarget.value })} /></label>
            <label class="grow">Note <input id="note" value={draft.note} maxLength={1024} onInput={(event) => change({ note: event.currentTarget.value })} /></label>
          </div>
          <footer class="bar">
            <div class="actions">
              <button type="button" class="primary" disabled={busy} onClick={submit}>Submit <kbd>Ctrl ↵</kbd></button>
              <button type="button" onClick={() => setSearching(true)}>Search <kbd>/</kbd></button>
              <button type="button" onClick={skip}>Skip <kbd>k</kbd></button>
              <button type="button" class="plain" onClick={() => change(emptyDraft(lease))}>Clear</button>
              <label class="check"><input type="checkbox" checked={showScores} onChange={(event) => setShowScores(event.currentTarget.checked)} /> scores</label>
              <span class={`left ${ends - now < 60_000 ? "soon" : ""}`}>{ends > now ? `yours for ${Math.ceil((ends - now) / 1000)} s` : "the lease is over; submit anyway"}</span>
            </div>
            <p class="keys" aria-label="Keys">{KEYS.map(([key, does]) => <span key={key}><kbd>{key}</kbd> {does}</span>)}</p>
          </footer>
        </>}
      </section>
    </div>
  );
}

// A task that no tree asks: its path is all there is to draw.
function pathTree(lease: Lease): Tree {
  const texts = [...lease.task.path, lease.task.query];
  const nodes = texts.map((text, depth) => ({
    node_id: `${depth}`, parent_id: depth ? `${depth - 1}` : "", premise_id: depth ? `p${depth}` : "", text, depth, task_id: "",
    state: depth === texts.length - 1 ? "leased" as const : "judged" as const, holders: [], answers: 0, overlap: 1, inferences: [], author: "",
    accepted: depth < texts.length - 1 ? [{ premise_id: `p${depth + 1}`, text: texts[depth + 1]!, rank: 1, leaf: false, author: "" }] : [],
  }));
  return { run_id: lease.run_id, hypothesis_id: "", nodes, finished: false, question: "", answer: "" };
}
