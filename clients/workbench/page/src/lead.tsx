// What a team lead looks at: queues, conflicts side by side, agreement, trees to download.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { call, follow, fresh, lettersOn, useLatest, type Agreement, type Change, type Control, type Counts, type Dispute, type History, type Queue, type QueuedRun, type Answer, type Upheld, type Word } from "./api";
import { Progress } from "./progress";
import { nodeLink, runName, SAID, SAYS } from "./words";

const COLUMNS: [keyof Counts, string][] = [
  ["tasks", "Tasks"], ["waiting", "Wait"], ["leased", "In work"], ["decided", "Decided"], ["conflicts", "Disputed"], ["settled", "Done"], ["answers_hour", "Answers an hour"],
];
const COUNT_MS = 2000; // after an event, so that several make one look
const FIGURES_MS = 10_000; // agreement takes the sampler seconds
const DISPUTES = ["conflict", "adjudicated", "closed", "amended", "undone", "lowered"]; // events after which other tasks are disputed
const DONE: Record<string, string> = { amended: "changed an answer", undone: "took an answer back", adjudicated: "decided", released: "gave it back", lowered: "asked fewer people", hastened: "let it go on", withdrawn: "retrieved again" }; // other kinds say it themselves
const FILES: [string, string][] = [["trees", "trees"], ["pairs", "pairs"], ["triplets", "triplets"], ["beir", "BEIR, TREC"]];

const KEYS: Record<string, Word> = { a: "explains", l: "leaf", r: "refuses", x: "abstains" };
const ROWS = "tr[data-premise]"; // what keys decide

type Said = Record<string, Word>;
interface Props { queues: Queue[]; known: QueuedRun[]; reloadQueues: () => Promise<void>; reloadRuns: () => Promise<void> }

// The runs of all queues with their disputes: live ones, then those that have ended.
export function runsOf(queues: Queue[], known: QueuedRun[]): { run_id: string; conflicts: number }[] {
  const live = queues.flatMap((queue) => queue.runs);
  return [...live, ...known.filter((one) => !live.some(({ run_id }) => run_id === one.run_id))];
}

const keyOf = ({ run_id, judged }: Dispute): string => `${run_id} ${judged.task.task_id}`;

