// Somebody who may not see nodes sees the rest, and what is missing.
import { launch, visit } from './browser.mjs';

const { ADDRESS, OUT } = process.env;
await launch(async (browser) => {
  const page = await visit(browser, ADDRESS);
  await page.locator('.pod.ready').first().waitFor();
  await page.getByText('More could be shown: you may not list nodes').waitFor();
  await page.screenshot({ path: `${OUT}/viewer.png` });
}, new URL(ADDRESS).host);
