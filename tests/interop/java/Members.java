import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of consumer groups by Java's own client, as many as are asked for, each in a thread of its own.
 *
 * Asked by lines of JSON on standard input, each answered by one on standard output:
 * {"start": "name", "topics": ["t"], "settings": {"group.id": …}} → {}
 * {"has": "name"}  → {"partitions": [["t", 0], …], "failure": "…" or null}
 * {"stop": "name"} → {} once it has left its group
 */
public class Members {
    private static final class Member extends Thread {
        private final Properties settings = new Properties();
        private final List<String> topics = new ArrayList<>();
        private volatile boolean stopping;
        private volatile Set<TopicPartition> assignment = Set.of();
        private volatile Exception failure;

        @Override
        public void run() {
            try (KafkaConsumer<byte[], byte[]> consumer =
                     new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                consumer.subscribe(topics);
                while (!stopping) {
                    consumer.poll(Duration.ofMillis(50));
                    assignment = Set.copyOf(consumer.assignment());
                }
            } catch (Exception failed) {
                failure = failed;
            }
            assignment = Set.of();
        }
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Map<String, Member> members = new HashMap<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = json.readTree(line);
            ObjectNode answer = json.createObjectNode();
            if (asked.has("start")) {
                Member member = new Member();
                asked.get("topics").forEach(topic -> member.topics.add(topic.asText()));
                asked.get("settings").fields().forEachRemaining(
                    setting -> member.settings.put(setting.getKey(), setting.getValue().asText()));
                member.setDaemon(true);
                member.start();
                members.put(asked.get("start").asText(), member);
            } else if (asked.has("has")) {
                Member member = members.get(asked.get("has").asText());
                ArrayNode partitions = answer.putArray("partitions");
                member.assignment.forEach(key -> partitions.addArray().add(key.topic()).add(key.partition()));
                answer.put("failure", member.failure == null ? null : member.failure.toString());
            } else {
                Member member = members.remove(asked.get("stop").asText());
                member.stopping = true;
                member.join();
            }
            out.println(json.writeValueAsString(answer));
        }
    }
}
