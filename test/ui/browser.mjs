// What the scripts here share: the browser, and which requests it sends.
import { createRequire } from 'node:module';

const { chromium } = createRequire(process.env.PLAYWRIGHT + '/package.json')('playwright-core');

export function check(holds, otherwise) {
  if (!holds) throw new Error(otherwise);
}

// launch runs steps in a browser, and checks that no request leaves the host.
export async function launch(steps, host) {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM,
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  });
  try {
    const elsewhere = [];
    const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, colorScheme: 'light' });
    context.on('request', (request) => {
      const url = new URL(request.url());
      if (url.protocol !== 'data:' && url.host !== host) elsewhere.push(request.url());
    });
    await steps(context);
    check(elsewhere.length === 0, `requests left the host: ${elsewhere}`);
  } finally {
    await browser.close();
  }
}

// visit opens the page; what it says to the console as an error is one.
export async function visit(context, address) {
  const page = await context.newPage();
  page.on('pageerror', (error) => { throw error; });
  page.on('console', (message) => { if (message.type() === 'error' && !/422/.test(message.text())) throw new Error(message.text()); });
  await page.goto(address);
  return page;
}
