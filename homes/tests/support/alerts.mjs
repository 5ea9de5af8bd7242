// Group "alerts" with official clients only: readings from an event hub, checkpoints in Blob Storage,
// alert documents to Cosmos DB. What is urgent, and what an alert is, as in homes/pipelines/alerts.py.
import { createRequire } from "node:module";

const events = createRequire(process.env.EVENTHUBS_MODULES);
const { EventHubConsumerClient, earliestEventPosition } = events("@azure/event-hubs");
const { BlobCheckpointStore } = events("@azure/eventhubs-checkpointstore-blob");
const { ContainerClient } = events("@azure/storage-blob");
const { CosmosClient } = createRequire(process.env.COSMOS_MODULES)("@azure/cosmos");

const CO_PPM = Number(process.env.CO_PPM);
const CONFLICT = 409; // it came again
const account = new CosmosClient({ endpoint: process.env.COSMOS, key: process.env.COSMOS_KEY });
const alerts = account.database("homes").container("alerts");
const blobs = new ContainerClient(process.env.STORAGE, process.env.CONTAINER);

const isUrgent = ({ type, value }) =>
  (type === "glass" && value > 0) || (type === "co" && value >= CO_PPM);

async function processEvents(found, context) {
  for (const event of found) {
    const { home_id, sensor_id, type, value, ts } = event.body;
    if (!isUrgent(event.body)) continue;
    const id = `${sensor_id}-${ts}`;
    const enqueued_ms = event.enqueuedTimeUtc.getTime();
    try {
      await alerts.items.create(
        { id, home_id, sensor_id, type, value, ts, enqueued_ms, status: "new" });
    } catch (error) {
      if (error.code !== CONFLICT) throw error;
    }
  }
  if (found.length) await context.updateCheckpoint(found[found.length - 1]);
}

const client = new EventHubConsumerClient(
  "alerts", process.env.EVENTHUBS, new BlobCheckpointStore(blobs),
  { loadBalancingOptions: { strategy: "greedy", updateIntervalInMs: 1000 } },
);
await blobs.createIfNotExists();
const subscription = client.subscribe(
  { processEvents, processError: async (error) => console.error(error) },
  { startPosition: earliestEventPosition, maxBatchSize: 500, maxWaitTimeInSeconds: 1 },
);
process.on("SIGTERM", async () => {
  await subscription.close();
  await client.close();
  process.exit(0);
});
