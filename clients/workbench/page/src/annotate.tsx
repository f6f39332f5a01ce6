// One person at work: lease, judge, submit, take back or go on, next.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Added } from "./added";
import { call, follow, fresh, freshSeq, lettersOn, Problem, setLettersOn, useLatest, type Answer, type Hit, type JudgedTask, type Lease, type NodeVerdict, type Person, type Queue, type Remark, type Tree, type TreeNode, type Word } from "./api";
import { After, became, type Last } from "./after";
import { ARMED_MS, Bar } from "./bar";
import { Candidates } from "./candidates";
import { acceptedIn, accepts, dropDraft, emptyDraft, folded, heldKey, heldLease, lastKey, loadDraft, metKey, queueKey, saveDraft, saysNothing, sentGrades, sentSight, sentVerdicts, sentWays, timed, unseen, type Draft } from "./draft";
import { changesOf, decidedOtherwise, draftOfAnswer, leaseOfAnswer } from "./given";
import { Guideline } from "./guideline";
import { useRerank } from "./rerank";
import { Reopen } from "./reopen";
import { Search } from "./search";
import { Side } from "./side";
import { NONE_SPENT, turn, useSight } from "./sight";
import { isWhole, pathTree, treePath, Whole } from "./tree";
import { moment } from "./words";

const ACTIVE_MS = 120_000; // a lease is renewed while its person does something
const LOOK_MS = 120; // after an event, so that several make one look
const COUNT_MS = 2000; // between two looks at the counts
const OPENS = ["queued", "released", "expired", "undone"]; // events after which there may be a task for somebody
const OVER = ["TASK_ANSWERED", "TASK_WITHDRAWN", "LEASE_ANSWERED", "LEASE_RELEASED", "RUN_ENDED"]; // refusals after which nothing can be sent of a task: the next one follows

// In practice, `show` what is known of a node (empty: of the last one), and `leave` for real tasks.
// `at` is a node whose answers are asked for by the address.
interface Props { at: { run: string; task: string } | null; queues: Queue[]; reloadQueues: () => void; me: Person; practice?: { show: (task: string) => void; leave: () => void } }

