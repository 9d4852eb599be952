// Measures how long the page takes from its navigation until all pods are painted.
import { launch } from './browser.mjs';

const { ADDRESS, PODS, ROUNDS } = process.env;
const times = [];
await launch(async (browser) => {
  for (let i = 0; i < Number(ROUNDS); i++) {
    const page = await browser.newPage();
    await page.addInitScript((pods) => {
      const look = () => {
        if (document.querySelectorAll('.pod').length < pods) requestAnimationFrame(look);
        else requestAnimationFrame(() => { window.painted = performance.now(); }); // after the frame that has them
      };
      requestAnimationFrame(look);
    }, Number(PODS));
    await page.goto(ADDRESS);
    times.push(await (await page.waitForFunction(() => window.painted)).jsonValue());
    if (i === 0) await page.screenshot({ path: `${process.env.OUT}/thousand-pods.png` });
    await page.close();
  }
}, new URL(ADDRESS).host);
times.sort((a, b) => a - b);
console.log(`${PODS} pods were painted in ${Math.round(times[Math.floor(times.length / 2)])} ms, the median of ${times.map(Math.round).join(', ')}`);
