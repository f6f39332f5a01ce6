// What an answer adds to the candidates: rows that are accepted, with all that can be said of one, above the others.
import type { Draft } from "./draft";
import { Grade, Way } from "./candidates";

interface Props { draft: Draft; before: Draft | null; several: boolean; maxGrade: number; otherwise: Record<string, string>; change: (part: Partial<Draft>) => void; grade: (premiseId: string, grade: number) => void; setWay: (premiseId: string, way: number) => void }

// Of an answer that is changed, `before` is what it said: a text that it has can no longer be removed.
export function Added({ draft, before, several, maxGrade, otherwise, change, grade, setWay }: Props) {
  const { additions, intermediates, written } = draft;
  const without = (id: string): Draft["additions"] => Object.fromEntries(Object.entries(additions).filter(([one]) => one !== id));
  const texts = [["intermediates", "Intermediate conclusion", intermediates], ["written", "Kept as a suggestion", written]] as const;
  if (Object.keys(additions).length + intermediates.length + written.length === 0) return null;
  return (
    <ul class="candidates added" aria-label="Added">
      {Object.entries(additions).map(([id, { text, leaf }]) => (
        <li key={id} data-premise={id} class={`candidate ${leaf ? "leaf" : "explains"}`}>
          <button type="button" class="tick" aria-pressed="true" aria-label={`Remove what was added: ${text}`} title="Remove" onClick={() => change({ additions: without(id) })}>+</button>
          <div class="sentence">
            <span class="text">{text}</span>
            {otherwise[id] && <span class="chip">{otherwise[id]}</span>}
            <label class="check grade"><input type="checkbox" checked={leaf} onChange={(event) => change({ additions: { ...additions, [id]: { text, leaf: event.currentTarget.checked } } })} /> leaf</label>
            {several && <Way of={draft.ways[id]} choose={(way) => setWay(id, way)} />}
            {maxGrade > 0 && <Grade of={draft.grades[id]} max={maxGrade} give={(value) => grade(id, value)} />}
          </div>
          <span class="gutter">added</span>
        </li>
      ))}
      {texts.flatMap(([list, means, all]) => all.map((text) => (
        <li key={`${list} ${text}`} class="candidate">
          {before?.[list].includes(text) ? <span class="tick" /> : <button type="button" class="tick" aria-label={`Remove what was written: ${text}`} title="Remove" onClick={() => change({ [list]: all.filter((one) => one !== text) })}>×</button>}
          <span class="sentence">{means}: {text}</span>
        </li>
      )))}
    </ul>
  );
}
