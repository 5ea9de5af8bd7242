import com.azure.cosmos.ChangeFeedProcessor;
import com.azure.cosmos.ChangeFeedProcessorBuilder;
import com.azure.cosmos.ConsistencyLevel;
import com.azure.cosmos.CosmosAsyncClient;
import com.azure.cosmos.CosmosAsyncContainer;
import com.azure.cosmos.CosmosAsyncDatabase;
import com.azure.cosmos.CosmosClientBuilder;
import com.azure.cosmos.models.ChangeFeedProcessorItem;
import com.azure.cosmos.models.ChangeFeedProcessorOptions;
import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.Iterator;
import java.util.List;
import java.util.function.Consumer;

/**
 * One host of Azure's change feed processor: prints the id of every change, until its input ends.
 * Compiled by Janino, which Spark ships: no lambdas, and casts instead of generics.
 */
public class CosmosHost {
    public static void main(String[] args) throws Exception {
        final boolean wrapped = args[1].equals("wrapped");
        CosmosAsyncClient client = new CosmosClientBuilder()
            .endpoint(System.getenv("ENDPOINT"))
            .key(System.getenv("KEY"))
            .gatewayMode()
            .consistencyLevel(ConsistencyLevel.SESSION)
            .contentResponseOnWriteEnabled(true)
            .buildAsyncClient();
        CosmosAsyncDatabase database = client.getDatabase("homes");
        CosmosAsyncContainer feed = database.getContainer(args[2]);
        CosmosAsyncContainer leases = database.getContainer(args[3]);
        ChangeFeedProcessorOptions options = new ChangeFeedProcessorOptions();
        options.setFeedPollDelay(Duration.ofMillis(200L));
        options.setLeaseAcquireInterval(Duration.ofMillis(Long.parseLong(args[4])));
        options.setLeaseRenewInterval(Duration.ofMillis(Long.parseLong(args[4])));
        options.setLeaseExpirationInterval(Duration.ofMillis(Long.parseLong(args[5])));
        options.setStartFromBeginning(true);
        options.setMaxItemCount(Integer.parseInt(args[6]));
        ChangeFeedProcessorBuilder builder = new ChangeFeedProcessorBuilder()
            .hostName(args[0])
            .feedContainer(feed)
            .leaseContainer(leases)
            .options(options);
        Consumer handler = new Consumer() {
            public void accept(Object changes) {
                for (Iterator each = ((List) changes).iterator(); each.hasNext();) {
                    Object change = each.next();
                    JsonNode document = wrapped
                        ? ((ChangeFeedProcessorItem) change).getCurrent()
                        : (JsonNode) change;
                    System.out.println(document.get("id").asText());
                }
                System.out.flush();
            }
        };
        if (wrapped) {
            builder.handleLatestVersionChanges(handler);
        } else {
            builder.handleChanges(handler);
        }
        ChangeFeedProcessor processor = builder.buildChangeFeedProcessor();
        processor.start().block();
        System.out.println("started");
        System.out.flush();
        while (System.in.read() != -1) {
        }
        processor.stop().block();
        client.close();
        System.out.println("stopped");
        System.exit(0);
    }
}
