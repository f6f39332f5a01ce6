// Two ways to retrieve, side by side.
import { useEffect, useState } from "preact/hooks";
import { call, useLatest, type Hit } from "./api";
import { Marked } from "./marked";

const MODES = ["dense", "lexical", "hybrid", "iterative_lexical"] as const;
interface Way { mode: (typeof MODES)[number]; label: string }
interface Found { hits: Hit[]; version: string; label: string; ms: number; problem: string }

export function Playground() {
  const [corpora, setCorpora] = useState<string[]>([]);
  const [corpus, setCorpus] = useState("");
  const [text, setText] = useState("");
  const [ways, setWays] = useState<[Way, Way]>([{ mode: "dense", label: "stable" }, { mode: "hybrid", label: "stable" }]);
  const [found, setFound] = useState<(Found | null)[]>([null, null]);
  const [told, setTold] = useState("");
  const look = useLatest();
  useEffect(() => {
    call<{ corpus: string }[]>("/api/corpora").then((all) => { setCorpora(all.map((one) => one.corpus)); setCorpus(all[0]?.corpus ?? ""); }).catch((error: Error) => setTold(error.message));
  }, []);

  async function retrieve(event: Event): Promise<void> {
    event.preventDefault();
    await look(one(ways[0]).then(async (left) => [left, await one(ways[1])]), setFound, (error) => setTold(error.message));
  }

  async function one(way: Way): Promise<Found> {
    const begun = performance.now();
    const body = { corpus, text, mode: way.mode, label: way.mode.endsWith("lexical") ? "" : way.label };
    return call<{ hits: Hit[]; version: string }>("/api/compare", body)
      .then((answer) => ({ ...answer, label: body.label, ms: performance.now() - begun, problem: "" }))
      .catch((error: Error) => ({ hits: [], version: "", label: "", ms: 0, problem: error.message }));
  }

  const change = (n: number, part: Partial<Way>): void => setWays((before) => before.map((way, at) => (at === n ? { ...way, ...part } : way)) as [Way, Way]);
  return (
    <div class="wide">
      <h1>Playground</h1>
      {told && <p class="problem" role="alert">{told}</p>}
      <form onSubmit={retrieve}>
        <label>Corpus <select value={corpus} onChange={(event) => setCorpus(event.currentTarget.value)}>{corpora.map((name) => <option key={name} value={name}>{name}</option>)}</select></label>
        <label class="grow">Hypothesis <input value={text} required maxLength={1024} placeholder="a sentence to explain, such as: ice floats on water" onInput={(event) => setText(event.currentTarget.value)} /></label>
        <button type="submit" class="primary">Retrieve</button>
      </form>
      <div class="beside">
        {ways.map((way, n) => {
          const one = found[n];
          const others = new Set((found[1 - n]?.hits ?? []).map((hit) => hit.id));
          return (
            <section class="panel" key={n} aria-label={n ? "Right" : "Left"}>
              <label>Mode <select value={way.mode} onChange={(event) => change(n, { mode: event.currentTarget.value as Way["mode"] })}>{MODES.map((mode) => <option key={mode} value={mode}>{mode.replace("_", " ")}</option>)}</select></label>
              <label>Label <input value={way.label} onInput={(event) => change(n, { label: event.currentTarget.value })} /></label>
              {one?.problem && <p class="problem" role="alert">{one.problem}</p>}
              {one && !one.problem && <p class="quiet" title={one.version}>{one.ms.toFixed(0)} ms{one.version && `, ${one.label || "stable"}`}</p>}
              <ol class="hits">{one?.hits.map((hit) => <li key={hit.id} class={others.has(hit.id) ? "" : "alone"}><Marked text={hit.text} query={text} /> <span class="score">{hit.score.toFixed(3)}</span>{others.size > 0 && !others.has(hit.id) && <span class="chip" title="Not among what the other side finds">only here</span>}</li>)}</ol>
            </section>
          );
        })}
      </div>
    </div>
  );
}
