// A sentence with the words marked that it shares with the query.
import { pieces } from "./words";

export function Marked({ text, query }: { text: string; query: string }) {
  return <span class="text">{pieces(text, query).map((piece, n) => (piece.shared ? <mark key={n}>{piece.text}</mark> : piece.text))}</span>;
}
