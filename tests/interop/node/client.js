// One client of ali-ons, as the command line says; it prints one JSON object per line for what it sees.
//
//   node client.js OPERATION '{"nameServers": "127.0.0.1:9876", ...}'
'use strict';

const { Consumer, Message, Producer } = require('ali-ons');

const quiet = { info() {}, debug() {}, warn() {}, error(...words) { console.error(...words); } };

function tell(what) {
  console.log(JSON.stringify(what));
}

function settings(given) {
  return {
    nameSrv: given.nameServers.split(';'),
    accessKey: given.accessKey,
    secretKey: given.secretKey,
    logger: quiet,
    // Required even without an address server: name servers are given.
    httpclient: { request() { throw new Error('no address server here'); } },
  };
}

async function send(given) {
  const producer = new Producer({
    ...settings(given), producerGroup: given.group, sendMsgTimeout: 30000, retryTimesWhenSendFailed: 0,
  });
  await producer.ready();
  for (const body of given.bodies) {
    const message = new Message(given.topic, given.tags || null, body);
    message.keys = [`key-${body}`];
    message.properties.number = body.slice(-1);
    if (given.delayLevel) message.delayTimeLevel = given.delayLevel;
    const result = await producer.send(message);
    if (result.sendStatus !== 'SEND_OK') throw new Error(result.sendStatus);
    tell({ event: 'sent', body, id: result.msgId });
  }
  await producer.close();
}

async function consume(given) {
  const consumer = new Consumer({
    ...settings(given),
    consumerGroup: given.group,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    // Of the offset store; by default a consumer that ends right after its last message has committed nothing.
    persistConsumerOffsetInterval: 200,
  });
  consumer.on('error', error => tell({ event: 'error', text: String(error) }));
  let left = given.count;
  let allSeen;
  const done = new Promise(resolve => { allSeen = resolve; });
  const selector = given.sql ? { expressionType: 'SQL92', subString: given.sql } : given.tags || '*';
  consumer.subscribe(given.topic, selector, async message => {
    const failed = message.reconsumeTimes < (given.failures || 0);
    tell({
      event: failed ? 'failed' : 'consumed',
      body: message.body.toString(),
      tags: message.tags,
      id: message.msgId,
      queueId: message.queueId,
      queueOffset: message.queueOffset,
      reconsumeTimes: message.reconsumeTimes,
    });
    if (failed) return Consumer.ACTION_RETRY;
    if (--left === 0) setTimeout(allSeen, 500);
  });
  await consumer.ready();
  tell({ event: 'started' });
  await done;
  await consumer.close();
}

const operation = { send, consume }[process.argv[2]];
operation(JSON.parse(process.argv[3])).then(
  // Timers of ali-ons would keep the process.
  () => process.exit(0),
  error => {
    tell({ event: 'error', text: String(error) });
    process.exit(1);
  },
);
