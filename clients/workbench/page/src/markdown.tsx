// The Markdown of guidelines: headings, paragraphs, lists, code, emphasis, links to the web. All else is text.
import type { ComponentChildren } from "preact";

const SPANS = /`([^`]+)`|\*\*(.+?)\*\*|\*(.+?)\*|_(.+?)_|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/;

function spans(text: string): ComponentChildren[] {
  const found = SPANS.exec(text);
  if (!found) return [text];
  const [all, code, strong, star, line, label, href] = found;
  const made = code ? <code>{code}</code> : strong ? <strong>{spans(strong)}</strong> : label ? <a href={href} target="_blank" rel="noreferrer">{label}</a> : <em>{spans(star ?? line ?? "")}</em>;
  return [text.slice(0, found.index), made, ...spans(text.slice(found.index + all.length))];
}

// One block after another; a line that begins none goes on with the one before.
export function Markdown({ text }: { text: string }) {
  const made: ComponentChildren[] = [];
  const lines = text.replaceAll("\r", "").split("\n");
  const take = (fits: (line: string) => boolean): string[] => {
    const taken: string[] = [];
    while (lines.length > 0 && fits(lines[0]!)) taken.push(lines.shift()!);
    return taken;
  };
  const item = /^\s*([-*+]|\d+[.)])\s+/;
  const starts = (line: string): boolean => /^(#{1,6}\s|```|\s*$)/.test(line) || item.test(line);
  while (lines.length > 0) {
    const line = lines[0]!;
    const heading = /^#{1,6}\s+(.*)$/.exec(line);
    if (line.trim() === "") lines.shift();
    else if (heading) { lines.shift(); made.push(<h3>{spans(heading[1]!)}</h3>); }
    else if (line.startsWith("```")) {
      lines.shift();
      made.push(<pre>{take((one) => !one.startsWith("```")).join("\n")}</pre>);
      lines.shift();
    } else if (item.test(line)) {
      const items: string[] = [];
      for (const one of take((next) => item.test(next) || /^\s+\S/.test(next))) {
        if (item.test(one)) items.push(one.replace(item, ""));
        else items[items.length - 1] += ` ${one.trim()}`;
      }
      const listed = items.map((one) => <li>{spans(one)}</li>);
      made.push(/^\s*\d/.test(line) ? <ol>{listed}</ol> : <ul>{listed}</ul>);
    } else {
      const words = [lines.shift()!, ...take((next) => !starts(next))];
      made.push(<p>{spans(words.join(" "))}</p>);
    }
  }
  return <>{made}</>;
}