export function Lead({ queues, known, reloadQueues, reloadRuns }: Props) {
  const runs = runsOf(queues, known);
  const live = queues.flatMap((queue) => queue.runs.map((run) => run.run_id));
  const ended = known.filter((one) => !live.includes(one.run_id));
  const nameOf = (id: string): string => { const one = known.find((run) => run.run_id === id); return one ? runName(one) : id; };
  const [run, setRun] = useState("");
  const [disputes, setDisputes] = useState<Dispute[] | null>(null);
  const [said, setSaid] = useState<Record<string, Said>>({}); // of each dispute, until it is decided
  const [last, setLast] = useState<{ dispute: Dispute; verdicts: Said } | null>(null); // what was decided last
  const [again, setAgain] = useState<Dispute | null>(null); // it is being decided again
  const [agreed, setAgreed] = useState<Agreement | null>(null);
  const [upheld, setUpheld] = useState<Upheld>({});
  const [history, setHistory] = useState<History | null>(null);
  const [told, setTold] = useState("");
  const chosen = useRef("");
  const busy = useRef(false);
  const latest = useLatest();
  const shown = disputes && [...(again ? [again] : []), ...disputes.filter((one) => !again || keyOf(one) !== keyOf(again))];

  const failed = (error: Error): void => setTold(error.message);
  // What is told of a run is dropped when another one was chosen meanwhile.
  const of = <T,>(run: string, what: string, draw: (found: T) => void): Promise<void> =>
    call<T>(`/api/runs/${encodeURIComponent(run)}/${what}`).then((found) => { if (chosen.current === run) draw(found); })
      .catch((error: Error) => { if (chosen.current === run) failed(error); });
  const loadDisputes = async (): Promise<void> => {
    await latest(call<Dispute[]>("/api/disputes"), setDisputes, failed);
    await reloadRuns().catch(failed);
  };
  const loadFigures = async (): Promise<void> => {
    const run = chosen.current;
    await of<History>(run, "changes", setHistory);
    await of<Agreement>(run, "agreement", setAgreed);
  };
  const loadUpheld = (): Promise<void> => of<Upheld>(chosen.current, "upheld", setUpheld); // it reads all tasks: not at each event
  useEffect(() => { reloadRuns().catch(failed); }, [live.join()]);
  useEffect(() => { // at first the run that needs a decision most
    const most = runs.reduce((most, one) => (one.conflicts > most.conflicts ? one : most), runs[0]!);
    if (!run && queues.length > 0 && most) setRun(most.run_id);
  }, [queues, known]);
  useEffect(() => {
    const looks = { counts: paced(reloadQueues, COUNT_MS), disputes: paced(loadDisputes, COUNT_MS), figures: paced(loadFigures, FIGURES_MS) };
    void loadDisputes();
    const stop = follow((event) => {
      looks.counts.ask();
      if (event.run === chosen.current) looks.figures.ask();
      if (event.event === "connected" || DISPUTES.includes(event.event)) looks.disputes.ask();
    });
    return () => { stop(); Object.values(looks).forEach((look) => look.stop()); };
  }, []);
  useEffect(() => {
    if (chosen.current) setTold(""); // what is told before a run is chosen is not of another run
    chosen.current = run;
    setAgreed(null);
    setUpheld({});
    setHistory(null);
    if (run) { void loadFigures(); void loadUpheld(); }
  }, [run]);

  const say = (dispute: Dispute, id: string, word: Word): void => {
    const key = keyOf(dispute);
    setSaid((before) => ({ ...before, [key]: { ...before[key], [id]: word } }));
  };

  async function decide(dispute: Dispute): Promise<void> {
    const { run_id, judged: { task, conflicts } } = dispute;
    const words = said[keyOf(dispute)] ?? {};
    const verdicts = Object.fromEntries(conflicts.flatMap((id) => (words[id] ? [[id, words[id]]] : []))); // what is no longer disputed stays
    if (busy.current || conflicts.some((id) => !verdicts[id])) return;
    busy.current = true;
    setTold("");
    try {
      await call("/api/adjudicate", { run: run_id, task: task.task_id, verdicts, request: fresh() });
      setLast({ dispute, verdicts });
      setSaid(({ [keyOf(dispute)]: _, ...rest }) => rest);
      setAgain(null);
    } catch (error) {
      failed(error as Error);
    }
    busy.current = false;
    void reloadQueues();
    await loadDisputes();
    if (run_id === chosen.current) { await loadUpheld(); await loadFigures(); }
  }

  function decideAgain(): void {
    if (!last) return;
    setSaid({ ...said, [keyOf(last.dispute)]: last.verdicts });
    setAgain(last.dispute);
    setLast(null);
  }

  // Keys are for the row that has the focus; without one, the first row gets it.
  useLayoutEffect(() => {
    function pressed(event: KeyboardEvent): void {
      const at = event.target as HTMLElement;
      if (at.matches("input, textarea, select") || event.altKey || (event.repeat && !event.key.startsWith("Arrow"))) return;
      const rows = [...document.querySelectorAll<HTMLElement>(ROWS)];
      const row = rows.indexOf(at.closest<HTMLElement>(ROWS)!);
      const dispute = shown?.find((one) => keyOf(one) === rows[row]?.dataset["dispute"]);
      const word = KEYS[event.key];
      if (event.ctrlKey || event.metaKey) {
        if (event.key === "Enter" && dispute) void decide(dispute);
      } else if (event.key === "ArrowDown" || event.key === "ArrowUp" || (word && lettersOn())) {
        if (rows.length === 0) return;
        event.preventDefault();
        if (word && dispute) say(dispute, rows[row]!.dataset["premise"]!, word);
        const next = word && !dispute ? 0 : row + (event.key === "ArrowUp" ? -1 : 1);
        rows[Math.max(0, Math.min(next, rows.length - 1))]!.focus();
      } else if (event.key === "u" && lettersOn()) decideAgain();
    }
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  });

  return (
    <div class="wide">
      {told && <p class="problem" role="alert">{told} <button type="button" class="plain" onClick={() => setTold("")}>Dismiss</button></p>}
      <h1>Disputed</h1>
      <p role="status">{last && <>Decided: “{last.dispute.judged.task.query}”. Those who answered read it in their answers. <button type="button" onClick={decideAgain}>Decide again <kbd>u</kbd></button></>}</p>
      {!shown && <p class="quiet">Reading …</p>}
      {shown?.length === 0 && <p class="quiet">Nobody disagrees.</p>}
      {shown && shown.length > 0 && <p class="quiet"><kbd>↑ ↓</kbd> a row {lettersOn() && <>· <kbd>a l r x</kbd> accept, leaf, refuse, abstain </>}· <kbd>Ctrl ↵</kbd> decide</p>}
      {shown?.map((one) => <Conflict key={keyOf(one)} dispute={one} run={nameOf(one.run_id)} verdicts={said[keyOf(one)] ?? {}} stands={one === again} say={(id, word) => say(one, id, word)} decide={() => decide(one)} leave={() => setAgain(null)} />)}
      <h2>Queues</h2>
      <div class="tables" tabIndex={0} role="region" aria-label="Queues"><table>
        <thead><tr><th scope="col">Queue</th><th scope="col">Run</th>{COLUMNS.map(([, name]) => <th scope="col" key={name} class="figure">{name}</th>)}<th scope="col">Files</th></tr></thead>
        <tbody>
          {queues.flatMap((queue) => queue.runs.map((counts) => (
            <tr key={counts.run_id}>
              <td>{queue.name}</td><td title={counts.run_id}>{nameOf(counts.run_id)}</td>
              {COLUMNS.map(([column]) => <td key={column} class="figure">{counts[column]}</td>)}
              <td class="files"><Files run={counts.run_id} /></td>
            </tr>
          )))}
          {ended.map((one) => (
            <tr key={one.run_id}>
              <td>{one.queue}</td><td title={one.run_id}>{runName(one)}</td><td colSpan={COLUMNS.length} class="quiet">{one.state}{one.conflicts > 0 && `, ${one.conflicts} disputed`}</td><td class="files"><Files run={one.run_id} /></td>
            </tr>
          ))}
          {runs.length === 0 && <tr><td colSpan={10} class="quiet">No run waits for people. Start one: aeenc sample CORPUS --oracle QUEUE</td></tr>}
        </tbody>
      </table></div>
      {run && <>
        <label>Run <select value={run} onChange={(event) => setRun(event.currentTarget.value)}>{runs.map((one) => <option key={one.run_id} value={one.run_id}>{nameOf(one.run_id)}</option>)}</select></label>
        <h2>Progress</h2>
        {history && <Progress counts={queues.flatMap((queue) => queue.runs).find((one) => one.run_id === run)} answers={history.answers} />}
        <h2>Agreement</h2>
        {!agreed && <p class="quiet">Reading …</p>}
        {agreed && <Figures agreed={agreed} upheld={upheld} />}
        {agreed && agreed.controls.length > 0 && <Controls controls={agreed.controls} />}
        <h2>What was done</h2>
        {history && <Trail run={run} changes={history.latest} />}
      </>}
    </div>
  );
}

