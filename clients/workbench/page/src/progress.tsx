// How far a run is, and how fast people answer: its nodes by state, and the answers of each hour or day.
import type { Counts, Hour } from "./api";

const WIDTH = 560, HEIGHT = 100, LEFT = 32, BOTTOM = 2, TOP = 8;
const HOUR_MS = 3_600_000, BY_HOUR_MS = 48 * HOUR_MS; // a longer time is drawn by day
const MOST = 60; // bars; the latest
const STATES: [keyof Counts, string][] = [["settled", "done"], ["decided", "decided"], ["conflicts", "disputed"], ["waiting", "waiting"]];

interface Slot { name: string; answers: number }

// All hours or days from the first answer to the last, in the time of who looks.
function slots(hours: Hour[]): Slot[] {
  if (hours.length === 0) return [];
  const [first, last] = [hours[0]!, hours.at(-1)!].map((one) => Date.parse(one.at)) as [number, number];
  const byHour = last - first < BY_HOUR_MS;
  const nameOf = (at: number): string => new Date(at).toLocaleString(undefined, { day: "numeric", month: "short", ...(byHour && { hour: "2-digit", minute: "2-digit" }) });
  const found = new Map<string, number>();
  for (let at = first; at <= last; at += HOUR_MS) found.set(nameOf(at), 0);
  for (const { at, answers } of hours) found.set(nameOf(Date.parse(at)), (found.get(nameOf(Date.parse(at))) ?? 0) + answers);
  return [...found].map(([name, answers]) => ({ name, answers })).slice(-MOST);
}

export function Progress({ counts, answers }: { counts: Counts | undefined; answers: Hour[] }) {
  const bars = slots(answers);
  const most = Math.max(...bars.map((one) => one.answers), 1);
  const step = (WIDTH - LEFT) / Math.max(bars.length, 12);
  const height = (answers: number): number => (answers / most) * (HEIGHT - TOP - BOTTOM);
  const states = STATES.map(([state, name]) => ({ state, name, tasks: Number(counts?.[state] ?? 0) })).filter(({ tasks }) => tasks > 0);
  const ends = [...new Set([bars[0]?.name, bars.at(-1)?.name])].join(" to ");
  const told = bars.length > 0 && `${bars.reduce((sum, one) => sum + one.answers, 0)} answers, ${ends}; at most ${most} (${bars.find((one) => one.answers === most)?.name})`;
  return <>
    {states.length > 0 && <figure>
      <div class="states" aria-hidden="true">{states.map(({ state, tasks }) => <span key={state} class={state} style={{ flexGrow: tasks }} />)}</div>
      <figcaption class="quiet">{states.map(({ name, tasks }) => `${tasks} ${name}`).join(", ")}</figcaption>
    </figure>}
    {!told && <p class="quiet">No answer yet.</p>}
    {told && <figure>
      <svg class="curve" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={told}>
        <line class="axis" x1={LEFT} x2={WIDTH} y1={HEIGHT - BOTTOM} y2={HEIGHT - BOTTOM} />
        <text x={LEFT - 6} y={TOP + 8} text-anchor="end">{most}</text>
        {bars.map(({ name, answers }, n) => <rect key={name} class="bar-of" x={LEFT + n * step + 1} width={step - 2} y={HEIGHT - BOTTOM - height(answers)} height={height(answers)}><title>{name}: {answers}</title></rect>)}
      </svg>
      <figcaption class="quiet">{told}.</figcaption>
    </figure>}
  </>;
}
