// What was in sight: the whole text of a row, for a second in sum, in the part of a visible tab that nothing covers.
import { useEffect, useRef } from "preact/hooks";

const SIGHT_MS = 1000;
const LOOK_MS = 100;
const LONGEST_MS = 250; // of one look that counts: a machine may have slept between two

interface Area { top: number; bottom: number; left: number; right: number }

// The part of the window that neither the header nor the bar covers. A dialog covers all of it.
export function freeArea(): Area {
  const { offsetLeft: left, offsetTop, width, height } = visualViewport!;
  const top = Math.max(offsetTop, document.querySelector("header")?.getBoundingClientRect().bottom ?? 0);
  const bar = document.querySelector(".bar")?.getBoundingClientRect().top ?? Infinity;
  const bottom = document.querySelector("dialog[open]") ? top : Math.min(offsetTop + height, bar);
  return { top, bottom, left, right: left + width };
}

const within = (box: DOMRect, area: Area): boolean =>
  box.top >= area.top - 0.5 && box.bottom <= area.bottom + 0.5 && box.left >= area.left - 0.5 && box.right <= area.right + 0.5;

// Which lines of each row's text are in sight. Of a row that the free area can hold, all or none.
function linesInSight(): Map<string, boolean[]> {
  const area = freeArea();
  const found = new Map<string, boolean[]>();
  if (document.visibilityState !== "visible") return found;
  for (const row of document.querySelectorAll<HTMLElement>("[data-premise]")) {
    const boxes = [...(row.querySelector(".text")?.getClientRects() ?? [])];
    if (boxes.length === 0) continue;
    const lines = boxes.map((box) => within(box, area));
    const fits = boxes.at(-1)!.bottom - boxes[0]!.top <= area.bottom - area.top;
    found.set(row.dataset.premise!, fits ? lines.map(() => lines.every(Boolean)) : lines);
  }
  return found;
}

// The ms for which a task was in a visible tab and its person there, and for which the text of each row was in sight: of
// a text taller than the free area the mean of its lines.
export interface Spent { ms: number; rows: Record<string, number> }
export const NONE_SPENT: Spent = { ms: 0, rows: {} };

// Tells which rows of a task have become read, again until it is taken (true); of no other task, though it may have the
// same premises. Counts the time spent on the task.
export function useSight(task: string, there: () => boolean, told: (task: string, premiseIds: string[]) => boolean): { current: Spent } {
  const spent = useRef(NONE_SPENT);
  const drawn = useRef({ task, told });
  drawn.current = { task, told };
  useEffect(() => {
    spent.current = NONE_SPENT;
    if (!task) return undefined;
    const times = new Map<string, number[]>();
    const done = new Set<string>();
    let at = performance.now();
    let before: ReturnType<typeof linesInSight> = new Map(); // until a frame has drawn it
    // Counts what was in sight at both ends of the time since the last look.
    function look(): void {
      if (drawn.current.task !== task) return;
      const passed = Math.min(performance.now() - at, LONGEST_MS);
      at = performance.now();
      const now = linesInSight();
      const rows = { ...spent.current.rows };
      for (const [id, lines] of now) {
        const stood = before.get(id);
        const known = times.get(id);
        const time = known?.length === lines.length ? known : lines.map(() => 0); // other lines: read anew
        const lit = lines.map((line, n) => line && stood?.length === lines.length && stood[n]!);
        times.set(id, time.map((ms, n) => (lit[n] ? ms + passed : ms)));
        rows[id] = (rows[id] ?? 0) + (passed * lit.filter(Boolean).length) / lit.length;
      }
      spent.current = { ms: spent.current.ms + (now.size > 0 && before.size > 0 && there() ? passed : 0), rows };
      before = now;
      const read = [...times].filter(([id, time]) => !done.has(id) && Math.min(...time) >= SIGHT_MS).map(([id]) => id);
      if (read.length > 0 && drawn.current.told(task, read)) read.forEach((id) => done.add(id));
    }
    // With a frame, as there are none while the tab is behind another or draws nothing, and nothing is in sight before one.
    let looking: ReturnType<typeof setTimeout> | undefined;
    let left = false;
    const frame = (): void => { if (!left) { look(); looking = setTimeout(() => requestAnimationFrame(frame), LOOK_MS); } };
    const hide = (): void => { if (document.visibilityState !== "visible") look(); };
    requestAnimationFrame(frame);
    const moves = [
      [document, "scroll", look], [document, "visibilitychange", hide], [window, "resize", look],
      [visualViewport!, "scroll", look], [visualViewport!, "resize", look],
    ] as const;
    for (const [where, what, then] of moves) where.addEventListener(what, then);
    // A dialog, a panel or a question may cover rows and be gone before the next look.
    const changes = new MutationObserver(() => { const now = linesInSight(); before = new Map([...before].filter(([id]) => now.get(id)?.every(Boolean))); });
    changes.observe(document.body, { childList: true, subtree: true, attributes: true, attributeFilter: ["open"] });
    return () => { left = true; changes.disconnect(); clearTimeout(looking); for (const [where, what, then] of moves) where.removeEventListener(what, then); };
  }, [task]);
  return spent;
}

// Scrolls as far as a row needs to be in sight; its beginning, where it is taller than the free area.
export function reveal(row: Element | null | undefined): void {
  if (!row) return;
  const area = freeArea();
  const box = row.getBoundingClientRect();
  const down = Math.min(box.top - area.top, Math.max(0, box.bottom - area.bottom));
  if (down !== 0 && (box.top < area.top || box.bottom > area.bottom)) scrollBy(0, down > 0 ? Math.ceil(down) : Math.floor(down));
}

// Turns to the next lines of a row that is taller than the free area; false when there are none.
export function turn(row: Element | null | undefined, down: boolean): boolean {
  if (!row) return false;
  const area = freeArea();
  const box = row.getBoundingClientRect();
  const free = area.bottom - area.top;
  const left = down ? box.bottom - area.bottom : area.top - box.top;
  if (box.height <= free || left < 1) return false;
  const step = Math.min(Math.ceil(left), Math.max(24, free * 0.7));
  scrollBy(0, down ? step : -step);
  return true;
}
