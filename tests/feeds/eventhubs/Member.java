import com.azure.messaging.eventhubs.EventData;
import com.azure.messaging.eventhubs.EventProcessorClient;
import com.azure.messaging.eventhubs.EventProcessorClientBuilder;
import com.azure.messaging.eventhubs.LoadBalancingStrategy;
import com.azure.messaging.eventhubs.checkpointstore.blob.BlobCheckpointStore;
import com.azure.messaging.eventhubs.models.EventBatchContext;
import com.azure.messaging.eventhubs.models.EventPosition;
import com.azure.storage.blob.BlobContainerClientBuilder;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.stream.Collectors;

/** A member of a group, as support/group_member.py is one: the official Java client with its own
 * checkpoint store in Blob Storage. Words: name, log, container, interval and time to live in ms. */
public final class Member {
    private final String name;
    private final Path log;

    private Member(String name, Path log) {
        this.name = name;
        this.log = log;
    }

    public static void main(String[] words) {
        Member member = new Member(words[0], Path.of(words[1]));
        EventProcessorClient processor = new EventProcessorClientBuilder()
                .connectionString(System.getenv("AZURE_EVENTHUBS_CONNECTION_STRING"))
                .consumerGroup("$Default")
                .checkpointStore(new BlobCheckpointStore(new BlobContainerClientBuilder()
                        .connectionString(System.getenv("AZURE_STORAGE_CONNECTION_STRING"))
                        .containerName(words[2]).buildAsyncClient()))
                .loadBalancingStrategy(LoadBalancingStrategy.GREEDY)
                .loadBalancingUpdateInterval(Duration.ofMillis(Long.parseLong(words[3])))
                .partitionOwnershipExpirationInterval(Duration.ofMillis(Long.parseLong(words[4])))
                .initialPartitionEventPosition(partition -> EventPosition.earliest())
                .processEventBatch(member::handle, 100, Duration.ofSeconds(1))
                .processError(context -> System.err.println(context.getThrowable()))
                .buildEventProcessorClient();
        processor.start();
        Runtime.getRuntime().addShutdownHook(new Thread(processor::stop));
    }

    private void handle(EventBatchContext context) {
        if (context.getEvents().isEmpty()) {
            return;
        }
        String sequences = context.getEvents().stream().map(EventData::getSequenceNumber)
                .map(String::valueOf).collect(Collectors.joining(",", "[", "]"));
        write(String.format("[\"%s\",\"%s\",%s]%n", name,
                context.getPartitionContext().getPartitionId(), sequences));
        context.updateCheckpoint();
    }

    private void write(String line) {
        try {
            Files.write(log, line.getBytes(StandardCharsets.UTF_8),
                    StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
