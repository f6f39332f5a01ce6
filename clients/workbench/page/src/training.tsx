// What an admin does with the answers: train on the pairs of runs, follow the curve, measure, publish, take back.
import { useEffect, useState } from "preact/hooks";
import { call, fresh, type Job, type Label, type Measured, type Overview, type Publication } from "./api";
import { Curve, ENDED, useJob } from "./curve";
import { runName, versionNames } from "./words";

const LABEL = "stable";

export function Training() {
  const [known, setKnown] = useState<Overview | null>(null);
  const [chosen, setChosen] = useState<string[]>([]);
  const [epochs, setEpochs] = useState(0);
  const [shown, setShown] = useState("");
  const [told, setTold] = useState("");
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);

  async function load(): Promise<void> {
    setKnown(await call<Overview>("/api/training"));
  }
  // Says what has happened, or why not; one change at a time.
  async function doing(change: () => Promise<string>): Promise<void> {
    setBusy(true);
    setProblem("");
    setTold("");
    try {
      setTold(await change());
    } catch (error) {
      setProblem((error as Error).message);
    }
    await load().catch((error: Error) => setProblem(error.message));
    setBusy(false);
  }
  useEffect(() => { load().catch((error: Error) => setProblem(error.message)); }, []);

  const corpus = known?.runs.find((run) => chosen.includes(run.id))?.corpus;
  const job = known?.jobs.find((one) => one.id === shown) ?? known?.jobs[0];
  const toggle = (id: string): void => setChosen(chosen.includes(id) ? chosen.filter((one) => one !== id) : [...chosen, id]);

  async function train(event: Event): Promise<void> {
    event.preventDefault();
    await doing(async () => {
      const started = await call<Job>("/api/train", { runs: chosen, epochs, request: fresh() });
      setShown(started.id);
      return "The job has started.";
    });
  }
  // Moves the label of a row; without a row, the version is the first of its space.
  const move = (what: "publish" | "rollback", row: Label | undefined, version = ""): Promise<void> => doing(async () => {
    const body = { label: LABEL, space: row?.space_id ?? "", version, revision: row?.revision ?? 0, request: fresh() };
    const moved = await call<Publication>(`/api/${what}`, body);
    return `${LABEL} is now: ${versionNames(moved.label.versions, known?.versions ?? {})}${moved.complete ? ", and every encoder serves it" : "; not every encoder serves it yet"}.`;
  });

  return (
    <div class="wide">
      <h1>Training</h1>
      {problem && <p class="problem" role="alert">{problem}</p>}
      <p role="status">{told}</p>
      {known && <>
        <form onSubmit={train}>
          <fieldset>
            <legend>Learn from the pairs of</legend>
            {known.runs.length === 0 && <span class="quiet">There is no run yet. Start one: aeenc sample CORPUS --oracle QUEUE</span>}
            {known.runs.map((run) => (
              <label class="check" key={run.id}>
                <input type="checkbox" checked={chosen.includes(run.id)} disabled={corpus !== undefined && run.corpus !== corpus} onChange={() => toggle(run.id)} /> <span title={run.id}>{runName(run)}</span> <span class="quiet">{run.corpus}, {run.state}: {run.positives} accepted, {run.refused} refused</span>
              </label>
            ))}
          </fieldset>
          <label>Epochs (0: by the data) <input type="number" min="0" max="100" step="1" required value={epochs} onInput={(event) => setEpochs(event.currentTarget.valueAsNumber)} /></label>
          <button type="submit" class="primary" disabled={busy || chosen.length === 0}>Train</button>
        </form>
        <h2>Jobs</h2>
        {!job && <p class="quiet">No job yet.</p>}
        {job && known.jobs.length > 1 && <label>Job <select value={job.id} onChange={(event) => setShown(event.currentTarget.value)}>{known.jobs.map((one) => <option key={one.id} value={one.id}>{new Date(one.created_at).toLocaleString()}, {one.state}</option>)}</select></label>}
        {job && <OneJob key={job.id} started={job} known={known} busy={busy} load={load} doing={doing} publish={async (label, version) => { if (confirm(`Every encoder serves the version ${versionNames([version], known.versions)} (${version}) as ${LABEL} from now on, to everybody. Publish it?`)) await move("publish", label, version); }} />}
        <h2>Labels</h2>
        <div class="tables" tabIndex={0} role="region" aria-label="Labels"><table>
          <thead><tr><th scope="col">Label</th><th scope="col">Of</th><th scope="col">Version</th><th scope="col">Before</th><th scope="col">Back</th></tr></thead>
          <tbody>{known.labels.map((one) => (
            <tr key={`${one.space_id} ${one.name}`}>
              <td>{one.name}</td><td title={one.space_id}>{one.space_id === "cross-encoder" ? "cross-encoder" : "encoder"}</td>{[one.versions, one.previous_versions].map((ids, n) => <td key={n} title={ids.join(" and ")}>{versionNames(ids, known.versions)}</td>)}
              <td>{one.name === LABEL && one.previous_versions.length > 0 && <button type="button" disabled={busy} onClick={() => move("rollback", one)} title={one.previous_versions.join(" and ")}>Roll back to {versionNames(one.previous_versions, known.versions)}</button>}</td>
            </tr>
          ))}</tbody>
        </table></div>
      </>}
    </div>
  );
}

