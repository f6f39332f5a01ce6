// An oracle: two uncommon words shared with the query explain, one abstains, none refuses. The rule of own_oracle.py.
//
//   node build/examples/oracle.js 127.0.0.1:50060
//
// Port 0 takes a free one. AEENC_ORACLE_TOKEN is what callers must send.

import { serveOracle, type Candidate, type Judgement, type Task } from "aeenc";

const COMMON = new Set("a an the is are of to in and by for from that it can with".split(" "));

function uncommonWords(text: string): Set<string> {
  return new Set(text.split(/\s+/).filter((word) => word && !COMMON.has(word)));
}

function judgement(wanted: Set<string>, candidate: Candidate): Judgement {
  const shared = [...uncommonWords(candidate.text)].filter((word) => wanted.has(word)).length;
  return shared >= 2 ? "explains" : shared === 1 ? "abstains" : "refuses";
}

const oracle = {
  name: "node-shared-words",
  judge(task: Task) {
    const wanted = uncommonWords(task.query);
    return new Map(task.candidates.map((candidate) => [candidate.id, judgement(wanted, candidate)]));
  },
};

const server = await serveOracle(oracle, { address: process.argv[2], token: process.env.AEENC_ORACLE_TOKEN });
console.log(JSON.stringify({ address: server.address }));
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => server.stop());
