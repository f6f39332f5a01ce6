// The workbench: who is signed in, which view is open.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Annotate } from "./annotate";
import { call, ROLES, signedIn, watchConnection, type Person, type Queue, type QueuedRun } from "./api";
import { belongsTo } from "./draft";
import { Lead, runsOf } from "./lead";
import { People } from "./people";
import { Playground } from "./playground";
import { Practice, practise, practises } from "./practice";
import { Training } from "./training";
import "./style.css";

const VIEWS: [name: string, title: string, role: Person["role"]][] = [
  ["annotate", "Annotate", "annotator"], ["lead", "Lead", "adjudicator"], ["people", "People", "adjudicator"], ["training", "Training", "admin"], ["playground", "Playground", "annotator"],
];

function App() {
  const [person, setPerson] = useState<Person | null>(null);
  const [refused, setRefused] = useState("");
  const [left, setLeft] = useState(false); // signed out on purpose
  const [provider, setProvider] = useState(false);
  const [queues, setQueues] = useState<Queue[]>([]);
  const [runs, setRuns] = useState<QueuedRun[]>([]); // of those who decide
  const [view, setView] = useState(location.hash.slice(1));
  const [connected, setConnected] = useState(true);
  const reloadQueues = (): Promise<void> => call<Queue[]>("/api/queues").then(setQueues).catch(() => undefined);
  const reloadRuns = (): Promise<void> => call<QueuedRun[]>("/api/runs").then(setRuns);

  // The call after it is refused, and that answer says how to sign in.
  const signOut = (): void => { call("/sign-out", {}).then(() => { setLeft(true); return call("/api/me"); }).catch((error: Error) => setRefused(error.message)); };

  useEffect(() => {
    watchConnection(setConnected, (problem) => { setProvider(problem.reason === "OIDC"); setRefused(problem.message); });
    signedIn().then((who) => {
      belongsTo(practises() ? `${who.name} practises` : who.name);
      if (practises()) practise();
      setPerson(who);
      const begin = (name: string): void => setView(location.hash.slice(1) || name); // it may have changed before this listened
      if (who.role === "annotator") begin("annotate");
      const decides = who.role === "annotator" ? Promise.resolve([]) : call<QueuedRun[]>("/api/runs");
      Promise.all([call<Queue[]>("/api/queues"), decides]).then(([found, runs]) => {
        setQueues(found);
        setRuns(runs);
        begin(disputed(found, runs) > 0 ? "lead" : "annotate"); // what waits for those who decide
      }).catch(() => begin("annotate"));
    }).catch((error: Error) => setRefused(error.message));
    const moved = (): void => setView(location.hash.slice(1) || "annotate");
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);

  if (refused) return <main class="wide"><h1>AE-Enc workbench</h1>{left ? <p role="status">You are signed out. What you have ticked is kept in this browser. To come back, {provider ? "sign in." : "ask your lead for a new link."}</p> : <p role="alert">{refused}</p>}{provider && <p><a href="/oidc/sign-in">Sign in</a></p>}</main>;
  if (!person) return <main class="wide"><p role="status">…</p></main>;
  const views = VIEWS.filter(([, , role]) => ROLES.indexOf(person.role) >= ROLES.indexOf(role));
  const [place, run, task] = view.split("/").map(decodeURIComponent);
  const shown = practises() ? "practice" : view === "" || views.some(([name]) => name === place) ? place : "annotate";
  const disputes = disputed(queues, runs);
  return <>
    <header>
      <strong>AE-Enc</strong>
      <nav aria-label="Views">{views.map(([name, title]) => <a key={name} href={`/#${name}`} aria-current={shown === name ? "page" : undefined}>{title}{name === "lead" && disputes > 0 && ` (${disputes})`}</a>)}<a href="/?practice" aria-current={shown === "practice" ? "page" : undefined}>Practice</a></nav>
      {!connected && <span class="away" role="status">No connection. What you have ticked is kept; it goes on by itself.</span>}
      <span class="person">{person.name} <button type="button" class="plain" onClick={signOut}>Sign out</button></span>
    </header>
    <main>
      {shown === "lead" && <Lead queues={queues} known={runs} reloadQueues={reloadQueues} reloadRuns={reloadRuns} />}
      {shown === "people" && <People me={person} />}
      {shown === "training" && <Training />}
      {shown === "playground" && <Playground />}
      {shown === "practice" && <Practice me={person} queues={queues} />}
      {shown === "annotate" && <Annotate at={run && task ? { run, task } : null} me={person} queues={queues} reloadQueues={reloadQueues} />}
    </main>
  </>;
}

// Disputes of live runs by the counts of now, of ended ones as they were when the runs were read.
const disputed = (queues: Queue[], runs: QueuedRun[]): number => runsOf(queues, runs).reduce((sum, { conflicts }) => sum + conflicts, 0);

render(<App />, document.getElementById("app")!);
