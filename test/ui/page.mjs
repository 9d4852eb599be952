// Drives the page of kubectl atoll ui in a real browser. The test that runs it has made the cluster:
// Deployment "web" with 5 pods in NodeGroups "left" (3) and "right" (2).
import { execFileSync } from 'node:child_process';
import { check, launch, visit } from './browser.mjs';

const { ADDRESS, OUT, KUBECTL, NS } = process.env;
const host = new URL(ADDRESS).host;
const kubectl = (...args) => execFileSync(KUBECTL, ['-n', NS, ...args], { encoding: 'utf8' }).trim();

await launch(async (browser) => {
  const stranger = await browser.newPage();
  for (const path of ['', 'wrong/', 'events', 'page.js', 'explain?kind=pod']) {
    const answer = await stranger.request.get(`http://${host}/${path}`);
    check(answer.status() === 403, `without the token /${path} gets ${answer.status()}`);
  }
  await stranger.close();

  const page = await visit(browser, ADDRESS);
  const row = page.locator('tr', { has: page.getByRole('button', { name: 'web', exact: true }) });
  await row.locator('.pod.ready').nth(4).waitFor();
  const cells = await row.locator('td').allInnerTexts();
  check(cells.some((t) => t.startsWith('3 of 3')) && cells.some((t) => t.startsWith('2 of 2')), `the cells say ${cells}`);
  await page.screenshot({ path: `${OUT}/workloads-light.png`, fullPage: true });

  // A change is visible.
  const name = kubectl('get', 'pods', '-l', 'app=web', '-o', 'jsonpath={.items[0].metadata.name}');
  kubectl('label', 'pod', name, 'atoll.dev/capacity-class=spot');
  const wrote = Date.now();
  await page.locator(`.pod.spot[title^="${name}:"]`).waitFor();
  console.log(`a change of a pod was visible ${Date.now() - wrote} ms after kubectl had ended`);

  // The drawer has explain's text; Escape closes it, and the focus goes back.
  await page.locator(`.pod[title^="${name}:"]`).click();
  await page.getByRole('dialog').getByText(`Pod ${NS}/${name}`).waitFor();
  const text = await page.getByRole('dialog').innerText();
  check(/Policy +PropagationPolicy spread: weights left 3, right 2/.test(text), `the drawer says ${text}`);
  await page.screenshot({ path: `${OUT}/drawer.png` });
  await page.keyboard.press('Escape');
  await page.getByRole('dialog').waitFor({ state: 'detached' });
  check(await page.evaluate(() => document.activeElement.classList.contains('pod')), 'the focus is lost');
  const before = await page.evaluate(() => document.activeElement.title);
  await page.keyboard.press(before === (await page.locator('.pod').last().getAttribute('title')) ? 'ArrowLeft' : 'ArrowRight');
  check(before !== await page.evaluate(() => document.activeElement.title), 'the arrow keys do not move the focus');

  // The plan.
  await page.getByRole('tab', { name: 'Plan' }).click();
  await page.locator('#objects').fill(kubectl('get', 'propagationpolicy', 'spread', '-o', 'yaml').replace(/weight: 3/, 'weight: 1').replace(/weight: 2/, 'weight: 4'));
  await page.getByRole('button', { name: 'Plan' }).click();
  await page.locator('#answer').getByText('Leave their NodeGroup').waitFor();
  await page.screenshot({ path: `${OUT}/plan.png` });
  await page.locator('#objects').fill('no: object');
  await page.getByRole('button', { name: 'Plan' }).click();
  await page.locator('#answer').getByText('error: ').waitFor();

  // Nodes, PodGroups, and the other colours.
  await page.getByRole('tab', { name: 'Pools and nodes' }).click();
  await page.getByText('left-0').waitFor();
  await page.getByRole('tab', { name: 'PodGroups' }).click();
  await page.getByText('There is no PodGroup.').waitFor();
  await page.getByRole('tab', { name: 'Workloads' }).click();
  const back = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await back();
  await page.emulateMedia({ colorScheme: 'dark' });
  check(light !== await back(), 'it has one colour scheme');
  await page.screenshot({ path: `${OUT}/workloads-dark.png`, fullPage: true });
}, host);
