// What the test asks of the official JavaScript client, one command per run; answers as JSON.
"use strict";
const {
  EventHubBufferedProducerClient,
  EventHubConsumerClient,
  EventHubProducerClient,
  earliestEventPosition,
} = require("@azure/event-hubs");

const connection = process.env.CONNECTION;
const group = "$Default";

async function send({ events, partitionKey, partitionId }) {
  const producer = new EventHubProducerClient(connection);
  const batch = await producer.createBatch({ partitionKey, partitionId });
  for (const event of events) {
    if (!batch.tryAdd(event)) throw new Error("the batch is full");
  }
  await producer.sendBatch(batch);
  const about = await producer.getEventHubProperties();
  await producer.close();
  return about;
}

async function fill({ partitionId, count, bytes }) {
  const producer = new EventHubProducerClient(connection);
  const body = Buffer.alloc(bytes, 120);
  let batch = await producer.createBatch({ partitionId });
  for (let sent = 0; sent < count; sent++) {
    if (batch.tryAdd({ body })) continue;
    await producer.sendBatch(batch);
    batch = await producer.createBatch({ partitionId });
    batch.tryAdd({ body });
  }
  await producer.sendBatch(batch);
  await producer.close();
  return { count };
}

async function buffered({ keys }) {
  const failed = [];
  const producer = new EventHubBufferedProducerClient(connection, {
    maxWaitTimeInMs: 50,
    onSendEventsErrorHandler: async (context) => failed.push(String(context.error)),
  });
  for (const key of keys) await producer.enqueueEvent({ body: key }, { partitionKey: key });
  await producer.flush();
  await producer.close();
  return { failed };
}

function asPlain(event) {
  const body = Buffer.isBuffer(event.body) ? event.body.toString() : event.body;
  return {
    body,
    size: body.length,
    sequence: event.sequenceNumber,
    offset: event.offset,
    key: event.partitionKey,
    properties: event.properties,
    messageId: event.messageId,
    contentType: event.contentType,
  };
}

async function receive({ count, partitionId, position, ownerLevel, brief }) {
  const consumer = new EventHubConsumerClient(group, connection);
  const events = [];
  let last;
  await new Promise((done, failed) => {
    const handlers = {
      processEvents: async (found, context) => {
        last = context.lastEnqueuedEventProperties ?? last;
        for (const event of found) {
          events.push({ partition: context.partitionId, ...asPlain(event) });
        }
        if (events.length >= count) done();
      },
      processError: async (error) => failed(error),
    };
    const options = {
      startPosition: position ?? earliestEventPosition,
      ownerLevel,
      trackLastEnqueuedEventProperties: true,
      maxBatchSize: 500,
      maxWaitTimeInSeconds: 1,
    };
    if (partitionId === undefined) consumer.subscribe(handlers, options);
    else consumer.subscribe(partitionId, handlers, options);
  });
  await consumer.close();
  return { events: brief ? events.length : events, last };
}

async function process_({ count, container, storage }) {
  const { BlobCheckpointStore } = require("@azure/eventhubs-checkpointstore-blob");
  const { ContainerClient } = require("@azure/storage-blob");
  const blobs = new ContainerClient(storage, container);
  await blobs.createIfNotExists();
  const loadBalancingOptions = { strategy: "greedy", updateIntervalInMs: 1000 };
  const store = () => new BlobCheckpointStore(blobs);
  const consumers = [0, 1].map(
    () => new EventHubConsumerClient(group, connection, store(), { loadBalancingOptions }),
  );
  const events = new Map(); // some come twice, when a partition is taken over
  await new Promise((done, failed) => {
    for (const consumer of consumers) {
      consumer.subscribe(
        {
          processEvents: async (found, context) => {
            for (const event of found) {
              events.set(`${context.partitionId}/${event.sequenceNumber}`, String(event.body));
            }
            if (found.length) await context.updateCheckpoint(found[found.length - 1]);
            if (events.size >= count) done();
          },
          // Being cut off is how the one learns that the other took a partition over.
          processError: async (error) => {
            console.error(`${events.size} of ${count} events, then: ${error.message}`);
            if (error.code !== "ReceiverDisconnectedError") failed(error);
          },
        },
        { startPosition: earliestEventPosition, maxBatchSize: 500, maxWaitTimeInSeconds: 1 },
      );
    }
  });
  for (const consumer of consumers) await consumer.close();
  return { bodies: [...events.values()] };
}

const commands = { send, fill, buffered, receive, process: process_ };

async function main() {
  const results = [];
  for (const [name, options] of JSON.parse(process.argv[2])) {
    results.push(await commands[name](options));
  }
  // A receiver whose link is cut while a batch is handled attaches again, and forgets the timer that
  // renews its first token. Nothing stops that timer: the process would stay for 45 minutes.
  process.stdout.write(`${JSON.stringify(results)}\n`, () => process.exit(0));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
