import com.azure.core.util.BinaryData;
import com.azure.messaging.eventhubs.EventData;
import com.azure.messaging.eventhubs.EventDataBatch;
import com.azure.messaging.eventhubs.EventHubClientBuilder;
import com.azure.messaging.eventhubs.EventHubConsumerClient;
import com.azure.messaging.eventhubs.EventHubProducerClient;
import com.azure.messaging.eventhubs.EventProcessorClient;
import com.azure.messaging.eventhubs.EventProcessorClientBuilder;
import com.azure.messaging.eventhubs.LoadBalancingStrategy;
import com.azure.messaging.eventhubs.checkpointstore.blob.BlobCheckpointStore;
import com.azure.messaging.eventhubs.models.CreateBatchOptions;
import com.azure.messaging.eventhubs.models.EventPosition;
import com.azure.messaging.eventhubs.models.PartitionEvent;
import com.azure.messaging.eventhubs.models.ReceiveOptions;
import com.azure.messaging.eventhubs.models.SendOptions;
import com.azure.storage.blob.BlobContainerAsyncClient;
import com.azure.storage.blob.BlobContainerClientBuilder;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** What the test asks of the official Java client; what it finds is printed as name=value lines. */
public final class Client {
    private static final String CONNECTION = System.getenv("CONNECTION");
    private static final Duration WAIT = Duration.ofSeconds(60);

    public static void main(String[] words) throws Exception {
        switch (words[0]) {
            case "flow" -> flow();
            case "process" -> process(Integer.parseInt(words[1]));
            default -> throw new IllegalArgumentException(words[0]);
        }
        System.exit(0); // its threads are not all daemons
    }

    private static void say(String name, Object value) {
        System.out.println(name + "=" + value);
    }

    private static EventHubClientBuilder builder() {
        return new EventHubClientBuilder().connectionString(CONNECTION).consumerGroup("$Default");
    }

    private static void flow() {
        try (EventHubProducerClient producer = builder().buildProducerClient();
                EventHubConsumerClient consumer = builder().buildConsumerClient()) {
            List<String> partitions = new ArrayList<>();
            producer.getPartitionIds().forEach(partitions::add);
            say("partitions", partitions);
            EventData event = new EventData("hello");
            event.setMessageId("m-1").setCorrelationId("c-1").setContentType("text/plain");
            Map<String, Object> properties = event.getProperties();
            properties.put("text", "x");
            properties.put("int", 7);
            properties.put("long", 7L);
            properties.put("half", 0.5);
            producer.send(List.of(event), new SendOptions().setPartitionId("0"));
            PartitionEvent first = receive(consumer, "0", 0, 1).get(0);
            say("body", first.getData().getBodyAsString());
            say("id", first.getData().getMessageId() + " " + first.getData().getCorrelationId());
            first.getData().getProperties().forEach((name, value) ->
                    say(name, value + " " + value.getClass().getSimpleName()));
            say("last", first.getLastEnqueuedEventProperties().getSequenceNumber());

            // A delivery of many frames, and small ones after it: ids must go on by one.
            producer.send(List.of(new EventData("x".repeat(900_000))),
                    new SendOptions().setPartitionId("0"));
            EventDataBatch batch = producer.createBatch(new CreateBatchOptions().setPartitionId("0"));
            int many = 0;
            while (batch.tryAdd(new EventData(BinaryData.fromString("small " + many)))) {
                many++;
            }
            producer.send(batch);
            List<PartitionEvent> all = receive(consumer, "0", 1, many + 1);
            say("large", all.get(0).getData().getBody().length);
            say("small", many);
            boolean ordered = true;
            for (int n = 0; n < many; n++) {
                ordered &= all.get(n + 1).getData().getBodyAsString().equals("small " + n);
            }
            say("ordered", ordered);
            producer.send(List.of(new EventData("keyed")),
                    new SendOptions().setPartitionKey("home 7"));
            say("size", producer.getPartitionProperties("0").getLastEnqueuedSequenceNumber());
        }
    }

    private static List<PartitionEvent> receive(
            EventHubConsumerClient consumer, String partition, long from, int count) {
        List<PartitionEvent> found = new ArrayList<>();
        ReceiveOptions options = new ReceiveOptions()
                .setOwnerLevel(1L).setTrackLastEnqueuedEventProperties(true);
        EventPosition position = EventPosition.fromSequenceNumber(from, true);
        while (found.size() < count) {
            consumer.receiveFromPartition(
                    partition, count - found.size(), position, WAIT, options).forEach(found::add);
            position = EventPosition.fromSequenceNumber(
                    found.get(found.size() - 1).getData().getSequenceNumber());
        }
        return found;
    }

    private static void process(int count) throws Exception {
        BlobContainerAsyncClient blobs = new BlobContainerClientBuilder()
                .connectionString(System.getenv("STORAGE")).containerName("java-processors")
                .buildAsyncClient();
        blobs.createIfNotExists().block();
        Map<String, Integer> seen = new ConcurrentHashMap<>();
        CountDownLatch left = new CountDownLatch(count);
        AtomicInteger repeated = new AtomicInteger();
        List<EventProcessorClient> processors = new ArrayList<>();
        for (int which = 0; which < 2; which++) {
            processors.add(new EventProcessorClientBuilder()
                    .connectionString(CONNECTION)
                    .consumerGroup("$Default")
                    .checkpointStore(new BlobCheckpointStore(blobs))
                    .loadBalancingStrategy(LoadBalancingStrategy.GREEDY)
                    .loadBalancingUpdateInterval(Duration.ofSeconds(1))
                    .partitionOwnershipExpirationInterval(Duration.ofSeconds(10))
                    .initialPartitionEventPosition(partition -> EventPosition.earliest())
                    .processEvent(context -> {
                        EventData event = context.getEventData();
                        String id = context.getPartitionContext().getPartitionId()
                                + "/" + event.getSequenceNumber();
                        if (seen.merge(id, 1, Integer::sum) == 1) {
                            left.countDown();
                        } else {
                            repeated.incrementAndGet();
                        }
                        if (event.getSequenceNumber() % 10 == 0) {
                            context.updateCheckpoint();
                        }
                    })
                    .processError(context -> System.err.println(context.getThrowable()))
                    .buildEventProcessorClient());
        }
        processors.forEach(EventProcessorClient::start);
        boolean complete = left.await(120, TimeUnit.SECONDS);
        processors.forEach(EventProcessorClient::stop);
        say("complete", complete);
        say("seen", seen.size());
        say("repeated", repeated.get());
    }
}
