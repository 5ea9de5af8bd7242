// A member of a group: the official JavaScript client with its own checkpoint store in Blob Storage.
// Like support/group_member.py, it appends a line for every batch that it has handled.
"use strict";
const fs = require("node:fs");
const { EventHubConsumerClient, earliestEventPosition } = require("@azure/event-hubs");
const { BlobCheckpointStore } = require("@azure/eventhubs-checkpointstore-blob");
const { ContainerClient, StorageSharedKeyCredential } = require("@azure/storage-blob");

const said = JSON.parse(process.argv[2]);
const key = new StorageSharedKeyCredential(said.blobs.account, said.blobs.key);
const store = new BlobCheckpointStore(
  new ContainerClient(`${said.blobs.url}/${said.blobs.container}`, key),
);
const client = new EventHubConsumerClient(
  "$Default",
  process.env.AZURE_EVENTHUBS_CONNECTION_STRING,
  store,
  {
    loadBalancingOptions: {
      strategy: "greedy",
      updateIntervalInMs: 1000 * said.interval_s,
      partitionOwnershipExpirationIntervalInMs: 1000 * said.ttl_s,
    },
  },
);

async function processEvents(events, context) {
  if (events.length === 0) return;
  const sequences = events.map((event) => event.sequenceNumber);
  fs.appendFileSync(said.log, `${JSON.stringify([said.name, context.partitionId, sequences])}\n`);
  await context.updateCheckpoint(events[events.length - 1]);
}

const subscription = client.subscribe(
  { processEvents, processError: async (error) => console.error(String(error)) },
  { startPosition: earliestEventPosition, maxBatchSize: 100, maxWaitTimeInSeconds: 1 },
);
process.on("SIGTERM", async () => {
  await subscription.close();
  await client.close();
  process.exit(0);
});
