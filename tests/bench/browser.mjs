// SPDX-License-Identifier: LGPL-2.1-or-later
// A page of `journalkeeper report` in a headless Chromium: screenshots to look at, and what axe says.
//
//     npm install --prefix /tmp/web puppeteer-core axe-core
//     NODE_PATH=/tmp/web/node_modules node tests/bench/browser.mjs page.html /tmp/web/page
//
// Writes PREFIX-WIDTH-SCHEME.png for 400 and 1,400 px, by day, by night and on paper. Exit status 1 if axe finds a
// violation of WCAG 2.2 AA or of its best practices, if the page fetches anything, or is wider than the window.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";

const load = createRequire(process.env.NODE_PATH + "/");
const { default: puppeteer } = await import(load.resolve("puppeteer-core"));
const axe = readFileSync(load.resolve("axe-core/axe.min.js"), "utf8");
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
const [, , file, prefix] = process.argv;

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu"],
  protocolTimeout: 600_000,
});
let bad = 0;
for (const width of [400, 1400]) {
  for (const scheme of ["light", "dark", "print"]) {
    const page = await browser.newPage();
    let requests = 0;
    page.on("request", () => requests++);
    await page.setBypassCSP(true); // or axe itself could not run
    await page.setViewport({ width, height: 900 });
    if (scheme === "print") await page.emulateMediaType("print");
    else await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
    await page.goto("file://" + resolve(file));
    const tall = await page.evaluate(() => document.documentElement.scrollHeight);
    const clip = { x: 0, y: 0, width, height: Math.min(tall, 5000) };
    await page.screenshot({ path: `${prefix}-${width}-${scheme}.png`, clip, captureBeyondViewport: true });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    await page.evaluate(axe);
    const found = await page.evaluate((tags) => axe.run(document, { runOnly: tags }), RULES);
    console.log(`${width} ${scheme}: ${found.violations.length} violations, ${requests} requests, ${wide} px wide`);
    for (const one of found.violations) console.log(`  ${one.id}: ${one.help}: ${one.nodes[0].html}`);
    if (found.violations.length || requests !== 1 || wide > width) bad++;
    await page.close();
  }
}
await browser.close();
process.exitCode = bad ? 1 : 0;
