import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;

/**
 * Java's own assignors as an oracle: a case as a line of JSON on standard input, its outcome as a line on standard output.
 *
 * Case: {"assignor": "range", "nodes": {"1": "rack a" or null}, "topics": {"t": [[replica, …], …]},
 *        "members": {"id": {"subscription": base64, "instance": "name" or null}}}
 * Outcome: {"assignments": {"id": base64}, "subscriptions": {"id": base64 of what Java makes of it again}}
 */
public class Assignors {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode given = json.readTree(line);
            ObjectNode outcome = json.createObjectNode();
            ObjectNode again = outcome.putObject("subscriptions");
            Map<String, Subscription> members = new HashMap<>();
            given.get("members").fields().forEachRemaining(entry -> {
                ByteBuffer bytes = ByteBuffer.wrap(Base64.getDecoder().decode(entry.getValue().get("subscription").asText()));
                Subscription subscription = ConsumerProtocol.deserializeSubscription(bytes);
                again.put(entry.getKey(), encoded(ConsumerProtocol.serializeSubscription(subscription)));
                JsonNode instance = entry.getValue().get("instance");
                subscription.setGroupInstanceId(instance.isNull() ? Optional.empty() : Optional.of(instance.asText()));
                members.put(entry.getKey(), subscription);
            });
            ObjectNode assignments = outcome.putObject("assignments");
            assignor(given.get("assignor").asText()).assign(cluster(given), new GroupSubscription(members)).groupAssignment()
                .forEach((member, assignment) ->
                    assignments.put(member, encoded(ConsumerProtocol.serializeAssignment(assignment))));
            out.println(json.writeValueAsString(outcome));
        }
    }

    private static ConsumerPartitionAssignor assignor(String name) {
        switch (name) {
            case "range": return new RangeAssignor();
            case "roundrobin": return new RoundRobinAssignor();
            case "sticky": return new StickyAssignor();
            default: return new CooperativeStickyAssignor();
        }
    }

    private static Cluster cluster(JsonNode given) {
        Map<Integer, Node> nodes = new HashMap<>();
        given.get("nodes").fields().forEachRemaining(entry -> {
            int id = Integer.parseInt(entry.getKey());
            String rack = entry.getValue().isNull() ? null : entry.getValue().asText();
            nodes.put(id, new Node(id, "localhost", 9092, rack));
        });
        List<PartitionInfo> partitions = new ArrayList<>();
        given.get("topics").fields().forEachRemaining(entry -> {
            for (int number = 0; number < entry.getValue().size(); number++) {
                List<Node> replicas = new ArrayList<>();
                entry.getValue().get(number).forEach(replica -> replicas.add(nodes.get(replica.asInt())));
                Node[] all = replicas.toArray(new Node[0]);
                partitions.add(new PartitionInfo(entry.getKey(), number, all.length > 0 ? all[0] : null, all, all));
            }
        });
        return new Cluster("oracle", nodes.values(), partitions, Set.of(), Set.of());
    }

    private static String encoded(ByteBuffer bytes) {
        byte[] copied = new byte[bytes.remaining()];
        bytes.get(copied);
        return Base64.getEncoder().encodeToString(copied);
    }
}
