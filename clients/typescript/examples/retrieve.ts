// Premise retrieval in five lines: node build/examples/retrieve.js (needs `aeenc up` and the corpus `science`)

import { connect } from "aeenc";

const client = connect(); // or connect({ index: "host:port", token: "…" })
const { results } = await client.retrieve("science", ["a magnet attracts an iron nail"], { k: 5 });
for (const hit of results[0]) console.log(hit.score.toFixed(3), hit.text);
client.close();
