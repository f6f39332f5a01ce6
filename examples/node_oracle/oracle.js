// An oracle in Node, from the protos alone: two uncommon words shared with the query explain, one abstains, none refuses.
//
//   npm ci && node oracle.js 127.0.0.1:50055        (port 0 takes a free one; AEENC_ORACLE_TOKEN: what callers must send)

"use strict";

const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const protoLoader = require("@grpc/proto-loader");

const PROTOS = path.join(__dirname, "..", "..", "protos");
const definition = protoLoader.loadSync("aeenc/v1/oracle.proto", { includeDirs: [PROTOS], defaults: true });
const { OracleService } = grpc.loadPackageDefinition(definition).aeenc.v1;

const COMMON = new Set("a an the is are of to in and by for from that it can with".split(" "));

function uncommonWords(text) {
  return new Set(text.split(/\s+/).filter((word) => word && !COMMON.has(word)));
}

function verdict(wanted, candidate) {
  const shared = [...uncommonWords(candidate.text)].filter((word) => wanted.has(word)).length;
  const judgement = ["JUDGEMENT_DOES_NOT_EXPLAIN", "JUDGEMENT_ABSTAIN", "JUDGEMENT_EXPLAINS"][Math.min(shared, 2)];
  return { premiseId: candidate.premiseId, judgement };
}

function judge(call, answer) {
  const token = process.env.AEENC_ORACLE_TOKEN;
  if (token && call.metadata.get("authorization")[0] !== `Bearer ${token}`) {
    answer({ code: grpc.status.UNAUTHENTICATED, details: "the oracle needs its token as `authorization: Bearer …`" });
    return;
  }
  const answers = call.request.tasks.map((task) => {
    const wanted = uncommonWords(task.query);
    const verdicts = task.candidates.map((candidate) => verdict(wanted, candidate));
    return { taskId: task.taskId, annotator: "node-shared-words", verdicts };
  });
  answer(null, { answers });
}

const [address = "127.0.0.1:50055"] = process.argv.slice(2);
const server = new grpc.Server();
server.addService(OracleService.service, { judge });
server.bindAsync(address, grpc.ServerCredentials.createInsecure(), (error, port) => {
  if (error) throw error;
  console.log(JSON.stringify({ address: `${address.slice(0, address.lastIndexOf(":"))}:${port}` }));
});
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => server.forceShutdown());