// Does something a while after it was asked for, once for all that ask meanwhile, and never twice at a time.
function paced(does: () => Promise<unknown>, pauseMs: number): { ask: () => void; stop: () => void } {
  let due: ReturnType<typeof setTimeout> | undefined; // until it is done
  let again = false;
  const go = async (): Promise<void> => {
    again = false;
    await does();
    due = undefined;
    if (again) ask();
  };
  const ask = (): void => { if (due) again = true; else due = setTimeout(() => void go(), pauseMs); };
  return { ask, stop: () => { again = false; clearTimeout(due); } };
}

function Files({ run }: { run: string }) {
  return <>{FILES.map(([form, name]) => <a key={form} href={`/api/runs/${encodeURIComponent(run)}/download/${form}`} download>{name}</a>)}</>;
}

interface ConflictProps { dispute: Dispute; run: string; verdicts: Said; stands: boolean; say: (id: string, word: Word) => void; decide: () => void; leave: () => void }

function Conflict({ dispute, run, verdicts, stands, say, decide, leave }: ConflictProps) {
  const task = dispute.judged;
  const texts = new Map([...task.task.candidates, ...task.answers.flatMap((one) => one.additions)].map((one) => [one.premise_id, one.text]));
  const missing = task.conflicts.filter((id) => !verdicts[id]).length;
  const said = (answer: Answer, id: string): string => {
    const given = [...answer.verdicts, ...answer.additions].find((one) => one.premise_id === id);
    const word = given?.leaf && given.judgement === "explains" ? "leaf" : given?.judgement ?? "unseen";
    return [SAID[word] ?? word, given?.remark && SAID[given.remark], given?.grade && `grade ${given.grade}`].filter(Boolean).join(", ");
  };
  const agreed = [...texts.keys()].filter((id) => !task.conflicts.includes(id) && task.answers.some((one) => ["accepted", "leaf"].includes(said(one, id).split(",")[0]!)));
  return (
    <section class="panel conflict" aria-label={`Disputed: ${task.task.query}`}>
      <p class="quiet">{run}{task.question && <> · Question: {task.question}{task.question_answer && <> Answer: {task.question_answer}</>}</>}</p>
      {task.task.path.length > 0 && <ol class="path" aria-label="Path from the hypothesis">{task.task.path.map((text, n) => <li key={n}>{text}</li>)}</ol>}
      <h2><a href={nodeLink(dispute.run_id, task.task.task_id)} title="The answers, each with its tree">{task.task.query}</a></h2>
      {agreed.length > 0 && <p><span class="quiet">Accepted by agreement:</span> {agreed.map((id) => texts.get(id)).join("; ")}</p>}
      {task.answers.map((one) => (one.inference || one.note) && <p key={one.answer_id}><span class="quiet">{one.annotator}:</span> {one.inference && `because ${one.inference}`} {one.note && <small>{one.note}</small>}</p>)}
      <div class="tables" tabIndex={0} role="region" aria-label="Candidates"><table>
        <thead><tr><th scope="col">Candidate</th>{task.answers.map((one) => <th scope="col" key={one.answer_id}>{one.annotator}</th>)}<th scope="col">Decision</th></tr></thead>
        <tbody>{task.conflicts.map((id) => (
          <tr key={id} tabIndex={-1} data-premise={id} data-dispute={keyOf(dispute)}>
            <td>{texts.get(id)}</td>
            {task.answers.map((one) => <td key={one.answer_id}>{said(one, id)}</td>)}
            <td><span class="said" role="group" aria-label={`Decision on ${texts.get(id) ?? id}`}>
              {(Object.keys(SAYS) as Word[]).map((word) => <button type="button" key={word} class={word} aria-pressed={verdicts[id] === word} onClick={() => say(id, word)}>{SAYS[word]}</button>)}
            </span></td>
          </tr>
        ))}</tbody>
      </table></div>
      <button type="button" class="primary" disabled={missing > 0} onClick={decide}>Decide{missing > 0 ? ` (${missing} left)` : ""}</button>
      {stands && <> <button type="button" onClick={leave}>Leave it</button> <span class="quiet">What you have decided stands until you decide again.</span></>}
    </section>
  );
}

