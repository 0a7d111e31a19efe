// Cases of gRPC's interoperation tests by grpc-js: node client.js ADDRESS PROTO. Prints `N passed, N failed`.
const assert = require('assert');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const [, , address, proto] = process.argv;
const { TestService } = grpc.loadPackageDefinition(loader.loadSync(proto, { keepCase: true })).grpc.testing;
const client = new TestService(address, grpc.credentials.createInsecure(), { 'grpc.enable_http_proxy': 0 });
const payload = (size) => ({ body: Buffer.alloc(size) });
const unary = (method, request) =>
  new Promise((resolve, reject) => client[method](request, (error, answer) => (error ? reject(error) : resolve(answer))));

const cases = {
  async empty_unary() {
    await unary('EmptyCall', {});
  },
  async large_unary() {
    const answer = await unary('UnaryCall', { response_size: 314159, payload: payload(271828) });
    assert.equal(answer.payload.body.length, 314159);
  },
  async ping_pong() {
    const [down, up, came] = [[31415, 9, 2653, 58979], [27182, 8, 1828, 45904], []];
    const call = client.FullDuplexCall();
    const ask = (at) => call.write({ response_parameters: [{ size: down[at] }], payload: payload(up[at]) });
    await new Promise((resolve, reject) => {
      call.on('data', (answer) => {
        came.push(answer.payload.body.length);
        if (came.length < down.length) ask(came.length);
        else call.end();
      });
      call.on('end', resolve);
      call.on('error', reject);
      ask(0);
    });
    assert.deepEqual(came, down);
  },
  async empty_stream() {
    const call = client.FullDuplexCall();
    await new Promise((resolve, reject) => call.on('data', reject).on('error', reject).on('end', resolve).end());
  },
  async cancel_after_first_response() {
    const call = client.FullDuplexCall();
    const error = await new Promise((resolve) => {
      call.on('data', () => call.cancel()).on('error', resolve);
      call.write({ response_parameters: [{ size: 31415 }], payload: payload(27182) });
    });
    assert.equal(error.code, grpc.status.CANCELLED);
  },
  async deadline() {
    const request = { response_parameters: [{ size: 1, interval_us: 5000000 }] };
    const call = client.StreamingOutputCall(request, { deadline: Date.now() + 100 });
    const error = await new Promise((resolve, reject) => call.on('error', resolve).on('data', reject).on('end', reject));
    assert.equal(error.code, grpc.status.DEADLINE_EXCEEDED);
  },
};

(async () => {
  let failed = 0;
  for (const [name, run] of Object.entries(cases)) {
    try {
      await run();
      console.log('ok     ', name);
    } catch (error) {
      failed += 1;
      console.log('FAILED ', name, error);
    }
  }
  client.close();
  console.log(`${Object.keys(cases).length - failed} passed, ${failed} failed`);
  process.exitCode = failed > 0 ? 1 : 0;
})();
