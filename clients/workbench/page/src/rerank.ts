// A newer encoder while a task is open: whether there is one, and the task's candidates as it ranks them.
import { useEffect, useRef, useState } from "preact/hooks";
import { call, type Again, type Lease, type Tree } from "./api";
import { carried, type Draft } from "./draft";

const LOOK_MS = 5_000;
const PAUSE_MS = 150;
const PAUSES = 60;

export interface Rerank { version: string; moved: Map<string, number> | null; rerank: () => Promise<void> }

type Ask = (of: object, kept: (found: Lease) => Draft) => Promise<Lease | null | undefined>; // null: there is none; undefined: it came late

// `version` is empty while no newer one is there. `moved` has the earlier rank of each candidate of a re-ranked task.
export function useRerank(lease: Lease | null, draftOf: () => Draft | null, open: (none: null) => void, ask: Ask, tell: (text: string) => void): Rerank {
  const [version, setVersion] = useState("");
  const [before, setBefore] = useState<{ task: string; ranks: Map<string, number> } | null>(null);
  const asking = useRef(false);
  const newest = useRef(""); // the version that the run would retrieve by, whether or not this task can be sent back

  useEffect(() => {
    setVersion("");
    newest.current = "";
    if (!lease) return undefined;
    let left = false;
    async function look(): Promise<void> {
      if (asking.current) return;
      asking.current = true;
      const found = await call<Again>("/api/again", { ...named(lease!), dry_run: true }).catch(() => null);
      asking.current = false;
      if (left) return;
      newest.current = found?.model_version ?? "";
      setVersion(found?.task_ids.length ? found.model_version : "");
    }
    void look();
    const looking = setInterval(look, LOOK_MS);
    return () => { left = true; clearInterval(looking); };
  }, [lease?.lease_id]);

  async function rerank(): Promise<void> {
    const draft = draftOf();
    if (!lease || !draft) return;
    if (!version) {
      tell(["", lease.task.model_version].includes(newest.current) ? "No newer encoder was published for this run: there is nothing to re-rank with." : "A newer encoder was published, but others have begun this task, too: its candidates stay as they are. The next tasks have new ones.");
      return;
    }
    setVersion("");
    try {
      await call<Again>("/api/again", { ...named(lease), dry_run: false });
      const found = await comesBack(lease, (of) => ask(of, (found) => carried(draft, found)));
      if (found === null) { open(null); tell("Its new candidates are not there yet; they come back to the queue."); }
      if (found) setBefore({ task: found.lease_id, ranks: new Map(lease.task.candidates.map((one) => [one.premise_id, one.rank])) });
    } catch (error) {
      tell((error as Error).message);
    }
  }

  return { version, moved: before !== null && before.task === lease?.lease_id ? before.ranks : null, rerank };
}

const named = (lease: Lease): object => ({ run: lease.run_id, task: lease.task.task_id, lease: lease.lease_id });

async function comesBack(lease: Lease, ask: (of: object) => ReturnType<Ask>): ReturnType<Ask> {
  const path = `/api/runs/${encodeURIComponent(lease.run_id)}/tree?hypothesis=${encodeURIComponent(lease.hypothesis_id)}`;
  for (let pause = 0; pause < PAUSES; pause++) {
    const node = (await call<Tree>(path)).nodes.find((one) => one.node_id === lease.node_id);
    if (node?.state === "waiting") {
      if (node.holders.length > 0) return null;
      const found = await ask({ run: lease.run_id, task: node.task_id });
      if (found !== null) return found;
    }
    await new Promise((go) => setTimeout(go, PAUSE_MS));
  }
  return null;
}
