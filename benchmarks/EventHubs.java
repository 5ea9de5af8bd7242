import com.azure.messaging.eventhubs.EventData;
import com.azure.messaging.eventhubs.EventDataBatch;
import com.azure.messaging.eventhubs.EventHubClientBuilder;
import com.azure.messaging.eventhubs.EventHubConsumerAsyncClient;
import com.azure.messaging.eventhubs.EventHubProducerClient;
import java.util.List;
import java.util.concurrent.CountDownLatch;

/** The official Java client: send|receive EVENTS. Prints how many seconds that took, without the start
 * of Java and, for sending, of the connection; then how many events were received, the sum of their
 * sequences times (partition + 1), and the bytes of their bodies. */
public final class EventHubs {
    private static final String BODY = System.getenv("BODY");
    private static long events;
    private static long places;
    private static long bytes;

    public static void main(String[] words) throws Exception {
        int count = Integer.parseInt(words[1]);
        double seconds = (words[0].equals("send") ? send(count) : receive(count)) / 1e9;
        System.out.println(seconds + " " + events + " " + places + " " + bytes);
        System.exit(0); // its threads are not all daemons
    }

    private static EventHubClientBuilder builder() {
        return new EventHubClientBuilder()
                .connectionString(System.getenv("AZURE_EVENTHUBS_CONNECTION_STRING"))
                .consumerGroup("$Default");
    }

    private static long send(int count) {
        EventHubProducerClient producer = builder().buildProducerClient();
        producer.send(List.of(new EventData(BODY)));
        long began = System.nanoTime();
        for (int sent = 0; sent < count;) {
            EventDataBatch batch = producer.createBatch();
            for (int n = 0; n < 1000 && sent < count; n++, sent++) {
                batch.tryAdd(new EventData(BODY));
            }
            producer.send(batch);
        }
        return System.nanoTime() - began;
    }

    private static long receive(int count) throws InterruptedException {
        EventHubConsumerAsyncClient consumer = builder().prefetchCount(1000).buildAsyncConsumerClient();
        CountDownLatch left = new CountDownLatch(count);
        long began = System.nanoTime();
        consumer.receive(true).subscribe(event -> {
            EventData data = event.getData();
            int partition = Integer.parseInt(event.getPartitionContext().getPartitionId());
            events++;
            places += data.getSequenceNumber() * (partition + 1);
            bytes += data.getBody().length;
            left.countDown();
        });
        left.await();
        return System.nanoTime() - began;
    }
}
