"""Opens HTML pages in a real browser and looks for what a reader would stumble over.

    python -m pip install selenium
    python tests/browser/check.py --pictures FOLDER page.html ..

At 360, 400 and 1,200 pixels, in the light and the dark scheme: nothing is wider than the window (except inside of boxes that scroll),
no two texts of a picture overlap, no cell of a table is broken into single letters, and no text of a picture is smaller than 8 pixels on
the screen at 400 pixels. In reports of runs, names and numbers in tables are not broken inside of a word, tables of settings and figures do
not scroll at 1,200 pixels, a run has one color in all charts, and a baseline is not a chart of its own. The peak and the line of
the memory in a roofline have labels. Needs chromium and
chromedriver, such as Debian's packages chromium and chromium-driver.
"""

import argparse
import os
import pathlib
import shutil
import sys

WIDTHS = [360, 400, 1200]
SCHEMES = ["light", "dark"]

LOOK = """
const problems = [];
const wide = document.documentElement.scrollWidth;
if (wide > window.innerWidth) problems.push(`the page is ${wide} pixels wide in a window of ${window.innerWidth}`);
for (const cell of document.querySelectorAll("td, th")) {
  const text = cell.textContent.trim();
  const width = cell.getBoundingClientRect().width;
  if (text.length > 3 && width > 0 && width < 24) problems.push(`"${text}" is broken into pieces`);
}
const report = document.querySelector(".charts");
const range = document.createRange();
for (const cell of document.querySelectorAll("td:first-child, .grid td")) {
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    // A word on two lines has two boxes.
    for (const word of walker.currentNode.data.matchAll(/[^\s-]+/g)) {
      range.setStart(walker.currentNode, word.index);
      range.setEnd(walker.currentNode, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) problems.push(`"${word[0]}" is broken`);
    }
  }
}
if (report && window.innerWidth >= 1200) {
  for (const box of document.querySelectorAll(".wide")) {
    const open = box.closest("details") === null && box.querySelector("table");
    if (open && box.scrollWidth > box.clientWidth) problems.push(`a table of ${box.scrollWidth} pixels scrolls in ${box.clientWidth}`);
  }
}
const colors = {};
for (const entry of document.querySelectorAll(".legend li")) {
  const color = entry.querySelector("i").style.color;
  const known = colors[entry.dataset.run] ??= color;
  if (known !== color) problems.push(`${entry.dataset.run} is ${known} and ${color}`);
}
for (const title of document.querySelectorAll("figcaption")) {
  if (/unigram_loss/.test(title.firstChild.textContent)) problems.push(`${title.firstChild.textContent} has a chart of its own`);
}
for (const picture of report ? [] : document.querySelectorAll("svg")) {
  const texts = [...picture.querySelectorAll("text")].map(text => text.textContent.trim());
  for (const name of ["peak", "memory"]) if (!texts.includes(name)) problems.push(`the line ${name} has no label`);
}
for (const picture of document.querySelectorAll("svg")) {
  const texts = [...picture.querySelectorAll("text")].map(text => [text.textContent.trim(), text.getBoundingClientRect()]);
  const seen = texts.filter(([text, box]) => text && box.width > 0);
  for (let i = 0; i < seen.length; i++) {
    for (let j = i + 1; j < seen.length; j++) {
      const [a, b] = [seen[i][1], seen[j][1]];
      const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (x > 1 && y > 2) problems.push(`"${seen[i][0]}" and "${seen[j][0]}" overlap by ${x.toFixed(0)} x ${y.toFixed(0)}`);
    }
    const scrolls = picture.closest(".wide");
    const size = Math.min(seen[i][1].height, seen[i][1].width * 3);
    if (!scrolls && window.innerWidth >= 400 && size < 8) problems.push(`"${seen[i][0]}" is ${size.toFixed(1)} pixels high`);
  }
}
return problems;
"""


def browser():
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser") or ""
    for flag in ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--force-device-scale-factor=1"):
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+")
    parser.add_argument("--pictures", help="folder for a picture of each page, width and scheme")
    options = parser.parse_args()
    window, failed = browser(), 0
    for page in options.pages:
        for width in WIDTHS:
            for scheme in SCHEMES:
                metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
                window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
                feature = {"name": "prefers-color-scheme", "value": scheme}
                window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
                window.get(pathlib.Path(page).resolve().as_uri())
                axes = window.find_elements("css selector", ".axes>input")
                # The first axis last: it is the one of the picture.
                for axis in axes[::-1] or [None]:
                    if axis is not None:
                        axis.click()
                    for problem in window.execute_script(LOOK):
                        print(f"{page}, {width} pixels, {scheme}: {problem}")
                        failed += 1
                if options.pictures:
                    os.makedirs(options.pictures, exist_ok=True)
                    height = window.execute_script("return document.documentElement.scrollHeight")
                    metrics["height"] = min(height, 6000)
                    window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
                    name = f"{pathlib.Path(page).stem}-{width}-{scheme}.png"
                    window.save_screenshot(os.path.join(options.pictures, name))
    window.quit()
    print(f"{len(options.pages) * len(WIDTHS) * len(SCHEMES)} views, {failed} problems")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
