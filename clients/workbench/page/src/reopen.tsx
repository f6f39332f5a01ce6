// A person's answers in a run, to open one again: what is changed amends the answer, the rest stays as it was judged.
import { useEffect, useState } from "preact/hooks";
import { Sheet } from "./guideline";
import { runName, SAID, SAYS } from "./words";
import { call, fresh, useLatest, type JudgedTask, type QueuedRun, type Answer, type Verdict, type Word } from "./api";

const WORDS: Word[] = ["explains", "leaf", "refuses", "abstains"];

interface Given { task: JudgedTask; answer: Answer }

// An adjudicator sees the answers of all (`all`), everybody else their own: at first those in the run `at`, or the latest.
// That to `task` is open, where it is among them.
export function Reopen({ at, task: asked, all, close }: { at: string; task: string; all: boolean; close: () => void }) {
  const [run, setRun] = useState(at);
  const [runs, setRuns] = useState<QueuedRun[]>([]);
  const [given, setGiven] = useState<Given[]>([]);
  const [opened, setOpened] = useState("");
  const [told, setTold] = useState("");
  const look = useLatest();

  async function load(): Promise<void> {
    if (!run) return;
    const draw = (tasks: JudgedTask[]): void => {
      const given = tasks.flatMap((task) => task.answers.map((answer) => ({ task, answer })));
      setGiven(given);
      if (!asked || run !== at) return;
      const mine = given.find(({ task }) => task.task.task_id === asked);
      if (mine) setOpened((before) => before || mine.answer.answer_id);
      else setTold(all ? "Nobody's answer to that node is among the latest 200." : "You have not answered that node: others judge it.");
    };
    await look(call<JudgedTask[]>(`/api/runs/${encodeURIComponent(run)}/answers`), draw, (error) => setTold(error.message));
  }
  useEffect(() => { setGiven([]); void load(); }, [run]);
  useEffect(() => {
    call<QueuedRun[]>("/api/runs").then((found) => { setRuns(found); setRun((before) => before || (found[0]?.run_id ?? "")); }).catch((error: Error) => setTold(error.message));
  }, []);

  async function amend(answer: Answer, verdicts: Record<string, Word>, intermediates: string[]): Promise<void> {
    try {
      await call("/api/amend", { run, answer: answer.answer_id, verdicts, intermediates, request: fresh() });
      setOpened("");
      setTold("Changed. Pairs and exports follow, and the tree grows below what is accepted now; what was judged stays.");
      await load();
    } catch (error) {
      setTold((error as Error).message);
    }
  }

  return (
    <Sheet name={all ? "All answers" : "Your answers"} close={close}>
      <section class="reopen" aria-label="Answers">
      {runs.length > 1 && <label>Run <select value={run} onChange={(event) => setRun(event.currentTarget.value)}>{runs.map((one) => <option key={one.run_id} value={one.run_id}>{runName(one)}, {one.state}</option>)}</select></label>}
      {told && <p role="status">{told}</p>}
      {given.length === 0 && <p class="quiet">There are none in this run yet.</p>}
      <ul>
        {given.map(({ task, answer }) => (
          <li key={answer.answer_id}>
            {task.task.query} {all && <span class="quiet">{answer.annotator}</span>}{" "}
            <button type="button" aria-expanded={opened === answer.answer_id} onClick={() => setOpened(opened === answer.answer_id ? "" : answer.answer_id)}>Reopen</button>
            {opened === answer.answer_id && <Verdicts task={task} answer={answer} save={(verdicts, intermediates) => amend(answer, verdicts, intermediates)} />}
          </li>
        ))}
      </ul>
      </section>
    </Sheet>
  );
}

// What was decided otherwise, and by whom: an answer's author hears of it here.
function Decided({ task, verdict }: { task: JudgedTask; verdict: Verdict }) {
  const { verdicts, annotator } = task.decision;
  const found = verdicts.find((one) => one.premise_id === verdict.premise_id);
  if (task.conflicts.includes(verdict.premise_id)) return <span class="chip">disputed</span>;
  if (!found || found.judgement === verdict.judgement) return null;
  return <span class="chip">decided: {SAID[found.judgement] ?? found.judgement}, by {annotator || "the others"}</span>;
}

function Verdicts({ task, answer, save }: Given & { save: (verdicts: Record<string, Word>, intermediates: string[]) => void }) {
  const [changed, setChanged] = useState<Record<string, Word>>({});
  const [conclusion, setConclusion] = useState("");
  const intermediates = [conclusion.trim()].filter(Boolean);
  const texts = new Map([...task.task.candidates, ...answer.additions].map((one) => [one.premise_id, one.text]));
  const judged: Record<string, Word> = { does_not_explain: "refuses", abstain: "abstains" };
  return <>
    <ul>
      {[...answer.verdicts, ...answer.additions].map((verdict) => {
        const before = verdict.judgement === "explains" ? (verdict.leaf ? "leaf" : "explains") : judged[verdict.judgement];
        const said = changed[verdict.premise_id] ?? before;
        return (
          <li key={verdict.premise_id}>
            <span class="said" role="group" aria-label={`Verdict on ${texts.get(verdict.premise_id) ?? verdict.premise_id}`}>
              {WORDS.map((word) => <button type="button" key={word} class={word} aria-pressed={said === word} onClick={() => setChanged({ ...changed, [verdict.premise_id]: word })}>{SAYS[word]}</button>)}
            </span> {texts.get(verdict.premise_id)} <Decided task={task} verdict={verdict} />
          </li>
        );
      })}
    </ul>
    {answer.intermediates.map((text) => <p key={text}>Intermediate conclusion: {text}</p>)}
    <p><label>Add an intermediate conclusion <input value={conclusion} maxLength={1024} onInput={(event) => setConclusion(event.currentTarget.value)} /></label></p>
    <button type="button" class="primary" disabled={Object.keys(changed).length + intermediates.length === 0} onClick={() => save(changed, intermediates)}>Save the change</button>
  </>;
}