function Figures({ agreed, upheld }: { agreed: Agreement; upheld: Upheld }) {
  const figure = (value: number | null): string => (value === null ? "undefined" : value.toFixed(3));
  return <>
    <p>Positive agreement {figure(agreed.positive_agreement)}, F1 of edges {figure(agreed.edge_f1)}.</p>
    <p>Cohen's kappa {figure(agreed.cohen_kappa)}, Fleiss' kappa {figure(agreed.fleiss_kappa)}, Krippendorff's alpha {figure(agreed.krippendorff_alpha)}, over {agreed.candidates} candidates. Where nearly all is refused, these mislead: read the disputes, too.</p>
    <Reports reports={agreed.reports} upheld={upheld} />
  </>;
}

// Who works how: those first who agree least with somebody.
function Reports({ reports, upheld }: { reports: Agreement["reports"]; upheld: Upheld }) {
  const rows = reports.map((one) => ({
    ...one,
    others: one.positive_agreement.flatMap((share, n) => (share === null ? [] : [{ name: reports[n]!.annotator, share }])).sort((first, second) => first.share - second.share),
  })).sort((first, second) => (first.others[0]?.share ?? 2) - (second.others[0]?.share ?? 2));
  const percent = (share: number | null): string => (share === null ? "" : `${Math.round(share * 100)} %`);
  return (
    <div class="tables" tabIndex={0} role="region" aria-label="People"><table>
      <thead><tr>
        <th scope="col">Person</th>{["Answers", "Last hour", "Late", "Controls right", "Seconds, median"].map((name) => <th scope="col" key={name} class="figure">{name}</th>)}
        <th scope="col" class="figure" title="Of the candidates that they have accepted or refused">Refused</th>
        <th scope="col" class="figure" title="Of what they have accepted or refused and an adjudicator has decided">Decided as they said</th>
        <th scope="col" title="Positive agreement: of all that one of the two has accepted, how much both have">Agrees with</th>
      </tr></thead>
      <tbody>{rows.map((one) => (
        <tr key={one.annotator}>
          <td>{one.annotator}</td><td class="figure">{one.answers}</td><td class="figure">{one.answers_hour}</td><td class="figure">{one.late}</td>
          <td class="figure">{one.control_verdicts > 0 && `${one.control_correct} of ${one.control_verdicts}`}</td>
          <td class="figure">{one.median_elapsed.toFixed(1)}</td><td class="figure">{percent(one.refused_share)}</td>
          <td class="figure">{upheld[one.annotator]?.join(" of ")}</td>
          <td>{one.others.map(({ name, share }) => `${name} ${percent(share)}`).join(", ")}</td>
        </tr>
      ))}</tbody>
    </table></div>
  );
}

