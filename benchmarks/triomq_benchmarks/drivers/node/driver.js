// Puts load on a broker with ali-ons: one JSON object per line in, one per line out, as LoadDriver.java does.
'use strict';

const readline = require('readline');
const { Producer, Message } = require('ali-ons');

const SEND_TIMEOUT_MS = 10000;
const quiet = { info() {}, debug() {}, warn() {}, error(...words) { console.error(...words); } };
// Producers stay open between commands, as in a long-lived application.
const producers = new Map();

async function open(nameServers) {
  let producer = producers.get(nameServers);
  if (!producer) {
    producer = new Producer({
      nameSrv: nameServers.split(';'),
      producerGroup: 'bench_producer',
      sendMsgTimeout: SEND_TIMEOUT_MS,
      retryTimesWhenSendFailed: 0,
      compressMsgBodyOverHowmuch: Number.MAX_SAFE_INTEGER,
      logger: quiet,
      // Required even without an address server: name servers are given.
      httpclient: { request() { throw new Error('no address server here'); } },
    });
    await producer.ready();
    producers.set(nameServers, producer);
  }
  return producer;
}

function quantile(sorted, share) {
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] : 0;
}

async function send(asked) {
  if (asked.op !== 'send' || asked.links !== 1 || asked.batch > 1) {
    throw new Error('this driver only sends single messages over one link');
  }
  const producer = await open(asked.nameServers);
  const body = Buffer.alloc(asked.bodyBytes);
  for (let i = 0; i < body.length; i++) body[i] = 97 + i % 26;
  const times = [];
  let left = asked.count;
  let failures = 0;
  let firstFailure;
  const deadline = performance.now() + asked.maxSeconds * 1000;

  async function sendUntilDone() {
    while (left-- > 0 && performance.now() < deadline) {
      const started = performance.now();
      try {
        const result = await producer.send(new Message(asked.topic, 'bench', body));
        if (result.sendStatus !== 'SEND_OK') throw new Error(result.sendStatus);
        times.push((performance.now() - started) * 1000);
      } catch (error) {
        failures++;
        firstFailure = firstFailure || String(error);
      }
    }
  }

  const cpuBefore = process.cpuUsage();
  const begin = performance.now();
  await Promise.all(Array.from({ length: asked.inFlight }, sendUntilDone));
  const seconds = (performance.now() - begin) / 1000;
  const cpu = process.cpuUsage(cpuBefore);
  times.sort((a, b) => a - b);
  return {
    messages: times.length,
    bytes: times.length * asked.bodyBytes,
    failures,
    firstFailure,
    seconds,
    cpuSeconds: (cpu.user + cpu.system) / 1e6,
    p50Us: quantile(times, 0.5),
    p99Us: quantile(times, 0.99),
  };
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let answer;
    try {
      answer = await send(JSON.parse(line));
    } catch (error) {
      answer = { error: String(error) };
    }
    process.stdout.write(JSON.stringify(answer) + '\n');
  }
  process.exit(0);
}

main();
