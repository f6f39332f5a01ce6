// What a person needs to know before the first answer: the guideline of the queue, or this one, and the keys.
import { useLayoutEffect, useRef } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { Markdown } from "./markdown";

const DEFAULT = `
You build a tree that explains the sentence at the top. For each node you see facts that a search has found.

1. **Accept** each fact that is *needed* to explain the sentence. Together they should explain it, with nothing left over.
2. An accepted fact is explained next, by facts of its own. **Leaf** says that it needs no explanation: everybody knows it, or it is a definition.
3. Leave the rest alone. What you have read and not accepted is refused: true, perhaps, but not needed here.
4. **Abstain** where you cannot tell. A **bad fact** is wrong or garbled. Nothing is learnt from either.
5. Is a fact missing? **Search** for it. If there is none, write a conclusion of your own: it becomes a node.
6. If nothing explains the sentence, submit and say so.

A candidate counts as read once its whole text was in sight for a second (\`✓ read\`). What you have not read is never refused.

### A finished tree

\`\`\`
fluffing its feathers keeps a bird warm
├─ fluffed feathers trap a layer of air          accepted
│  ├─ a bird fluffs its feathers to hold air     leaf
│  └─ feathers have gaps that hold air           leaf
└─ a layer of air slows the loss of heat         accepted
   └─ air is a thermal insulator                 leaf
\`\`\`

“A bird is an animal” is true, and not needed: it stays unticked.
`;

const KEYS: [string, string][] = [
  ["1–9", "accept, by the number beside it"], ["↑ ↓", "move the frame"], ["a l r x", "accept, leaf, refuse, abstain; then the next one"], ["i b", "irrelevant, bad fact; then the next one"],
  ["s", "nothing below the frame counts as read"], ["/", "search the corpus"], ["n", "note"], ["Ctrl ↵", "submit"], ["u", "undo the last answer"], ["g", "go on now, once it is decided"],
  ["k", "skip"], ["o", "your answers"], ["e", "re-rank with the newer encoder"], ["?", "this page"],
];

export function Guideline({ text, newer, letters, setLetters, close }: { text: string; newer: boolean; letters: boolean; setLetters: (on: boolean) => void; close: () => void }) {
  return (
    <Sheet name="Guideline" close={close}>
      <Markdown text={text || DEFAULT} />
      <h3>Keys</h3>
      <dl class="keys">{KEYS.filter(([key]) => key !== "e" || newer).map(([key, does]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{does}</dd></div>)}</dl>
      <label class="check"><input type="checkbox" checked={letters} onChange={(event) => setLetters(event.currentTarget.checked)} /> keys of a single letter, digit or sign</label>
    </Sheet>
  );
}

// What stands before the page until it is closed.
export function Sheet({ name, close, children }: { name: string; close: () => void; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => { dialog.current!.showModal(); }, []);
  return (
    <dialog ref={dialog} aria-label={name} onClose={close}>
      <h2>{name} <button type="button" class="plain" onClick={close}>Close <kbd>Esc</kbd></button></h2>
      {children}
    </dialog>
  );
}
