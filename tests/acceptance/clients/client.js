// The cases of client.py, with @grpc/grpc-js.
const fs = require('node:fs');
const { setTimeout: sleep } = require('node:timers/promises');
const grpc = require('@grpc/grpc-js');

const [address, authority] = process.argv.slice(2);
const same = (data) => data;
const method = (name, streams) => ({
  path: `/gate.Echo/${name}`,
  requestStream: streams,
  responseStream: streams,
  requestSerialize: same,
  requestDeserialize: same,
  responseSerialize: same,
  responseDeserialize: same,
});
const Service = grpc.makeGenericClientConstructor({
  echo: method('Echo', false),
  stream: method('Stream', true),
  wait: method('Wait', false),
  waiting: method('Waiting', false),
}, 'gate.Echo');

function connect(options = {}) {
  const credentials = authority === '-'
    ? grpc.credentials.createInsecure()
    : grpc.credentials.createSsl(fs.readFileSync(authority));
  return new Service(address, credentials, {
    'grpc.max_receive_message_length': -1,
    'grpc.max_send_message_length': -1,
    'grpc.use_local_subchannel_pool': 1,
    ...options,
  });
}

const client = connect();

/** Calls a unary method; resolves to the code and the response. */
function unary(name, data, { metadata = new grpc.Metadata(), options = {}, by = client } = {}) {
  let call;
  const ended = new Promise((resolve) => {
    call = by[name](data, metadata, options, (error, response) => {
      resolve({ code: grpc.status[error ? error.code : 0], response });
    });
  });
  return Object.assign(ended, { cancel: () => call.cancel() });
}

function check(holds, text) {
  if (!holds) throw new Error(text);
}

async function echo(size, by = client) {
  const data = Buffer.alloc(size);
  const { code, response } = await unary('echo', data, { by });
  check(code === 'OK' && response.equals(data), code);
  return 'ok';
}

/** Opens a stream; returns a function that resolves to what comes back of a message. */
function openStream(by = client) {
  const call = by.stream();
  const waiting = [];
  call.on('data', (data) => waiting.shift().resolve(data.toString()));
  call.on('error', (error) => waiting.forEach(({ reject }) => reject(error)));
  const exchange = (text) => new Promise((resolve, reject) => {
    waiting.push({ resolve, reject });
    call.write(Buffer.from(text));
  });
  return { call, exchange };
}

async function stream() {
  const { call, exchange } = openStream();
  for (let number = 0; number < 100; number += 1) {
    check(await exchange(`${number}`) === `${number}`, 'another answer');
  }
  const status = new Promise((resolve) => { call.on('status', resolve); });
  call.end();
  check((await status).code === grpc.status.OK, 'the end');
  return 'ok';
}

async function deadline() {
  const { code } = await unary('wait', Buffer.alloc(0), { options: { deadline: Date.now() + 200 } });
  check(code === 'DEADLINE_EXCEEDED', code);
  return 'ok';
}

async function untilWaiting(count) {
  for (let turn = 0; turn < 200; turn += 1) {
    const { response } = await unary('waiting', Buffer.alloc(0));
    if (response.toString() === count) return;
    await sleep(50);
  }
  throw new Error(`not ${count} calls`);
}

async function cancel() {
  const call = unary('wait', Buffer.alloc(0));
  await untilWaiting('1');
  call.cancel();
  await untilWaiting('0');
  check((await call).code === 'CANCELLED', 'the code');
  return 'ok';
}

async function beside(count, size) {
  const { call, exchange } = openStream();
  call.on('error', () => {});
  await exchange('before');
  const metadata = new grpc.Metadata();
  for (let number = 0; number < count; number += 1) metadata.set(`x-${number}`, 'v'.repeat(size));
  const { code } = await unary('echo', Buffer.alloc(0), { metadata });
  check(code !== 'UNAVAILABLE', code);
  await exchange('behind');
  call.cancel();
  return `ok ${code}`;
}

async function pings() {
  const by = connect({ 'grpc.keepalive_time_ms': 1000 });
  const { call, exchange } = openStream(by);
  await exchange('x');
  await sleep(5000);
  await exchange('y');
  call.on('error', () => {});
  call.cancel();
  return 'ok';
}

async function callAtOnce() {
  await Promise.all(Array.from({ length: 100 }, () => echo(100)));
  return 'ok';
}

async function callUntilItStops() {
  const codes = new Set();
  const callers = Array.from({ length: 20 }, async () => {
    let code = 'OK';
    while (code === 'OK') ({ code } = await unary('echo', Buffer.from('x')));
    codes.add(code);
  });
  await sleep(500);
  console.log('SIGTERM\tready');
  await Promise.all(callers);
  check([...codes].join() === 'UNAVAILABLE', [...codes].join());
  return 'ok';
}

const cases = {
  unary: () => echo(1000),
  streams: stream,
  deadline,
  cancel,
  '4 MB': () => echo(4e6),
  '60 MB': () => echo(60e6),
  gzip: () => echo(1e6, connect({ 'grpc.default_compression_algorithm': 2 })),
  '20 kB of metadata': () => beside(20, 1000),
  '130 fields': () => beside(130, 1),
  pings,
  '100 calls': callAtOnce,
  SIGTERM: callUntilItStops,
};

(async () => {
  for (const [name, run] of Object.entries(cases)) {
    console.log(`${name}\t${await run().catch((error) => error.message || 'an error')}`);
  }
  process.exit(0);
})();
