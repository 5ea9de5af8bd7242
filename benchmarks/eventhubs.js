// The official JavaScript client: `node eventhubs.js send|receive EVENTS`. Prints how many seconds
// that took, without the start of Node and of the connection; then how many events were received, the
// sum of their sequences times (partition + 1), and the bytes of their bodies.
"use strict";
const {
  EventHubConsumerClient,
  EventHubProducerClient,
  earliestEventPosition,
} = require("@azure/event-hubs");

const connection = process.env.AZURE_EVENTHUBS_CONNECTION_STRING;
const [command, words] = process.argv.slice(2);
const count = Number(words);
const body = Buffer.from(process.env.BODY);
const found = { events: 0, places: 0, bytes: 0 };

async function send() {
  const producer = new EventHubProducerClient(connection);
  await producer.sendBatch([{ body }], { partitionId: "0" });
  const began = performance.now();
  for (let sent = 0; sent < count; ) {
    const batch = await producer.createBatch();
    for (let n = 0; n < 1000 && sent < count; n++, sent++) batch.tryAdd({ body });
    await producer.sendBatch(batch);
  }
  return performance.now() - began;
}

async function receive() {
  const consumer = new EventHubConsumerClient("$Default", connection);
  const began = performance.now();
  await new Promise((done, failed) => {
    consumer.subscribe(
      {
        processEvents: async (events, context) => {
          const weight = Number(context.partitionId) + 1;
          for (const event of events) {
            found.places += event.sequenceNumber * weight;
            found.bytes += event.body.length;
          }
          found.events += events.length;
          if (found.events >= count) done();
        },
        processError: async (error) => failed(error),
      },
      { startPosition: earliestEventPosition, maxBatchSize: 1000, skipParsingBodyAsJson: true },
    );
  });
  return performance.now() - began;
}

({ send, receive })[command]().then(
  (ms) => {
    const said = [ms / 1000, found.events, found.places, found.bytes].join(" ");
    process.stdout.write(`${said}\n`, () => process.exit(0));
  },
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
