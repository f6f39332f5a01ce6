"""Which candidates were in sight, by boxes that are taken at every frame, never by the word of the page.

A candidate is in sight while the whole text of its row lies in the window, below the header and above the bar, in a
visible tab without a dialog. Of a text that is taller than that area, each line counts for itself.
"""

from __future__ import annotations

from typing import Any

SIGHT_MS = 1000.0
RECORD = """
window.inSight = {};
(() => {
    const ROWS = 'ol[aria-label^="Candidates"] > li';
    let lit = [], at = performance.now();
    const box = (name) => document.querySelector(name)?.getBoundingClientRect();
    function frame() {
        const now = performance.now();
        for (const [key, line, lines] of lit) {
            const known = window.inSight[key] ?? [];
            const times = known.length === lines ? known : Array(lines).fill(0);
            times[line] += now - at;
            window.inSight[key] = times;
        }
        at = now;
        lit = [];
        const query = document.querySelector("h1")?.innerText.split("\\n").at(-1).trim();
        const [header, bar] = [box("header"), box("footer.bar")];
        const top = Math.max(0, header?.bottom ?? 0), bottom = Math.min(innerHeight, bar?.top ?? innerHeight);
        const hidden = document.visibilityState !== "visible" || document.querySelector("dialog[open]");
        for (const row of hidden ? [] : document.querySelectorAll(ROWS)) {
            const text = row.querySelector(".text"), lines = [...text.getClientRects()];
            const whole = text.getBoundingClientRect();
            const holds = (one) => one.top >= top - 1 && one.bottom <= bottom + 1 && one.left >= 0
                && one.right <= innerWidth + 1;
            const key = `${query}\\n${text.innerText.trim()}`;
            if (whole.height > bottom - top) lines.forEach((one, n) => holds(one) && lit.push([key, n, lines.length]));
            else if (holds(whole)) lines.forEach((_, n) => lit.push([key, n, lines.length]));
        }
        requestAnimationFrame(frame);
    }
    requestAnimationFrame(frame);
})();
"""
AREA = """() => {
    const row = document.querySelector(".candidate.focused").getBoundingClientRect();
    const header = document.querySelector("header").getBoundingClientRect();
    const bar = document.querySelector("footer.bar").getBoundingClientRect();
    return [row.top - Math.max(0, header.bottom), Math.min(innerHeight, bar.top) - row.bottom];
}"""


async def record(page: Any) -> None:
    """Begins to take boxes, now and after each reload."""
    await page.add_init_script(RECORD)
    await page.evaluate(RECORD)


async def seen(page: Any) -> dict[str, float]:
    """For how many ms each `query, newline, text` was in sight: of its line that was so for the shortest time."""
    return {key: min(times) for key, times in (await page.evaluate("window.inSight")).items()}
