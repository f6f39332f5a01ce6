// Search of the corpus for what the candidates lack.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { call, useLatest, type Hit, type Lease } from "./api";
import { acceptedIn, type Draft } from "./draft";
import { Marked } from "./marked";

const MODES = [
  ["hybrid", "words and meaning", "Both ways, joined: for most searches"],
  ["dense", "meaning", "By the encoder: what says it in other words"],
  ["lexical", "words", "By the words that you type: names, numbers, rare words"],
] as const;
type Mode = (typeof MODES)[number][0];

interface Props { typed: { current: string | null }; lease: Lease; draft: Draft; add: (hit: Hit) => void; write: (text: string, intermediate: boolean) => void; close: () => void }

export function Search({ typed, lease, draft, add, write, close }: Props) {
  const [text, setText] = useState(lease.task.query);
  const [mode, setMode] = useState<Mode>("hybrid");
  const [conditioned, setConditioned] = useState(true);
  const [hits, setHits] = useState<Hit[] | null>(null);
  const [problem, setProblem] = useState("");
  const look = useLatest();
  const input = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => {
    if (typed.current) setText(typed.current);
    else input.current?.select();
    input.current?.focus();
    typed.current = null;
  }, []);

  async function search(event?: Event): Promise<void> {
    event?.preventDefault();
    setProblem("");
    const exclude = lease.task.candidates.map((candidate) => candidate.premise_id);
    const body = { run: lease.run_id, text, mode, accepted: conditioned ? acceptedIn(draft) : [], exclude };
    await look(call<{ hits: Hit[] }>("/api/search", body), (found) => setHits(found.hits), (error) => setProblem(error.message));
  }

  // Arrows go from the words to what was found, and back; the frame of the candidates stays where it is.
  function move(event: KeyboardEvent): void {
    const places = [input.current!, ...(event.currentTarget as HTMLElement).querySelectorAll<HTMLElement>(".hits button")];
    const at = places.indexOf(event.target as HTMLElement);
    if (at < 0 || !["ArrowDown", "ArrowUp"].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    places[at + (event.key === "ArrowDown" ? 1 : -1)]?.focus();
  }

  function keep(intermediate: boolean): void {
    const same = (one: string): boolean => one.trim().toLowerCase() === text.trim().toLowerCase();
    const circular = [...lease.task.path, lease.task.query].some(same);
    setProblem(circular ? "This is what is to be explained: a tree may not lead back to itself. Write what it follows from." : text.trim() ? "" : "Write a sentence first.");
    if (!circular && text.trim()) write(text.trim(), intermediate);
  }

  return (
    <section class="panel search" aria-label="Search the corpus" onKeyDown={move}>
      <form onSubmit={search} role="search">
        <label class="grow">Search the corpus
          <input ref={input} value={text} maxLength={1024} onInput={(event) => setText(event.currentTarget.value)} onKeyDown={(event) => event.key === "Escape" && close()} />
        </label>
        <label>by
          <select value={mode} onChange={(event) => setMode(event.currentTarget.value as Mode)} title={MODES.find(([one]) => one === mode)![2]}>
            {MODES.map(([one, name, means]) => <option key={one} value={one} title={means}>{name}</option>)}
          </select>
        </label>
        <label class="check" title="Looks for what you have not accepted yet; off: for your words alone"><input type="checkbox" checked={conditioned} onChange={(event) => setConditioned(event.currentTarget.checked)} /> for what is still unexplained</label>
        <button type="submit">Search</button>
        <button type="button" onClick={() => keep(false)} title="The corpus lacks it: keep it as a suggestion">Write as a fact</button>
        <button type="button" onClick={() => keep(true)} title="It follows from other facts: it becomes a node of the tree, for which facts are retrieved">Write as an intermediate conclusion</button>
        <button type="button" class="plain" onClick={close}>Close <kbd>Esc</kbd></button>
      </form>
      {problem && <p class="problem" role="alert">{problem}</p>}
      {hits && hits.length === 0 && <p class="quiet">Nothing found.</p>}
      <ul class="hits">
        {hits?.map((hit) => {
          const added = draft.additions[hit.id] !== undefined;
          return (
            <li key={hit.id}>
              <button type="button" aria-pressed={added} onClick={() => add(hit)}>{added ? "Added" : "Add"}</button>
              <Marked text={hit.text} query={lease.task.query} />
            </li>
          );
        })}
      </ul>
    </section>
  );
}
