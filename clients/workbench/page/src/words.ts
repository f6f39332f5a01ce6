// Words of sentences: which a candidate shares with the query. Which sentences say the same, the sampler tells.

const NOTHING = new Set(["a", "an", "the", "is", "are", "was", "were", "be", "of", "to", "in", "on", "and", "or", "for", "by", "as", "it", "that", "with", "from", "can"]);

function stem(word: string): string {
  const plain = word.toLowerCase();
  if (plain.length <= 3 || !plain.endsWith("s") || plain.endsWith("ss")) return plain;
  return plain.endsWith("ies") ? `${plain.slice(0, -3)}y` : plain.slice(0, -1);
}

export interface Piece { text: string; shared: boolean }

export function pieces(text: string, query: string): Piece[] {
  const known = new Set((query.match(/[\p{L}\p{N}]+/gu) ?? []).map(stem).filter((word) => !NOTHING.has(word)));
  return text.split(/([\p{L}\p{N}]+)/u).filter((part) => part !== "").map((part) => ({ text: part, shared: known.has(stem(part)) }));
}
