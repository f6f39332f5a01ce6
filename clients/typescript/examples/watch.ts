// Starts a run over one hypothesis and follows it to its end: node build/examples/watch.js CORPUS ORACLE "HYPOTHESIS"

import { connect } from "aeenc";
import { WorkState } from "aeenc/v1/types";

const [corpus = "science", oracle = "local", text = "a magnet attracts an iron nail"] = process.argv.slice(2);
const client = connect();
const { id } = await client.startRun([{ id: "one", text }], { corpus, oracle, k: 5, maxJudgements: 40n });
for await (const { seq, run } of client.watchRun(id)) {
  const { positives = 0n, negatives = 0n } = run.progress ?? {};
  console.log(`${seq} ${WorkState[run.state]}: ${positives} explain, ${negatives} do not ${run.error}`);
}
client.close();
