import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * The assignors of Kafka's broker as an oracle: a case as a line of JSON on standard input, its outcome as a line on
 * standard output. Topics are named by numbers.
 *
 * Case: {"assignor": "range", "topics": {"1": partitions}, "members": {"id": {"instance": "name" or null,
 *        "topics": [1], "had": [[1, 0], …]}}}
 * Outcome: {"id": [[1, 0], …]}
 */
public class ServerAssignors {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode given = json.readTree(line);
            Map<Uuid, Integer> topics = new HashMap<>();
            given.get("topics").fields().forEachRemaining(
                topic -> topics.put(id(Long.parseLong(topic.getKey())), topic.getValue().asInt()));
            Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
            Map<String, MemberSubscriptionAndAssignmentImpl> members = new HashMap<>();
            Set<Set<Uuid>> subscriptions = new HashSet<>();
            given.get("members").fields().forEachRemaining(entry -> {
                Set<Uuid> subscribed = new HashSet<>();
                entry.getValue().get("topics").forEach(topic -> subscribed.add(id(topic.asLong())));
                subscriptions.add(subscribed);
                Map<Uuid, Set<Integer>> had = new HashMap<>();
                entry.getValue().get("had").forEach(partition -> {
                    Uuid topic = id(partition.get(0).asLong());
                    had.computeIfAbsent(topic, any -> new HashSet<>()).add(partition.get(1).asInt());
                    owners.computeIfAbsent(topic, any -> new HashMap<>()).put(partition.get(1).asInt(), entry.getKey());
                });
                JsonNode instance = entry.getValue().get("instance");
                members.put(entry.getKey(), new MemberSubscriptionAndAssignmentImpl(
                    Optional.empty(), instance.isNull() ? Optional.empty() : Optional.of(instance.asText()),
                    subscribed, new Assignment(had)));
            });
            SubscriptionType type = subscriptions.size() == 1 ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
            ObjectNode outcome = json.createObjectNode();
            assignor(given.get("assignor").asText())
                .assign(new GroupSpecImpl(members, type, owners), new Topics(topics)).members()
                .forEach((member, assignment) -> {
                    ArrayNode all = outcome.putArray(member);
                    assignment.partitions().forEach((topic, numbers) -> numbers.forEach(
                        number -> all.addArray().add(topic.getLeastSignificantBits()).add(number)));
                });
            out.println(json.writeValueAsString(outcome));
        }
    }

    private static Uuid id(long number) {
        return new Uuid(1, number);
    }

    private static ConsumerGroupPartitionAssignor assignor(String name) {
        return name.equals("range") ? new RangeAssignor() : new UniformAssignor();
    }

    private record Topics(Map<Uuid, Integer> partitions) implements SubscribedTopicDescriber {
        @Override
        public int numPartitions(Uuid topic) {
            return partitions.getOrDefault(topic, -1);
        }

        @Override
        public Set<String> racksForPartition(Uuid topic, int number) {
            return Set.of();
        }
    }
}
