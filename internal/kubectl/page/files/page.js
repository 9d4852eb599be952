// The page. The server sends the picture as parts by key, and afterwards those that change.
import { html, render, useEffect, useRef, useState } from './htm-preact.js';

const parts = new Map();
let connected = false;
let redraw = () => {};

function connect() {
  const source = new EventSource('events');
  const add = (event) => {
    for (const [key, part] of Object.entries(JSON.parse(event.data))) {
      if (part === null) parts.delete(key); else parts.set(key, part);
    }
    redraw();
  };
  source.addEventListener('all', (event) => { parts.clear(); add(event); });
  source.addEventListener('change', add);
  source.onopen = () => { connected = true; redraw(); };
  source.onerror = () => { connected = false; redraw(); };
}

// all returns the parts of a kind, by name.
function all(kind) {
  const found = [];
  for (const [key, part] of parts) {
    if (key.startsWith(kind + '/')) found.push([key, part]);
  }
  return found.sort(([a], [b]) => (a < b ? -1 : 1)).map(([, part]) => part);
}

const meanings = {
  ready: 'Ready', unready: 'not Ready', waiting: 'waits for a node', held: 'held at the gate', leaving: 'is being deleted', 'cut-off': 'its node is cut off',
};

function Legend() {
  return html`<ul class="legend" aria-hidden="true">
    ${Object.entries(meanings).map(([state, text]) => html`<li key=${state}><i class=${state}></i>${text}</li>`)}
    <li><i class="on-demand"></i>on-demand</li><li><i class="spot"></i>spot</li>
  </ul>`;
}

function Pod({ pod, first, open }) {
  const says = `${pod.name}: ${meanings[pod.state]}${pod.class ? ', ' + pod.class : ''}${pod.node ? ', on ' + pod.node : ''}`;
  return html`<button class=${`pod ${pod.state} ${pod.class || ''}`} title=${says} aria-label=${says} tabindex=${first ? 0 : -1} onClick=${open}></button>`;
}

function Cell({ cell, open }) {
  if (!cell) return html`<td></td>`;
  const loan = cell.onLoan ? `, ${cell.onLoan} on loan` : '';
  return html`<td>${cell.pods.length} of ${cell.wanted}${loan}
    <div class="pods">${cell.pods.map((pod, i) => html`<${Pod} key=${pod.name} pod=${pod} first=${i === 0} open=${() => open(pod)} />`)}</div></td>`;
}

// arrows moves the focus from pod to pod, so that a cell is one stop of the Tab key.
function arrows(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step || !event.target.classList.contains('pod')) return;
  const pods = [...event.currentTarget.querySelectorAll('.pod')];
  pods[pods.indexOf(event.target) + step]?.focus();
  event.preventDefault();
}

