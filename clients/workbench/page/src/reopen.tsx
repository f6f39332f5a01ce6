// A person's answers in a run, to open one again.
import { useEffect, useState } from "preact/hooks";
import { decidedOtherwise } from "./given";
import { Sheet } from "./guideline";
import { moment, runName } from "./words";
import { call, useLatest, type JudgedTask, type QueuedRun, type Answer } from "./api";

interface Props { at: string; task: string; all: boolean; open: (run: string, task: JudgedTask, answer: Answer) => void; close: () => void }

// An adjudicator sees the answers of all (`all`), everybody else their own: at first those in the run `at`, or the latest.
// Of a `task` those to it alone; the only one opens by itself.
export function Reopen({ at, task: asked, all, open, close }: Props) {
  const [run, setRun] = useState(at);
  const [runs, setRuns] = useState<QueuedRun[]>([]);
  const [given, setGiven] = useState<{ task: JudgedTask; answer: Answer }[] | null>(null);
  const [told, setTold] = useState("");
  const look = useLatest();

  useEffect(() => {
    setGiven(null);
    if (!run) return;
    const draw = (tasks: JudgedTask[]): void => {
      const found = tasks.flatMap((task) => task.answers.map((answer) => ({ task, answer })));
      const those = asked && run === at ? found.filter(({ task }) => task.task.task_id === asked) : found;
      if (those.length === 1 && asked && run === at) open(run, those[0]!.task, those[0]!.answer);
      else if (those.length > 0) setGiven(those);
      else {
        setGiven(found);
        if (asked && run === at) setTold(all ? "Nobody's answer to that node is among the latest 200." : "You have not answered that node: others judge it.");
      }
    };
    void look(call<JudgedTask[]>(`/api/runs/${encodeURIComponent(run)}/answers`), draw, (error) => setTold(error.message));
  }, [run]);
  useEffect(() => {
    call<QueuedRun[]>("/api/runs").then((found) => { setRuns(found); setRun((before) => before || (found[0]?.run_id ?? "")); }).catch((error: Error) => setTold(error.message));
  }, []);

  return (
    <Sheet name={all ? "All answers" : "Your answers"} close={close}>
      <section class="reopen" aria-label="Answers">
        {runs.length > 1 && <label>Run <select value={run} onChange={(event) => setRun(event.currentTarget.value)}>{runs.map((one) => <option key={one.run_id} value={one.run_id}>{runName(one)}, {one.state}</option>)}</select></label>}
        {told && <p role="status">{told}</p>}
        {given?.length === 0 && <p class="quiet">There are none in this run yet.</p>}
        <ul>
          {given?.map(({ task, answer }) => {
            const others = Object.values(decidedOtherwise(task, answer));
            const disputed = others.filter((word) => word === "disputed").length;
            return (
              <li key={answer.answer_id}>
                <button type="button" class="plain" aria-label={`Reopen: ${task.task.query}${all ? ` by ${answer.annotator}` : ""}`} onClick={() => open(run, task, answer)}>{task.task.query}</button>{" "}
                <span class="quiet">{all && `${answer.annotator}, `}{moment(answer.at)}</span>
                {disputed > 0 && <span class="chip">{disputed} disputed</span>}
                {others.length > disputed && <span class="chip">{others.length - disputed} decided otherwise</span>}
              </li>
            );
          })}
        </ul>
      </section>
    </Sheet>
  );
}