interface OneJobProps {
  started: Job; known: Overview; busy: boolean; load: () => Promise<void>;
  doing: (change: () => Promise<string>) => Promise<void>; publish: (label: Label | undefined, version: string) => Promise<void>;
}

function OneJob({ started, known, busy, load, doing, publish }: OneJobProps) {
  const { job, points } = useJob(started);
  const [measured, setMeasured] = useState<Measured[]>([]);
  const { progress, version } = job;
  const { gold, versions } = known;
  useEffect(() => { if (version && !(version in versions)) load().catch(() => undefined); }, [version]); // it has just been made
  const label = known.labels.find((one) => one.name === LABEL && one.space_id === versions[version]?.space_id);
  const before = (label?.versions[0] === version ? label.previous_versions : label?.versions)?.[0];

  const measure = (): Promise<void> => doing(async () => {
    const found: Measured[] = [];
    for (const one of [before, version]) if (one) found.push(await call<Measured>("/api/measure", { corpus: job.config.corpus, version: one }));
    setMeasured(found);
    return `Measured on ${found[0]?.queries ?? 0} dev queries.`;
  });

  return (
    <section class="panel" aria-label="Job">
      <p><span title={job.id}>{new Date(job.created_at).toLocaleString()}</span> <span class="state">{job.state}</span> {!ENDED.includes(job.state) && progress.phase} epoch {progress.epochs_done} of {progress.epochs}; {progress.positives} accepted, {progress.negatives} refused. {job.error}</p>
      <Curve points={points} steps={progress.steps} />
      <div class="actions">
        {!ENDED.includes(job.state) && <button type="button" disabled={busy} onClick={() => doing(async () => { await call("/api/cancel", { job: job.id, request: fresh() }); return "The job is cancelled."; })}>Cancel</button>}
        {version in versions && gold > 0 && <button type="button" disabled={busy} onClick={measure}>Measure on dev</button>}
        {version in versions && job.state === "succeeded" && label?.versions[0] !== version && <button type="button" class="primary" disabled={busy} onClick={() => publish(label, version)}>Publish as {LABEL}</button>}
        {version && gold === 0 && <span class="quiet">There are no gold trees to measure it on: whoever runs the workbench gives them (--gold FOLDER).</span>}
      </div>
      {measured.length > 0 && (
        <div class="tables" tabIndex={0} role="region" aria-label="Figures"><table>
          <thead><tr><th scope="col">On dev</th><th scope="col" class="figure">Strict MAP</th><th scope="col" class="figure">NDCG</th><th scope="col" class="figure">Hit@10</th><th scope="col" class="figure">Hit@50</th></tr></thead>
          <tbody>{measured.map((one) => (
            <tr key={one.version}>
              <td title={one.version}>{one.version === version ? "this job" : "without it"}: {versionNames([one.version], versions)}</td>
              {[one.strict.map, one.strict.ndcg, one.strict.hit_at_10, one.strict.hit_at_50].map((figure, n) => <td key={n} class="figure">{figure.toFixed(3)}</td>)}
            </tr>
          ))}</tbody>
        </table></div>
      )}
    </section>
  );
}