function Workloads({ open }) {
  const groups = all('group');
  const rows = all('workload');
  const names = groups.map((group) => group.name);
  // Groups that do not exist any more, and none, still have pods.
  for (const row of rows) for (const name of Object.keys(row.cells)) if (!names.includes(name)) names.push(name);
  if (rows.length === 0) return html`<p>No workload has a policy yet.</p>`;
  return html`<${Legend} /><table onKeyDown=${arrows}>
    <caption class="unseen">Pods of each workload by NodeGroup</caption>
    <thead><tr><th scope="col">Workload</th>${names.map((name) => {
      const group = groups.find((g) => g.name === name);
      return html`<th scope="col" key=${name}>${name || 'no group'}<small>${group ? `${group.ready} of ${group.nodes} nodes` : ''}</small></th>`;
    })}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.namespace + row.kind + row.name}>
      <th scope="row"><button onClick=${() => open(row.kind, row.namespace, row.name)}>${row.name}</button>
        <small>${row.kind} in ${row.namespace}${row.policy ? ', by ' + row.policy : ''}</small>
        ${row.message && html`<small class="message">${row.message}</small>`}</th>
      ${names.map((name) => html`<${Cell} key=${name} cell=${row.cells[name]} open=${(pod) => open('Pod', row.namespace, pod.name)} />`)}
    </tr>`)}</tbody></table>`;
}

function Nodes() {
  const nodes = all('node');
  const pools = all('pool');
  // Pools that may not be seen, and none, still have nodes.
  for (const node of nodes) if (!pools.some((pool) => pool.name === (node.pool || ''))) pools.push({ name: node.pool || '' });
  if (pools.length === 0) return html`<p>There are no nodes and pools that you may see.</p>`;
  return html`<table><caption class="unseen">Nodes of each NodePool</caption>
    <thead><tr><th scope="col">NodePool</th><th scope="col">Node</th><th scope="col">NodeGroup</th><th scope="col">State</th></tr></thead>
    <tbody>${pools.flatMap((pool) => {
      const its = nodes.filter((node) => (node.pool || '') === pool.name);
      return (its.length ? its : [null]).map((node, i) => html`<tr key=${pool.name + '/' + node?.name}>
        <th scope="row">${i === 0 && html`${pool.name || 'no pool'}<small class="message">${pool.why}</small>`}</th>
        ${node ? html`<td>${node.name}</td><td>${node.group}</td>
          <td><i class=${`dot ${node.state === 'Ready' ? 'ready' : node.state === 'NotReady' ? 'unready' : 'cut-off'}`}></i> ${node.state}<small>${node.why}</small></td>`
        : html`<td colspan="3">no node</td>`}
      </tr>`);
    })}</tbody></table>`;
}

function Gangs() {
  const gangs = all('gang');
  if (gangs.length === 0) return html`<p>There is no PodGroup.</p>`;
  return html`<table><caption class="unseen">PodGroups</caption>
    <thead><tr><th scope="col">PodGroup</th><th scope="col">Owner</th><th scope="col">Start together</th><th scope="col">Phase</th></tr></thead>
    <tbody>${gangs.map((gang) => html`<tr key=${gang.namespace + gang.name}>
      <th scope="row">${gang.name}<small>${gang.namespace}</small></th><td>${gang.owner}</td><td>${gang.min}</td><td>${gang.phase}</td></tr>`)}</tbody></table>`;
}

function Plan() {
  const text = useRef();
  const [answer, setAnswer] = useState('');
  const ask = async () => {
    setAnswer('…');
    try {
      const response = await fetch('plan', { method: 'POST', headers: { 'Content-Type': 'application/yaml' }, body: text.current.value });
      setAnswer(await response.text() || 'Nothing changes.');
    } catch (error) {
      setAnswer(`error: ${error.message}`);
    }
  };
  return html`<label for="objects">What will happen when these objects are applied? Nothing is applied here.</label>
    <textarea id="objects" ref=${text} spellcheck="false" placeholder="apiVersion: groupmanagement.kubeedge.io/v1alpha1"></textarea>
    <p><button onClick=${ask}>Plan</button></p><pre role="status" id="answer">${answer}</pre>`;
}

function Drawer({ of, close }) {
  const [text, setText] = useState('…');
  const button = useRef();
  useEffect(() => {
    let current = true;
    const before = document.activeElement;
    button.current.focus();
    fetch('explain?' + new URLSearchParams(of)).then((response) => response.text()).catch((error) => `error: ${error.message}`)
      .then((answer) => current && setText(answer));
    return () => { current = false; before?.focus(); };
  }, [of.kind, of.namespace, of.name]);
  return html`<aside role="dialog" aria-label=${`${of.kind} ${of.name}`}>
    <button ref=${button} onClick=${close}>Close</button><pre>${text}</pre></aside>`;
}

const tabs = { Workloads, 'Pools and nodes': Nodes, PodGroups: Gangs, Plan };

function Page() {
  const [, setDrawn] = useState(0);
  const [tab, setTab] = useState('Workloads');
  const [of, setOf] = useState(null);
  redraw = () => setDrawn((n) => n + 1);
  useEffect(() => {
    connect();
    addEventListener('keydown', (event) => event.key === 'Escape' && setOf(null));
  }, []);
  const open = (kind, namespace, name) => setOf({ kind, namespace, name });
  const Tab = tabs[tab];
  const away = parts.get('away');
  return html`<header><h1>Atoll</h1><div role="tablist">${Object.keys(tabs).map((name) => html`<button key=${name} role="tab"
      aria-selected=${name === tab} onClick=${() => setTab(name)}>${name}</button>`)}</div></header>
    ${!connected && html`<p class="note bad" role="status">kubectl atoll ui does not answer; this is how it was last.</p>`}
    ${away && html`<p class="note bad" role="status">This may be old: ${away}</p>`}
    ${(parts.get('unread') || []).map((text) => html`<p class="note" key=${text}>More could be shown: ${text}</p>`)}
    <main role="tabpanel" aria-label=${tab}>${parts.get('reading') === false ? html`<${Tab} open=${open} />` : 'Reading…'}</main>
    ${of && html`<${Drawer} of=${of} close=${() => setOf(null)} />`}`;
}

render(html`<${Page} />`, document.getElementById('page'));
