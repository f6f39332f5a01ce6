// The curve of a training job, drawn while its events arrive: the loss by step, and dev MAP after each epoch.
import { useEffect, useState } from "preact/hooks";
import { listen, type Job } from "./api";

interface Point { step: number; loss: number; epoch: number; map: number }

const WIDTH = 560, HEIGHT = 180, LEFT = 48, RIGHT = 48, TOP = 10, BOTTOM = 24;
export const ENDED = ["succeeded", "failed", "cancelled"];

// The job as its stream tells it. A stream that is opened anew begins with the first event, and so does the curve.
export function useJob(started: Job): { job: Job; points: Point[] } {
  const [job, setJob] = useState(started);
  const [points, setPoints] = useState<Point[]>([]);
  useEffect(() => {
    setPoints([]);
    const stop = listen<Job>(`/api/jobs/${encodeURIComponent(started.id)}/events`, (now) => {
      const { steps_done: step, loss, epochs_done: epoch, validation_map: map } = now.progress;
      setJob(now);
      if (step > 0) setPoints((known) => [...known.filter((one) => one.step < step), { step, loss, epoch, map }]);
      if (ENDED.includes(now.state)) stop();
    });
    return stop;
  }, [started.id]);
  return { job, points };
}

export function Curve({ points, steps }: { points: Point[]; steps: number }) {
  if (points.length === 0) return <p class="quiet">The curve begins with the first steps.</p>;
  const most = Math.max(steps, points.at(-1)!.step);
  const highest = Math.max(...points.map((one) => one.loss), Number.EPSILON);
  const x = (step: number): number => LEFT + (step / most) * (WIDTH - LEFT - RIGHT);
  const y = (share: number): number => TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
  const epochs = points.filter((one, n) => one.epoch > 0 && one.map > 0 && one.epoch !== points[n - 1]?.epoch);
  const last = points.at(-1)!;
  const told = `Loss ${last.loss.toFixed(3)} at step ${last.step} of ${most}` + (epochs.length ? `; dev MAP ${epochs.map((one) => one.map.toFixed(3)).join(", ")} by epoch` : "");
  return (
    <figure>
      <svg class="curve" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={told}>
        <line class="axis" x1={LEFT} x2={WIDTH - RIGHT} y1={y(0)} y2={y(0)} />
        <text x={LEFT - 6} y={y(1) + 8} text-anchor="end">{highest.toPrecision(3)}</text><text x={LEFT - 6} y={y(0)} text-anchor="end">0</text>
        <text x={WIDTH - RIGHT + 6} y={y(1) + 8}>1</text><text x={WIDTH - RIGHT + 6} y={y(0)}>0</text>
        <text x={LEFT} y={HEIGHT - 6}>step 0</text><text x={WIDTH - RIGHT} y={HEIGHT - 6} text-anchor="end">{most}</text>
        <polyline class="loss" points={points.map((one) => `${x(one.step)},${y(one.loss / highest)}`).join(" ")} />
        {points.length === 1 && <circle class="loss" cx={x(last.step)} cy={y(last.loss / highest)} r="3" />}
        <polyline class="map" points={epochs.map((one) => `${x(one.step)},${y(one.map)}`).join(" ")} />
        {epochs.map((one) => <circle key={one.epoch} class="map" cx={x(one.step)} cy={y(one.map)} r="3" />)}
      </svg>
      <figcaption class="quiet">{told}. Solid, left: loss. Dashed, right: MAP on dev.</figcaption>
    </figure>
  );
}