export function Annotate({ at, queues, reloadQueues, me: { name: me, role }, practice }: Props) {
  const [lease, setLease] = useState<Lease | null>(null);
  const [draft, showDraft] = useState<Draft | null>(null);
  const [tree, drawTree] = useState<Tree | null>(null);
  const [last, showLast] = useState<Last | null>(null);
  const [focus, showFocus] = useState(0);
  const [keyed, setKeyed] = useState(0); // keys that have moved the frame
  const [stay, setStay] = useState(true);
  const [from, setFrom] = useState(localStorage.getItem(queueKey()) ?? ""); // a queue; empty: any
  const [searching, setSearching] = useState(false);
  const [guideline, setGuideline] = useState(false);
  const [reopening, setReopening] = useState<{ run: string; task: string; premise?: string | undefined } | null>(null); // the run and task whose answers are in sight; empty: any
  const [showScores, setShowScores] = useState(false);
  const [told, setTold] = useState("");
  const [done, setDone] = useState(""); // what has become of a change
  const [grows, setGrows] = useState(false);
  const [whole, showWhole] = useState(false); // the finished tree is in sight
  const [busy, setBusy] = useState(false);
  const [empty, setEmpty] = useState(false); // an answer that accepts nothing waits for a word
  const [cleared, setCleared] = useState<Draft | null>(null);
  const [several, setSeveral] = useState(false); // ways to explain it
  const [met, setMet] = useState(localStorage.getItem(metKey()) !== null); // has answered
  const [letters, setLetters] = useState(lettersOn());
  const [now, setNow] = useState(Date.now());
  const [ends, setEnds] = useState(0);
  const active = useRef(Date.now());
  const shown = useRef<{ lease: Lease | null; tree: Tree | null; last: Last | null; queue: string; stay: boolean; whole: boolean }>({ lease: null, tree: null, last: null, queue: from, stay, whole: false });
  const opened = useRef(0);
  const touched = useRef(false); // something was said of the task since it was opened
  const look = useLatest(); // at trees
  const top = useRef<HTMLHeadingElement>(null);
  // What keys act upon: two keys may come before the page is drawn again.
  const latest = useRef<{ draft: Draft | null; focus: number }>({ draft: null, focus: 0 });
  const asking = useRef(false);
  const asks = useRef(0); // for tasks; to open one is one, too
  const gone = useRef(false); // the view was left
  const leaving = useRef(false); // "another tree" was pressed while a task was asked for
  const working = useRef(false); // an answer is on its way, there or back
  const asked = useRef(at !== null); // answers were asked for by the address: no task is taken before they are closed
  const typed = useRef<string | null>(null); // what comes after "/" before the search is drawn
  const folds = useMemo(() => (lease ? folded(lease.task.candidates, lease.same_keys) : []), [lease]);

  const { version: newer, moved, rerank } = useRerank(lease?.given ? null : lease, () => latest.current.draft, open, ask, setTold);

  const spent = useSight(lease?.lease_id ?? "", () => Date.now() - active.current < ACTIVE_MS, (of, ids) => of === shown.current.lease?.lease_id && setDraft((before) => ({ ...before, read: [...new Set([...before.read, ...ids])] })));

  // What is judged is frozen while it is sent: false.
  function setDraft(changed: (before: Draft) => Draft): boolean {
    const before = latest.current.draft;
    if (!before || working.current) return false;
    const { spentMs, sightMs } = timed(before, spent.current);
    replaceDraft({ ...changed(before), spentMs, sightMs });
    spent.current = NONE_SPENT;
    return true;
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

  // The same for a key: what it frames comes wholly into sight.
  function frame(index: number): void {
    setFocus(Math.max(0, Math.min(index, folds.length - 1)));
    setKeyed((before) => before + 1);
  }

  function setLast(next: Last | null): void {
    shown.current.last = next;
    showLast(next);
    if (next) localStorage.setItem(lastKey(), JSON.stringify(next));
    else localStorage.removeItem(lastKey());
  }

  function setTree(tree: Tree | null): void {
    shown.current.tree = tree;
    drawTree(tree);
  }

  function chooseStay(on: boolean): void {
    shown.current.stay = on;
    setStay(on);
  }

  function setWhole(on: boolean): void {
    shown.current.whole = on;
    showWhole(on);
  }

  function open(found: Lease | null, kept?: Draft): void {
    shown.current.lease = found;
    touched.current = false;
    spent.current = NONE_SPENT;
    setLease(found);
    setWhole(false);
    setFocus(0);
    setSearching(false);
    setEmpty(false);
    setCleared(null);
    setGrows(false);
    typed.current = null;
    if (!found) {
      replaceDraft(null);
      return;
    }
    setDone(""); // else it stays in sight: what a change itself sets off looks for a task, too
    if (!found.given) { asks.current++; localStorage.setItem(heldKey(), JSON.stringify(found)); }
    const draft = kept ?? loadDraft(found, draftOfAnswer(found));
    setSeveral(Object.keys(draft.ways).length > 0);
    replaceDraft(draft);
    setEnds(Date.parse(found.expires_at));
    void showTree(found.run_id, found.hypothesis_id, found);
  }

  function chooseQueue(name: string): void {
    localStorage.setItem(queueKey(), name);
    shown.current.queue = name;
    setFrom(name);
  }

  useEffect(() => { // one that is no longer there
    if (!from || queues.length === 0 || queues.some((one) => one.name === from)) return;
    chooseQueue("");
    if (!shown.current.lease) void next();
  }, [queues]);

  useEffect(() => {
    if (!at) return;
    setReopening(at);
    history.replaceState(null, "", "/#annotate"); // a reload goes on with the task
  }, [at?.run, at?.task]);

  // A task begins at its hypothesis.
  useLayoutEffect(() => {
    if (!lease) return;
    if (latest.current.focus > 0) { setKeyed((before) => before + 1); return; } // a premise of it was asked for
    scrollTo(0, 0);
    top.current?.focus({ preventScroll: true });
  }, [lease?.lease_id]);

  // Forgets a lease unless another tab has taken a newer one.
  function letGo(leaseId: string): void {
    if (heldLease()?.lease_id === leaseId) localStorage.removeItem(heldKey());
  }

  // Draws a tree, unless another was asked for meanwhile. That of another task goes at once.
  async function showTree(run: string, hypothesis: string, of: Lease | null = null): Promise<Tree | null> {
    const before = shown.current.tree;
    if (before && (before.run_id !== run || before.hypothesis_id !== hypothesis)) setTree(null);
    return look(hypothesis ? call<Tree>(treePath(run, hypothesis)) : Promise.resolve(of && pathTree(of)), setTree, (error) => setTold(error.message));
  }

  // What has become of the last answer.
  async function lookAfter(): Promise<void> {
    const last = shown.current.last;
    if (!last || last.settled || !last.lease.hypothesis_id) return;
    const task = last.lease.task.task_id;
    const tree = await call<Tree>(treePath(last.lease.run_id, last.lease.hypothesis_id)).catch(() => null);
    const now = shown.current.last;
    if (tree && now?.lease.task.task_id === task) setLast({ ...now, node: tree.nodes.find((node) => node.task_id === task) });
  }

  const isGiven = (): boolean => shown.current.lease?.given !== undefined;

  // Asks for a task and opens it; null: there is none. What comes late opens nothing (undefined): it goes back once its
  // person has left the view or asked for another, and waits while an earlier answer that they have opened since is in sight.
  async function ask(of: object, kept?: (found: Lease) => Draft): Promise<Lease | null | undefined> {
    if (gone.current) return undefined;
    const mine = ++asks.current;
    const before = shown.current.lease;
    const found = await call<Lease | null>("/api/lease", { ...of, request: fresh() });
    if (gone.current || asks.current !== mine) { await giveBack(found, "came late"); return undefined; }
    if (isGiven() && shown.current.lease !== before) { if (found) localStorage.setItem(heldKey(), JSON.stringify(found)); return undefined; }
    if (!found) return null;
    if (!kept) opened.current = Date.now(); // a second press does not submit what came under it
    open(found, kept?.(found));
    return found;
  }

  async function giveBack(of: Lease | null, reason: string): Promise<void> {
    if (!of) return;
    letGo(of.lease_id);
    await call("/api/release", { lease: of.lease_id, reason }).catch(() => undefined); // it is over in any case
  }

  // From an earlier answer to the task that is held, or the next one.
  async function leaveGiven(): Promise<void> {
    shown.current.lease = null;
    await begin();
    opened.current = Date.now(); // a second press does not submit what came under it
  }

  // The task that was `held` unless somebody else has it, else the next one. While the tree in sight is about to grow, its
  // person waits for it rather than begin another one.
  async function next(elsewhere = false, held: Lease | null = null): Promise<void> {
    if (gone.current || isGiven()) return;
    if (asking.current) {
      leaving.current ||= elsewhere;
      return;
    }
    asking.current = true;
    try {
      if (held) {
        let why = "somebody else has it or has answered it, or its run has ended";
        const again = await ask({ run: held.run_id, task: held.task.task_id }).catch((error: Error) => { why = error.message; return null; });
        if (again !== null) return;
        letGo(held.lease_id);
        const kept = loadDraft(held);
        if (Object.keys(kept.verdicts).length > 0 || !saysNothing(kept)) setTold(`Your time for “${held.task.query}” has ended: ${why}. What you had ticked is kept in this browser.`);
      }
      const of = shown.current.tree ?? shown.current.lease; // an answer may come before its tree is drawn
      if (shown.current.stay && of?.hypothesis_id && !elsewhere) {
        if ((await ask({ run: of.run_id, hypothesis: of.hypothesis_id }).catch(() => null)) !== null) return;
        const mine = asks.current;
        const now = await showTree(of.run_id, of.hypothesis_id);
        if (isGiven() || gone.current || asks.current !== mine) return;
        const grows = now?.nodes.some((node) => node.state === "pending" || (node.state === "decided" && node.accepted.some((one) => !one.leaf))) ?? false;
        if (grows || (now && isWhole(now))) {
          open(null);
          setGrows(grows);
          setWhole(!grows);
          return;
        }
      }
      if ((await ask({ queue: shown.current.queue })) === null) open(null);
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
    const stored = JSON.parse(localStorage.getItem(lastKey()) ?? "null") as Last | null;
    if (stored && stored.until > Date.now()) { setLast(stored); void lookAfter(); }
    if (!at) void begin();
    const ticking = setInterval(() => setNow(Date.now()), 500);
    const busyNow = (): void => { active.current = Date.now(); };
    addEventListener("pointerdown", busyNow);
    addEventListener("keydown", busyNow);
    let due: ReturnType<typeof setTimeout> | undefined;
    let counted = 0;
    // Whose tree or queue has changed looks at once; events of others, of which there may be many, are counted now and then.
    const stop = follow((event) => {
      const { lease: held, tree: drawn, last } = shown.current;
      if (last && (event.event === "connected" || event.task === last.lease.task.task_id)) void lookAfter();
      const mine = event.event === "connected" || drawn?.nodes.some((node) => node.task_id === event.task);
      const grows = drawn !== null && !drawn.finished && event.run === drawn.run_id && ["queued", "settled"].includes(event.event);
      if (Date.now() > counted) { counted = Date.now() + COUNT_MS; reloadQueues(); }
      if (due !== undefined || (held && !mine) || (!mine && !grows && !OPENS.includes(event.event))) return;
      due = setTimeout(() => {
        due = undefined;
        const { lease: held, tree: drawn } = shown.current;
        const asks = held ?? drawn;
        if (asks) void showTree(asks.run_id, asks.hypothesis_id, held);
        if (!held && !working.current && !shown.current.whole && !asked.current) void next();
      }, LOOK_MS);
    });
    return () => { gone.current = true; clearInterval(ticking); stop(); removeEventListener("pointerdown", busyNow); removeEventListener("keydown", busyNow); };
  }, []);

  // The task that was held before; the same one if its time has ended meanwhile and nobody else has taken it.
  async function begin(): Promise<void> {
    const held = heldLease();
    if (held && Date.parse(held.expires_at) > Date.now()) { open(held); return; }
    await next(false, held);
  }

  useEffect(() => {
    if (!lease || lease.given) return undefined;
    const isShown = (): boolean => shown.current.lease?.lease_id === lease.lease_id && !working.current;
    const renewing = setInterval(() => {
      if (Date.now() - active.current > ACTIVE_MS || !isShown()) return;
      call<{ expires_at: string }>("/api/renew", { lease: lease.lease_id })
        .then((renewed) => {
          if (!isShown()) return;
          setEnds(Date.parse(renewed.expires_at));
          if (heldLease()?.lease_id === lease.lease_id) localStorage.setItem(heldKey(), JSON.stringify({ ...lease, ...renewed }));
        })
        .catch((error: Error) => { if (isShown()) setTold(`${error.message} You may still submit; if others were faster, it is not counted.`); });
    }, Math.max(5000, (lease.remaining * 1000) / 3));
    return () => clearInterval(renewing);
  }, [lease]);

  function change(part: Partial<Draft>): void {
    touched.current = true;
    setCleared(null);
    setEmpty(false);
    setDraft((before) => ({ ...before, ...part }));
  }

  function say(premiseId: string, word: Word): void {
    const before = latest.current.draft;
    if (!before) return;
    const verdicts = { ...before.verdicts };
    const remarks = { ...before.remarks };
    delete remarks[premiseId];
    if (verdicts[premiseId] === word) delete verdicts[premiseId];
    else verdicts[premiseId] = word;
    change({ verdicts, remarks });
  }

  // A remark brings the verdict that it means: what is irrelevant is refused, of a bad fact nothing is learnt.
  function mark(premiseId: string, remark: Remark): void {
    const marked = latest.current.draft?.remarks[premiseId] === remark;
    const word: Word = remark === "irrelevant" ? "refuses" : "abstains";
    if (marked || latest.current.draft?.verdicts[premiseId] !== word) say(premiseId, word);
    if (!marked) change({ remarks: { ...latest.current.draft?.remarks, [premiseId]: remark } });
  }

  const setWay = (premiseId: string, way: number): void => change({ ways: { ...latest.current.draft?.ways, [premiseId]: way } });
  const grade = (premiseId: string, grade: number): void => change({ grades: { ...latest.current.draft?.grades, [premiseId]: grade } });

  // What a letter says of the framed candidate. The next one follows.
  function judge(does: (premiseId: string) => void): void {
    const { focus } = latest.current;
    const fold = folds[focus];
    if (!fold || working.current) return;
    does(fold.head.premise_id);
    frame(focus + 1);
  }

  // Draws the line below which nothing counts as read, or takes it away where it is drawn already.
  function line(index: number, drawn = false): void {
    const rank = folds[index]?.head.rank ?? 0;
    const here = latest.current.draft?.seenUpto === rank;
    if (lease && !(here && drawn)) change({ seenUpto: here ? emptyDraft(lease).seenUpto : rank });
  }

  function step(by: 1 | -1): void {
    const { focus } = latest.current;
    if (turn(document.querySelector(".focused"), by > 0)) return;
    const rank = folds[focus + by]?.head.rank ?? 0;
    if (latest.current.draft && rank > latest.current.draft.seenUpto && by > 0) change({ seenUpto: rank });
    frame(focus + by);
  }

  function add(hit: Hit): void {
    const additions = { ...latest.current.draft?.additions };
    if (additions[hit.id]) delete additions[hit.id];
    else additions[hit.id] = { text: hit.text, leaf: false };
    change({ additions });
  }

  function write(text: string, intermediate: boolean): void {
    const list = intermediate ? "intermediates" : "written";
    change({ [list]: [...(latest.current.draft?.[list] ?? []).filter((one) => one !== text), text] });
  }

  function clear(): void {
    const before = latest.current.draft;
    if (!lease || !before) return;
    change({ ...(cleared ?? draftOfAnswer(lease)), read: before.read });
    setCleared(cleared ? null : before);
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

  function submit(): void {
    const draft = latest.current.draft;
    if (!lease || !draft || (!touched.current && Date.now() - opened.current < ARMED_MS)) return;
    if (saysNothing(draft)) setEmpty(true);
    else void send();
  }

  const send = (why?: NodeVerdict): Promise<void> => {
    if (why) change({ nodeVerdict: why });
    return alone(async () => {
      if (!lease || !latest.current.draft) return;
      const draft = timed(latest.current.draft, spent.current);
      if (lease.given) { await amend(lease, draft); return; }
      const verdicts = sentVerdicts(draft, folds);
      const read = lease.task.candidates.filter((one) => verdicts[one.premise_id] !== "unseen");
      const body = {
        lease: lease.lease_id, verdicts, grades: sentGrades(draft), remarks: Object.fromEntries(Object.entries(draft.remarks).filter(([id]) => verdicts[id] !== "unseen")),
        in_sight_ms: sentSight(draft, lease.task.candidates.map((one) => one.premise_id)), seen_upto: Math.max(0, ...read.map((one) => one.rank)), note: draft.note,
        additions: Object.fromEntries(Object.entries(draft.additions).map(([id, one]) => [id, one.leaf ? "leaf" : "explains"])),
        written: draft.written, alternatives: sentWays(draft), intermediates: draft.intermediates, inference: draft.inference, node_verdict: draft.nodeVerdict,
        elapsed_s: draft.spentMs / 1000, seq: freshSeq(),
      };
      try {
        await call("/api/answer", body);
        localStorage.removeItem(lastKey()); // a reload before the next one is known: that of before is not the last
        const queue = queues.find((one) => one.runs.some((run) => run.run_id === lease.run_id));
        const until = Date.now() + (queue?.undo ?? 0) * 1000;
        dropDraft(lease);
        localStorage.setItem(metKey(), "yes");
        setMet(true);
        letGo(lease.lease_id);
        await next();
        setLast({ lease, draft, until, settled: false, unseen: unseen(draft, folds) }); // only now can it be taken back: see `alone`
        void lookAfter();
      } catch (error) {
        const over = error instanceof Problem && OVER.includes(error.reason);
        if (!over) throw error;
        setTold(error.message);
        letGo(lease.lease_id);
        await next();
      }
    });
  };

  // Sends what has changed of an answer, and goes back to the task that is held. Reading alone changes nothing.
  async function amend(of: Lease, draft: Draft): Promise<void> {
    const changed = changesOf(of, { ...draft, read: draftOfAnswer(of).read }, folds) && changesOf(of, draft, folds);
    if (typeof changed === "string") { setTold(changed); return; }
    if (changed) await call("/api/amend", { run: of.run_id, answer: of.lease_id, ...changed, request: fresh() });
    dropDraft(of);
    await leaveGiven();
    setDone(changed ? "Changed. Pairs and exports follow, and the tree grows below what is accepted now; what was judged stays." : "Nothing was changed.");
  }

  function closeAnswers(): void {
    setReopening(null);
    if (asked.current) void begin();
    asked.current = false;
  }

  // An answer that was given is judged as any task. What is held meanwhile stays held as long as its lease.
  function openGiven(run: string, judged: JudgedTask, answer: Answer): void {
    if (working.current) return;
    const index = judged.task.candidates.findIndex((one) => one.premise_id === reopening?.premise);
    setReopening(null);
    asked.current = false;
    opened.current = Date.now();
    open(leaseOfAnswer(run, judged, answer));
    setFocus(Math.max(0, index));
  }

  const undo = (): Promise<void> => alone(async () => {
    const known = JSON.parse(localStorage.getItem(lastKey()) ?? "null") as Last | null; // of all tabs
    if (!last || known?.lease.lease_id !== last.lease.lease_id) { setTold("There is nothing to undo any more. Your answers can be changed: o."); return; }
    await call("/api/undo", { run: last.lease.run_id, request: fresh() });
    saveDraft(last.lease, last.draft);
    setLast(null);
    await giveBack(lease?.given ? heldLease() : lease, "undo");
    if ((await ask({ run: last.lease.run_id, task: last.lease.task.task_id }, () => last.draft)) !== null) return;
    setTold("Taken back; somebody else has that task now.");
    await next();
  });

  const help = (): void => setGuideline(true);

  function reopen(): void {
    if (practice) { practice.show(""); return; }
    const run = lease?.run_id ?? last?.lease.run_id ?? tree?.run_id ?? "";
    setReopening((before) => (before === null ? { run, task: "" } : null));
  }

  // A node of the tree that was clicked: the next to work on where it is free, else its answer.
  const openNode = ({ task_id: task, state }: TreeNode, premise?: string): Promise<void> => alone(async () => {
    if (!tree) return;
    const held = lease?.given ? heldLease() : lease;
    const found = state === "waiting" ? await ask({ run: tree.run_id, task }) : null;
    if (found) await giveBack(held, "another node");
    else if (found === null && practice) practice.show(task);
    else if (found === null) setReopening({ run: tree.run_id, task, premise });
  });

  async function goOn(): Promise<void> {
    if (!last || last.settled) return;
    if (last.node && last.node.state !== "decided") { setTold(`The run cannot go on with it yet. ${became(last)}`); return; }
    try {
      await call("/api/settle", { run: last.lease.run_id, task: last.lease.task.task_id, request: fresh() });
      const now = shown.current.last;
      if (now?.lease.lease_id === last.lease.lease_id) setLast({ ...now, settled: true });
    } catch (error) {
      setTold((error as Error).message);
    }
  }

  const skip = (): Promise<void> => alone(async () => {
    if (practice && !lease) { practice.leave(); return; }
    if (lease?.given) { await leaveGiven(); return; }
    if (lease) {
      await call("/api/release", { lease: lease.lease_id, reason: "skipped" }).catch((error: Error) => setTold(error.message)); // it is over in any case
      letGo(lease.lease_id);
    }
    await next(true);
  });

  // Before the next key can come: what is drawn is what keys act upon.
  useLayoutEffect(() => {
    function pressed(event: KeyboardEvent): void {
      const open = reopening !== null ? "o" : guideline ? "?" : document.querySelector("dialog[open]") ? "Escape" : "";
      if (open && !["Escape", open].includes(event.key)) return; // keys are for what is in sight, not for the task behind it
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); if (!event.repeat) submit(); return; }
      if (typed.current !== null && event.key.length === 1) { event.preventDefault(); typed.current += event.key; return; }
      const typing = event.target instanceof HTMLElement && event.target.matches("input:not([type=checkbox]), textarea, select");
      if (event.key === "Escape") { typed.current = null; setSearching(false); setGuideline(false); setEmpty(false); if (reopening) closeAnswers(); (event.target as HTMLElement).blur?.(); return; }
      const heldDown = event.repeat && !event.key.startsWith("Arrow");
      if (event.key.length === 1 && !letters) return;
      if (typing || heldDown || event.ctrlKey || event.metaKey || event.altKey) return;
      const { focus } = latest.current;
      const said = (word: Word) => (): void => judge((id) => say(id, word));
      const marked = (remark: Remark) => (): void => judge((id) => mark(id, remark));
      const does: Record<string, () => unknown> = {
        ArrowDown: () => step(1), ArrowUp: () => step(-1), a: said("explains"), l: said("leaf"), r: said("refuses"), x: said("abstains"), i: marked("irrelevant"), b: marked("bad_fact"), s: () => { line(focus); frame(focus); },
        "/": () => { if (lease) { typed.current = searching ? null : ""; setSearching(true); } }, n: () => document.getElementById("note")?.focus(), e: () => alone(rerank), u: undo, o: reopen, g: goOn, k: skip, "?": guideline ? () => setGuideline(false) : help,
      };
      const page = Math.floor(focus / 9) * 9;
      const digit = /^[1-9]$/.test(event.key) ? folds[page + Number(event.key) - 1] : undefined;
      if (digit) { event.preventDefault(); say(digit.head.premise_id, "explains"); frame(page + Number(event.key) - 1); }
      else if (does[event.key]) { event.preventDefault(); void does[event.key]!(); }
    }
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  });

  const queue = queues.find((one) => one.runs.some((run) => run.run_id === lease?.run_id)) ?? queues[0];
  const drawn = lease ? tree?.nodes.find((one) => (lease.node_id ? one.node_id === lease.node_id : one.task_id !== "" && one.task_id === lease.task.task_id)) : undefined;
  const current = lease ? lease.node_id || (drawn?.node_id ?? `${lease.task.path.length}`) : "";
  const growing = lease && draft ? [
    ...lease.task.candidates.filter((one) => accepts(draft, one.premise_id)).map((one) => ({ text: one.text, leaf: draft.verdicts[one.premise_id] === "leaf" })),
    ...Object.values(draft.additions),
    ...draft.intermediates.map((text) => ({ text, leaf: false })),
  ].filter(({ text }) => !drawn?.accepted.some((one) => one.text === text)) : [];
  const otherwise = useMemo(() => (lease?.given ? decidedOtherwise(lease.given, lease.given.answer) : {}), [lease]);
  const after = done ? <p class="last" role="status">{done}</p> : last && !practice && <After last={last} now={now} busy={busy} undo={undo} goOn={goOn} />;
  const message = told && <p class="problem" role="alert">{told} <button type="button" class="plain" onClick={() => setTold("")}>Dismiss</button></p>;
  return (
    <div class="annotate">
      <Side tree={tree} whole={whole} current={current} growing={growing} queues={queues} queue={queue} from={from} stay={stay} showScores={showScores} practises={practice !== undefined}
        open={openNode} chooseQueue={chooseQueue} setStay={chooseStay} setShowScores={setShowScores} reopen={reopen} />
      <section class="work" aria-label="Task">
        {queue && !practice && queue.qualification.answered < queue.qualification.items && <p class="last" role="status">You qualify for {queue.name}: {queue.qualification.answered} of {queue.qualification.items} tasks answered. What you get first was judged before; afterwards you get the open ones.</p>}
        {!met && lease && <p class="last">New here? <button type="button" onClick={help}>Read the guideline first <kbd>?</kbd></button> {!practice && <a href="/?practice">Practise on a tree whose answer is known</a>} <span>A number accepts its sentence. A click on a sentence frames it, and what stands below is said of that one.</span></p>}
        {reopening !== null && <Reopen at={reopening.run} task={reopening.task} all={role !== "annotator"} open={openGiven} close={closeAnswers} />}
        {guideline && <Guideline text={queue?.guideline ?? ""} newer={newer !== ""} letters={letters} setLetters={(on) => { setLettersOn(on); setLetters(on); }} close={() => setGuideline(false)} />}
        {!lease || !draft ? whole && tree ? <>{after}{message}<Whole tree={tree} busy={busy} open={openNode} next={skip} /></> : <>{after}{message}<p class="idle" role="status">{grows ? <>This tree grows as soon as your answer is final. <button type="button" onClick={skip}>Another tree meanwhile <kbd>k</kbd></button></> : "Nothing waits for you at the moment. New tasks appear here by themselves."}</p></> : <>
          {lease.given && <p class="last changing">You are changing {lease.given.answer.annotator === me ? "your" : `${lease.given.answer.annotator}'s`} answer of {moment(lease.given.answer.at)}. It stands until you save the change.</p>}
          {lease.task.path.length > 0 && <ol class="path" aria-label="Path from the hypothesis">{lease.task.path.map((text, n) => <li key={n}>{text}</li>)}</ol>}
          <h1 ref={top} tabIndex={-1}><span class="ask">Which of these explain</span> {lease.task.query}</h1>
          {lease.task.accepted.length > 0 && <ul class="already" aria-label="Accepted before">{lease.task.accepted.map((one) => <li key={one.premise_id}>{one.text}</li>)}</ul>}
          <div inert={busy}>
            <Added draft={draft} before={lease.given ? draftOfAnswer(lease) : null} several={several} maxGrade={queue?.max_grade ?? 0} otherwise={otherwise} change={change} grade={grade} setWay={setWay} />
            <Candidates key={lease.lease_id} lease={lease} draft={draft} folds={folds} focus={focus} keyed={keyed} moved={moved} showScores={showScores} several={several} maxGrade={queue?.max_grade ?? 0} otherwise={otherwise} grade={grade} setWay={setWay} tick={(index) => { setFocus(index); say(folds[index]!.head.premise_id, "explains"); }} look={setFocus} line={line} />
            <div class="node">
              <label>This node is
                <select value={draft.nodeVerdict} onChange={(event) => change({ nodeVerdict: event.currentTarget.value as NodeVerdict })}>
                  <option value="">not said</option><option value="complete">explained completely</option>
                  <option value="premise_missing">lacking a premise</option><option value="not_explainable">not explainable</option>
                </select>
              </label>
              {acceptedIn(draft).length > 1 && <label class="check"><input type="checkbox" checked={several} onChange={(event) => { setSeveral(event.currentTarget.checked); if (!event.currentTarget.checked) change({ ways: {} }); }} /> there are several ways to explain it</label>}
              <label class="grow">Because <input id="inference" value={draft.inference} maxLength={1024} placeholder="… how the query follows, in your words" onInput={(event) => change({ inference: event.currentTarget.value })} /></label>
              <label class="grow">Note <input id="note" value={draft.note} maxLength={1024} onInput={(event) => change({ note: event.currentTarget.value })} /></label>
            </div>
          </div>
          <Bar draft={draft} folds={folds} focus={focus} busy={busy} over={ends <= now} asking={empty} cleared={cleared !== null} given={lease.given !== undefined} told={<>{after}{newer && <p class="last" role="status">A newer encoder was published. <button type="button" disabled={busy} onClick={() => alone(rerank)}>Re-rank with the new encoder <kbd>e</kbd></button></p>}{message}</>}
            search={searching && <Search key={lease.lease_id} typed={typed} lease={lease} draft={draft} add={add} write={write} close={() => setSearching(false)} />}
            judge={(word) => judge((id) => say(id, word))} mark={(remark) => judge((id) => mark(id, remark))} submit={submit} send={(why) => void send(why)} back={() => setEmpty(false)}
            find={() => setSearching(true)} skip={skip} clear={clear} help={help} />
        </>}
      </section>
    </div>
  );
}
