// Azure's JavaScript client against the endpoint. Prints what it found as JSON.
import { createRequire } from "node:module";

const { CosmosClient, ChangeFeedStartFrom, StatusCodes } = createRequire(process.env.MODULES)(
  "@azure/cosmos",
);
const client = new CosmosClient({ endpoint: process.env.ENDPOINT, key: process.env.KEY });
const found = {};

const { database } = await client.databases.createIfNotExists({ id: "homes" });
const { container } = await database.containers.create(
  { id: "javascript", partitionKey: { paths: ["/home_id"] } },
  { offerThroughput: 12000 },
);

for (let n = 0; n < 30; n++) {
  await container.items.create({ id: `a${String(n).padStart(2, "0")}`, home_id: `H${n}`, n });
}
const one = container.item("a03", "H3");
found.read = (await one.read()).resource.n;
found.patched = (await one.patch([{ op: "incr", path: "/n", value: 100 }])).resource.n;
found.conditional = (
  await one.patch({
    condition: "from c where c.n = 103",
    operations: [{ op: "set", path: "/seen", value: true }],
  })
).resource.seen;
const { resource: old } = await one.read();
await one.replace({ ...old, n: 3 });
try {
  await one.replace(old, { accessCondition: { type: "IfMatch", condition: old._etag } });
} catch (error) {
  found.stale = error.code;
}
found.missing = (await container.item("none", "H3").read()).statusCode;
await container.item("a29", "H29").delete();
const batch = await container.items.batch(
  [
    { operationType: "Create", resourceBody: { id: "b1", home_id: "HB" } },
    { operationType: "Upsert", resourceBody: { id: "b2", home_id: "HB" } },
  ],
  "HB",
);
found.batch = batch.result.map((each) => each.statusCode);

const ask = async (query, parameters = []) =>
  (await container.items.query({ query, parameters }, { maxItemCount: 7 }).fetchAll()).resources;
found.count = await ask("SELECT VALUE COUNT(1) FROM c");
found.ordered = await ask("SELECT VALUE c.id FROM c WHERE IS_DEFINED(c.n) ORDER BY c.id DESC");
found.top = (await ask("SELECT TOP 3 c.id FROM c ORDER BY c.id")).map((each) => each.id);
found.skipped = await ask("SELECT VALUE c.id FROM c ORDER BY c.id OFFSET 2 LIMIT 3");
found.where = await ask("SELECT VALUE c.id FROM c WHERE c.n = @n", [{ name: "@n", value: 5 }]);
found.ofOneKey = (
  await container.items
    .query("SELECT * FROM c", { partitionKey: "HB" })
    .fetchAll()
).resources.length;
try {
  await ask("SELECT c.n FROM c GROUP BY c.n");
} catch (error) {
  found.refused = error.code;
}

const ranges = await container.getFeedRanges();
found.ranges = ranges.length;
found.changes = [];
for (const range of ranges) {
  const iterator = container.items.getChangeFeedIterator({
    changeFeedStartFrom: ChangeFeedStartFrom.Beginning(range),
    maxItemCount: 4,
  });
  for await (const page of iterator.getAsyncIterator()) {
    if (page.statusCode === StatusCodes.NotModified) break;
    found.changes.push(...page.result.map((each) => each.id));
  }
}
const start = container.items.getChangeFeedIterator({
  changeFeedStartFrom: ChangeFeedStartFrom.Now(),
});
let continuation = (await start.readNext()).continuationToken;
console.log("SPLIT");
await new Promise((resolve) => process.stdin.once("data", resolve));
await container.items.create({ id: "later", home_id: "H3" });
await container.items.create({ id: "later too", home_id: "H4" });
found.later = [];
for (let empty = 0; empty < 6; ) {
  const iterator = container.items.getChangeFeedIterator({
    changeFeedStartFrom: ChangeFeedStartFrom.Continuation(continuation),
  });
  const page = await iterator.readNext();
  continuation = page.continuationToken;
  found.later.push(...(page.result ?? []).map((each) => each.id));
  empty = page.statusCode === StatusCodes.NotModified ? empty + 1 : 0;
}
console.log(JSON.stringify(found));
process.exit(0);