// What is known, and what people said instead, the item with the most mistakes first.
function Controls({ controls }: { controls: Control[] }) {
  return <>
    <h2>Control items</h2>
    <div class="tables" tabIndex={0} role="region" aria-label="Control items"><table>
      <thead><tr><th scope="col">Query</th><th scope="col" class="figure">Answers</th><th scope="col" class="figure">Right</th><th scope="col">Mistakes</th></tr></thead>
      <tbody>{controls.map((one) => (
        <tr key={one.query}>
          <td>{one.query}</td><td class="figure">{one.answers}</td><td class="figure">{one.correct} of {one.verdicts}</td>
          <td>{one.mistakes.map((wrong) => <div key={wrong.right.text}>{wrong.right.text} <small>{wrong.right.leaf ? SAID["leaf"] : SAID[wrong.right.judgement] ?? wrong.right.judgement}; otherwise said: {wrong.people}</small></div>)}</td>
        </tr>
      ))}</tbody>
    </table></div>
  </>;
}

// The audit trail, the latest first.
function Trail({ run, changes }: { run: string; changes: Change[] }) {
  if (changes.length === 0) return <p class="quiet">Nothing yet.</p>;
  return (
    <div class="scrolled" tabIndex={0} role="region" aria-label="Changes, the latest first">
      <table>
        <thead><tr><th scope="col">When</th><th scope="col">Who</th><th scope="col">What</th><th scope="col">Sentence</th><th scope="col">Said</th></tr></thead>
        <tbody>{changes.map((one) => (
          <tr key={one.seq}>
            <td><time dateTime={one.at}>{new Date(one.at).toLocaleString()}</time></td><td>{one.person}</td><td>{DONE[one.kind] ?? one.kind}</td><td title={one.task_id}><a href={nodeLink(run, one.task_id)}>{one.query}</a></td>
            <td title={one.model_version}>{one.reason || one.answer?.note || (one.model_version && "by a newer encoder") || (one.overlap ? `overlap ${one.overlap}` : "")}</td>
          </tr>
        ))}</tbody>
      </table>
    </div>
  );
}
